"""The names of all arguments, and errors for other names."""

import functools
from collections.abc import Iterable

from .. import _dali
from .._hints import did_you_mean

# Arguments that all operators of DALI take.
_COMMON = frozenset({"name", "device"})
# Arguments that DALI adds to each operator's schema. They don't change what is read.
DALIS = frozenset({"preserve", "bytes_per_sample_hint"})
# Arguments that Python adds, and turns into others.
SELECTION = frozenset({"align", "sel", "isel", "method", "tolerance"})
OF_LOADERS = frozenset({
    "batch_sampler", "batch_size", "collate", "columns", "drop_last", "process_group", "sampler", "transform", "num_threads",
    "sharding", "uneven", "read_group", "read_dim", "gather",
})
# Those that only the loader for PyTorch has.
_OF_TORCH = frozenset({"read_group", "read_dim", "gather"})
_THREADS = "leave it out: the reader has threads of its own (io_threads, decode_threads)"
# Arguments of torch's DataLoader, and what to write instead.
_OF_DATALOADER = {
    "num_workers": _THREADS, "persistent_workers": _THREADS, "worker_init_fn": _THREADS,
    "prefetch_factor": "write prefetch_queue_depth",
    "pin_memory": "leave it out: batches are delivered to the device",
    "collate_fn": "leave it out: samples of a batch are together already",
    "generator": "write seed",
}


@functools.cache
def operators() -> frozenset[str]:
    """The names of the operator's own arguments."""
    return frozenset(_dali.schema().GetArgumentNames())


@functools.cache
def of_type(*types: str) -> frozenset[str]:
    """The names of the operator's arguments that have one of these types of DALI's."""
    schema = _dali.schema()
    return frozenset(name for name in operators() if schema.GetArgumentType(name).name in types)


def is_location(array: str) -> bool:
    """Whether an entry of ``arrays`` is the location of an array with a store of its own, and not a name relative to ``path``."""
    return "://" in array or array.startswith(("/", "./", "../"))


def check(names: Iterable[str], more: Iterable[str] = (), own: Iterable[str] = ()) -> None:
    """Raises TypeError for a name that is neither an argument of the reader nor among ``more``. Names that begin with
    an underscore are hidden arguments, and pass. ``own``: the function's own parameters, which messages suggest too."""
    known = operators() | _COMMON | SELECTION | set(more)
    for name in names:
        if name not in known and not name.startswith("_"):
            if name in _OF_DATALOADER:
                raise TypeError(f"zarr_reader: {name}: it is an argument of torch's DataLoader; {_OF_DATALOADER[name]}")
            if name in _OF_TORCH:
                raise TypeError(
                    f"zarr_reader: {name}: it is an argument of dali_zarr.torch.Loader alone, whose ranks read parts of samples; "
                    "leave it out here"
                )
            if name in OF_LOADERS:
                raise TypeError(f"zarr_reader: {name}: it is an argument of the loaders, and not of the reader; leave it out here")
            hint = did_you_mean(name, known.union(own), "see help(dali_zarr.zarr_reader) for the arguments that there are")
            raise TypeError(f"zarr_reader: {name}: there is no such argument; {hint}")
