"""What training frameworks ask of a loader beyond being an iterable, and their devices.

Lightning and Accelerate aren't imported here.
"""
