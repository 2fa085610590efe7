"""What the loaders for PyTorch and JAX share: the pipeline, epochs, states, ranks."""
