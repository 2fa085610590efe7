"""DALI, whose modules have few types: to type checkers all of it is ``Any``."""

import importlib
from typing import Any


def module(name: str) -> Any:
    """A module of ``nvidia.dali``, imported only when it is asked for."""
    return importlib.import_module(f"nvidia.dali.{name}")


def schema() -> Any:
    """The operator's arguments, as DALI knows them."""
    return module("backend").GetSchema("readers__Zarr")
