"""Selections by label and by position, and the coordinates that they are looked up in."""
