"""What DALI's iterators need to know of element types that arrays often have.

- DALI's table of PyTorch's types lacks the unsigned integers of 16 to 64 bits, so that its iterators end in a KeyError.
  PyTorch has had them since 2.3; they are added to the table, and nothing that is in it is changed. Before 2.3 they
  can't be had: the iterator then says so, and what to do.
- JAX without ``jax_enable_x64`` takes 64-bit integers for 32-bit ones and drops what doesn't fit: a time in nanoseconds
  becomes a wrong number. For outputs that come from this operator DALI's iterator for JAX raises an error instead.

The errors come when an iterator is made, before the pipeline runs, for outputs that are the operator's own; the types of what
other operators make of them are known only when batches are there.

All this is set up when a plugin of DALI is imported, before or after this package; PyTorch and JAX themselves are never
imported here.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_UNSIGNED = ("uint16", "uint32", "uint64")


class _TorchTypes(dict):
    """DALI's table, for a PyTorch that lacks types: a missing one is an error that says what to do."""

    def __missing__(self, key: Any) -> Any:
        raise TypeError(
            f"PyTorch has no type for {key} in this version; give zarr_reader dtype=, such as types.INT32 or types.FLOAT, or "
            "install PyTorch 2.3 or later"
        )


def _add_torch_types(module: ModuleType) -> None:
    from nvidia.dali import types

    table, torch = module.to_torch_type, module.torch
    for name in _UNSIGNED:
        if hasattr(torch, name):
            table.setdefault(getattr(types, name.upper()), getattr(torch, name))
        elif not isinstance(table, _TorchTypes):
            module.to_torch_type = table = _TorchTypes(table)
            # The iterators' own reference to it, if they have it already.
            parent = sys.modules.get(module.__name__.rpartition(".")[0])
            if hasattr(parent, "to_torch_type"):
                parent.to_torch_type = table


def _dali_type(name: str) -> Any:
    from nvidia.dali import types

    return types.FLOAT if name == "float32" else getattr(types, name.upper())


def _check_outputs(pipe: Any, names: list[str] | None, check: Callable[[str, Any], None]) -> None:
    """Calls ``check`` with the name and the type of each of this operator's outputs in a built pipeline. Runs nothing."""
    from . import _inspect

    # Pipelines that were deserialized have no graph.
    nodes = [(i, node) for i, node in enumerate(getattr(pipe, "_graph_outputs", None) or ()) if _is_zarr(node)]
    readers = _inspect.stats(pipe) if nodes else {}
    for i, node in nodes:
        dtypes = readers.get(node.source.name, {}).get("dtypes", ())
        at = next((at for at, output in enumerate(node.source.outputs) if output is node), len(dtypes))
        if at < len(dtypes):
            check(names[i] if names and i < len(names) else str(i), _dali_type(dtypes[at]))


def _check_torch_type(name: str, dtype: Any) -> None:
    table = sys.modules["nvidia.dali.plugin.pytorch.torch_utils"].to_torch_type
    try:
        table[dtype]
    except TypeError as error:
        raise TypeError(f"zarr_reader: output {name!r}: {error}") from None


def _check_jax_type(name: str, dtype: Any) -> None:
    import jax
    from nvidia.dali import types

    if dtype in (types.INT64, types.UINT64) and not jax.config.jax_enable_x64:
        raise TypeError(
            f"zarr_reader: output {name!r} has {dtype}, which JAX would cut to 32 bits: call "
            'jax.config.update("jax_enable_x64", True) first, or give zarr_reader dtype=, such as types.INT32'
        )


_CHECKS = {"nvidia.dali.plugin.pytorch": _check_torch_type, "nvidia.dali.plugin.jax": _check_jax_type}


def replace(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Puts ``around``, which gets the method it stands for before its arguments, in the place of a method; once only."""
    method = getattr(owner, name)
    if getattr(method, "_dali_zarr", False):
        return

    @functools.wraps(method)
    def replacement(*positional, **arguments):
        return around(method, *positional, **arguments)

    replacement._dali_zarr = True
    setattr(owner, name, replacement)


def _check_when_made(module: ModuleType) -> None:
    """Wraps the part of all iterators' construction after which their pipelines are built, and before which nothing ran."""

    def checked(method, self, *positional, **arguments):
        method(self, *positional, **arguments)
        bases = [base.__module__ for base in type(self).__mro__]
        for package, check in _CHECKS.items():
            if any(base == package or base.startswith(package + ".") for base in bases):
                for pipe in self._pipes:
                    _check_outputs(pipe, getattr(self, "output_map", None), check)

    replace(module._DaliBaseIterator, "__init__", checked)


def _check_proxy(module: ModuleType) -> None:
    """Wraps what starts the thread that runs a pipeline for PyTorch's DataLoader."""

    def checked(method, self):
        # Built only where a type may be missing, else when DALI builds it.
        if isinstance(sys.modules["nvidia.dali.plugin.pytorch.torch_utils"].to_torch_type, _TorchTypes):
            self._pipe.build()
            _check_outputs(self._pipe, None, _check_torch_type)
        return method(self)

    replace(module.DALIServer, "start_thread", checked)


def _is_zarr(node: Any) -> bool:
    """Whether an output of a pipeline is one of this operator's, unchanged."""
    from nvidia.dali import ops

    operator = getattr(getattr(node, "source", None), "_op", None)
    return isinstance(operator, (ops.ZarrReader, ops.readers.Zarr))


def _check_jax_types(module: ModuleType) -> None:
    """Wraps the method in which DALI's iterator makes JAX's arrays of one of the outputs."""

    def checked(method, self, outputs, category):
        # Again, since jax_enable_x64 may have changed.
        for pipe, batch in zip(self._pipes, outputs, strict=True):
            nodes = getattr(pipe, "_graph_outputs", None) or ()
            if category < len(nodes) and _is_zarr(nodes[category]):
                _check_jax_type(self.output_map[category], batch[category].dtype)
        return method(self, outputs, category)

    replace(module.DALIGenericIterator, "_gather_outputs_for_category", checked)


_HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "nvidia.dali.plugin.base_iterator": _check_when_made,
    "nvidia.dali.plugin.pytorch.experimental.proxy": _check_proxy,
    "nvidia.dali.plugin.pytorch.torch_utils": _add_torch_types,
    "nvidia.dali.plugin.jax.iterator": _check_jax_types,
}


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, and calls the hook."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _HOOKS[module.__name__](module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that have hooks, as they would be found without it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in _HOOKS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def hook() -> None:
    """Has the hooks called: now for modules that are imported already, else when they are. Does nothing the second time."""
    for name, function in _HOOKS.items():
        if name in sys.modules:
            function(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
