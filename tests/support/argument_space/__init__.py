"""A fuzz over the whole argument space of the loader for PyTorch, beside an oracle that shares nothing with the product."""
