"""What training frameworks for PyTorch ask of a loader beyond being an iterable. None of them is imported here."""
