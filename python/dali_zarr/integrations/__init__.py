"""Adapters for other frameworks: each takes the place of one of the framework's own classes.

``dali_zarr.integrations.NAME`` imports the framework NAME, so nothing here imports an adapter. At its border an adapter has the
names and types of its framework. What the reader can't do, or what can't be said in its arguments, is refused by an error that
names the argument.
"""
