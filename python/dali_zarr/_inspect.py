"""What a reader would do (:func:`explain`), and what readers have done (:func:`counters`)."""

import json as _json
import warnings
from collections.abc import Mapping
from typing import Any, Literal, Unpack, cast, overload

from . import _arguments, _handles, _native
from ._arguments import values
from ._arguments.types import Device, Paths, ReaderArguments
from ._loading import epochs, labels, outputs
from ._text import explanation_text

# Parameters of explain beside the reader's.
_OWN = ("batch_size", "drop_last", "json", "order")


class Explanation(dict[str, Any]):
    """What :func:`explain` found out: a dictionary whose ``str()`` is a text for people."""

    def __str__(self) -> str:
        return explanation_text(self)


@overload
def explain(
    path: Paths | None = None, *, batch_size: int = 1, device: Device = "cpu", drop_last: bool = False,
    json: Literal[False] = False, order: Literal["own", "pushed"] = "own", **arguments: Unpack[ReaderArguments],
) -> Explanation: ...


@overload
def explain(
    path: Paths | None = None, *, batch_size: int = 1, device: Device = "cpu", drop_last: bool = False, json: Literal[True],
    order: Literal["own", "pushed"] = "own", **arguments: Unpack[ReaderArguments],
) -> str: ...


def explain(
    path: Paths | None = None, *, batch_size: int = 1, device: Device = "cpu", drop_last: bool = False,
    json: bool = False, order: Literal["own", "pushed"] = "own", **arguments: Unpack[ReaderArguments],
) -> Explanation | str:
    """Says what ``fn.zarr_reader`` with these arguments would do, without reading data.

    Only metadata and coordinates are read: coordinates to look up labels, and to compare several stores. No GPU is
    needed: for ``device="gpu"`` without a limit the default of a GPU that has enough memory is assumed.

    Args:
        path: One store or several; none where all arrays have stores of their own.
        batch_size: The pipeline's batch size. Default: 1.
        device: Where batches are delivered, ``"cpu"`` or ``"gpu"``; ``"cuda"`` too, as the loaders have it. Default: ``"cpu"``.
        drop_last: As of the loaders: whether ``batches_per_epoch`` leaves out a last batch that isn't full on all ranks.
        json: Whether to return the dictionary as JSON text.
        order: ``"pushed"`` where the caller says which samples come, as with a ``sampler`` or a stream. Then ``shuffled`` are the
            reads of a random permutation of all samples, which ignores chunks. Default: ``"own"``.
        arguments: The others of :func:`dali_zarr.zarr_reader`. ``offsets`` may be a dictionary, as of the loaders.

    Returns:
        A dictionary whose ``str()`` is a text for people. Sizes are bytes of decoded data.

        - ``samples``, ``samples_of_this_shard`` (in its first epoch), ``batches_per_epoch``, ``outputs``; ``starts_from_table``,
          whether `starts` says where samples start, and ``weighted``, how `weights` draw them (None where there are none).
          Of ``outputs``, ``ragged_dims`` are the dimensions in which samples differ; ``shape`` and ``sample_bytes`` are those of
          the largest sample, and ``batch_bytes`` the most that a batch has;
        - ``path``, the locations of the stores or of the groups; ``groups``, their number with `groups`, else None; and
          ``without_samples``, how many stores or groups have none, since no window fits in them;
        - ``arrays``, each with ``mask_and_scale`` (whether it is decoded, also where that follows from its attributes),
          ``fillna`` (the value that replaces NaNs; None where they stay or can't occur), ``scaled`` (with `scale_by`, by dimension:
          the elements of a ``window``, their ``distance``, and how far they are ``beside`` the boxes, in elements), ``stores``
          (``chunks``, ``shards``, ``codecs``, ``lossy_images``, whether chunks are images that lose values or None if the metadata
          don't say so, ``decoded_on`` and ``why``), ``bytes_per_sample`` and ``chunk_bytes_per_sample`` (the bytes of a sample and
          of the chunks that hold it; their ratio is the ``read_amplification``),
          ``chunk_bytes_read_per_sample`` (the same in the order that was asked for, where a chunk that samples share
          counts once if memory keeps it), and ``reads_per_chunk`` (reads of a chunk in an epoch, ``in_order`` and
          ``shuffled``);
        - ``segments`` between ``breaks``: their ``count``, how many are ``read``, and ``padded_samples``, the share of samples with
          elements that are padded or repeated;
        - ``missing_dates``, None without any: how many ``dates`` are missing in the region that samples may touch, and how many
          samples are left out because they read some (``samples_left_out``), or how they are ``filled``;
        - ``on_bad_chunk``, as given;
        - ``order``, the order that was asked for, ``in_order``, ``shuffled`` or ``pushed`` (with ``shuffle_after_epoch`` that of
          later epochs; with `weights` ``shuffled`` is what they draw), and ``reads`` of an epoch of this shard in both
          orders, if the program waits for batches: then a chunk that is read serves all batches in preparation.
          ``unhurried`` are the reads in the order that was asked for, if batches are ready before they are taken, so that
          each is prepared alone; there are more if memory is short. ``estimated``: whether the epoch is judged by its first
          ``samples_looked_at``. A chunk that the store lacks counts as read;
        - ``memory``: the limits, the ``smallest_`` ones that would do, and what the limits allow.
          ``device_memory_used``: bytes of the limit that are reserved. ``wave_bytes``: bytes that each of ``lanes``
          decodes at a time. ``refused``: the error of a reader with these limits, or None. ``machine_memory``: bytes of
          host memory of this machine, or of its control group; None where that isn't known. ``host_memory_share``: bytes
          of it that all readers of a process share, and ``host_memory_taken``: what those of this process have now;
        - ``shuffle``: ``initial_fill``, given or the default for this data set, and ``blocks_of_batch``: from how many blocks of
          samples that share chunks (such as episodes) the samples of a shuffled batch come on average.
          ``blocks_of_batch_if_uniform``: the same if all samples are shuffled together, as they are if ``is_uniform``, and
          ``chunk_bytes_if_uniform``: the memory for chunks with which each is then read once;
        - ``cache``, None without ``cache_size`` and ``cache_dir``: bytes that ``memory`` and ``disk`` may hold,
          ``epoch_bytes`` of the decoded chunks of an epoch, and the ratios of the latter to the former. With a ratio
          below 0.95 the chunks fit. Above, it depends on how well they are compressed, which isn't known without
          reading them;
        - ``advice``: what would make it faster, and which arrays stay as stored though their metadata name missing values.

    Raises:
        ValueError, TypeError, IndexError: As building the pipeline does, apart from limits that are too small and memory
            that the machine lacks.
    """
    return explained(path=path, batch_size=batch_size, device=device, drop_last=drop_last, json=json, order=order, **arguments)


def explained(
    *, batch_size: int = 1, device: str = "cpu", drop_last: bool = False, json: bool = False, order: str = "own",
    **arguments: Any,
) -> Explanation | str:
    """Does what :func:`explain` does, for arguments that aren't checked by type."""
    values.check_text("device", device)
    epochs.check_last_batch(drop_last, drop_last and arguments.get("pad_last_batch", False))
    if isinstance(arguments.get("offsets"), Mapping):
        arguments = {**arguments, "offsets": outputs.offsets_of(arguments["offsets"])}
    arguments = _handles.translated(arguments)
    spec = _arguments.to_spec(arguments, _OWN) | ({} if order == "own" else {"order": order})
    labels.check_stores(spec, arguments)
    device = "gpu" if device == "cuda" or device.startswith("cuda:") else device
    name = spec.pop("name", None)
    found = Explanation(_native.explain(spec | {"batch_size": batch_size, "device": device}))
    # There may be millions.
    del found["segments"]["bounds"]
    if drop_last:
        whole = found["samples"], found["num_shards"], batch_size
        epochs.check_whole_batches(*whole)
        found["batches_per_epoch"] = epochs.whole_batches(*whole)
    if name is not None:
        found["name"] = name
    return _json.dumps(found, indent=2) if json else found


def stats(pipe: Any = None) -> Any:
    """The former name of :func:`counters`."""
    warnings.warn("dali_zarr.stats is called dali_zarr.counters now", DeprecationWarning, stacklevel=2)
    return counters(pipe)


def counters(pipe: Any = None) -> Any:
    """Counters of readers, at any time while they run.

    Args:
        pipe: A loader, or an iteration over it; a pipeline, which is built if it wasn't; an iterator of DALI's over pipelines; a
            reader of DALI's dynamic mode; or a list of these.

    Returns:
        For a pipeline, a dictionary from the names of its Zarr readers to their counters. For an iterator of DALI's the
        same, or a list if it has several pipelines. For a loader or a reader, its counters; for a loader for JAX with
        several devices, a list with one entry for each. A loader's counters begin when it is made, and again when it
        loads a state or leaves an epoch before its end. For a list, a list. Without an argument, a list of the counters
        of all Zarr readers that are alive in this process, the oldest first, whoever opened them. Deserialized
        pipelines and copies are told apart, since the operator itself is asked. Readers in other processes can't be
        reached.

        Counters are ``chunks_read`` (from stores or caches), ``bytes_read`` (encoded, from stores), ``reads`` (of
        stores), ``reads_gds`` (of these, by GPUDirect Storage), ``index_reads`` (of shards' indexes),
        ``chunks_missing`` (fill values), ``chunks_from_memory`` (times that a batch was served by a chunk read for
        another), ``chunks_read_again`` (since memory didn't keep them), ``evictions`` (for want of memory),
        ``nans_replaced`` (elements that `fillna` replaced in all assembled batches: a dictionary by output),
        ``batches`` and ``waits`` (batches that weren't finished when asked for), ``waves`` (of chunks on a GPU), and
        seconds, summed over threads: ``read_seconds``, ``copy_seconds``, ``decode_seconds``, ``assemble_seconds``,
        ``wait_seconds``. Once nothing is in flight, ``chunks_read`` is the sum of ``chunks_decoded_gpu``,
        ``chunks_decoded_cpu`` (of which ``cpu_fallbacks`` the GPU was meant to decode), ``chunks_uncompressed`` and
        ``chunks_failed``. ``chunks_bad`` are the different chunks that can't be decoded, and without which the reader goes on
        (`on_bad_chunk`), and ``samples_replaced`` the samples that others replaced for it. Of ``chunks_decoded_cpu``,
        ``chunks_shared`` are those that idle cores decoded in the GPU's place while finished batches waited, at most
        ``shared_threads`` at a time. ``batches_shared`` batches were
        taken while cores helped so. The GPU decoded when no more than ``shared_reserve`` batches waited. Beside the
        counters stand the reader's ``path``, ``arrays``, ``device`` and ``dtypes`` (of its outputs; ``bfloat16`` for
        those that hold bits of bfloat16 as uint16).

        Of remote stores: ``requests``, ``requests_bytes``, ``requests_retried`` (sent again after a failure) and
        ``requests_hedged`` (second requests, since an answer took long).

        Of ``cache_size``: ``cache_hits``, ``cache_misses`` and ``cache_evictions`` (pieces: chunks, or indexes of shards), and
        ``cache_bytes`` that came from it. Of ``cache_dir`` the same (``cache_dir_hits`` ...; misses are of what memory lacked),
        ``cache_dir_writes``, ``cache_dir_dropped`` (not written, since the disk was too slow or failed), ``cache_dir_errors``
        (damaged files, failed writes) and ``cache_dir_checks`` (objects whose version the store was asked for).

    Raises:
        TypeError: ``pipe`` is none of these.
        RuntimeError: the reader of the dynamic mode hasn't run yet, or isn't one for Zarr.
    """
    if pipe is None:
        return _native.all_stats()
    if isinstance(pipe, list | tuple):
        return [counters(one) for one in cast("list[Any] | tuple[Any, ...]", pipe)]
    if hasattr(pipe, "counters"):
        return pipe.counters()
    if hasattr(pipe, "reader_meta"):
        numbers = {name: _described(lambda name=name: pipe.reader_meta(name)) for name in pipe.reader_meta()}
        found = _by_number()
        return {name: found[number] for name, number in numbers.items() if number in found}
    if hasattr(pipe, "get_metadata"):
        number = _described(_of_dynamic(pipe))
        found = _by_number()
        if number not in found:
            raise RuntimeError("dali_zarr: counters: expected a reader for Zarr that has delivered a batch")
        return found[number]
    pipes: Any = getattr(pipe, "_pipes", None)
    if isinstance(pipes, list) and pipes:
        each = [counters(one) for one in cast("list[Any]", pipes)]
        return each[0] if len(each) == 1 else each
    raise TypeError(
        "dali_zarr: counters: expected a loader, a pipeline, an iterator of DALI's, a reader of the dynamic mode, or a list of "
        f"these, but found {pipe!r}"
    )


def _of_dynamic(reader: Any) -> Any:
    """Returns what makes DALI ask a reader of the dynamic mode for its epoch. After tracing with ``capture=True`` the
    operator is in a pipeline of its own."""
    captured = getattr(getattr(getattr(reader, "_captured_iter", None), "_capture_ctx", None), "pipeline", None)
    if captured is not None:
        return lambda: captured.reader_meta(reader._name)
    backend = getattr(reader, "_op_backend", None)
    return backend.GetReaderMeta if backend is not None else lambda: None


def _described(ask: Any) -> int:
    """The number of the Zarr reader that ``ask`` makes DALI ask for its epoch; 0 if it is another kind of reader."""
    _native.take_described()
    ask()
    return _native.take_described()


def _by_number() -> dict[int, dict[str, Any]]:
    return {one["reader"]: one for one in _native.all_stats()}
