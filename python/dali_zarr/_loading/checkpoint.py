"""DALI's checkpoints, taken apart: the states of a pipeline's operators by name.

A checkpoint is a message of Protocol Buffers. Its field 1 is repeated, once for each operator, with the operator's name
in field 1 and its state in field 2. The other fields belong to the pipeline. This module knows no more of the format:
all other bytes stay as they are.
"""

import re
from collections.abc import Iterator, Mapping

_OPERATOR, _NAME, _STATE = 1, 1, 2
_PHILOX = re.compile(rb"(Philox_[0-9A-F]+_)[0-9A-F]{16}:[0-9A-F]{16}_[0-9]+")


def states(checkpoint: bytes) -> dict[str, bytes]:
    """Returns the operators' states by their names.

    Raises:
        ValueError: It isn't a checkpoint.
    """
    return dict(_operator(body) for field, body, _ in _fields(checkpoint) if field == _OPERATOR and body is not None)


def with_states(checkpoint: bytes, new: Mapping[str, bytes]) -> bytes:
    """Returns the checkpoint with ``new`` states for some of its operators.

    Raises:
        ValueError: It isn't a checkpoint.
    """
    parts: list[bytes] = []
    for field, body, whole in _fields(checkpoint):
        if field == _OPERATOR and body is not None:
            name, _ = _operator(body)
            if name in new:
                inner = b"".join(_written(f, new[name]) if f == _STATE else w for f, _, w in _fields(body))
                whole = _written(_OPERATOR, inner)
        parts.append(whole)
    return b"".join(parts)


def random_states_at(checkpoint: bytes, samples: int) -> dict[str, bytes]:
    """Returns the states of the random operators after so many samples, by name. Those of which the form isn't known
    (DALI 2.4's is) are left out.

    The state is that of a counter: ``Philox_<key>_<sequence>:<offset>_<phase>``, in hexadecimal digits. The key comes from
    the pipeline's seed. Each sample has the next sequence."""
    found: dict[str, bytes] = {}
    for name, state in states(checkpoint).items():
        if counter := _PHILOX.fullmatch(state):
            found[name] = counter[1] + b"%016X" % (samples % 2**64) + b":0000000000000000_0"
    return found


def _operator(body: bytes) -> tuple[str, bytes]:
    found = {field: content for field, content, _ in _fields(body) if content is not None}
    return found.get(_NAME, b"").decode(), found.get(_STATE, b"")


def _fields(message: bytes) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Yields each field's number, its content (None unless that is bytes), and all of its bytes."""
    at = 0
    while at < len(message):
        start = at
        key, at = _varint(message, at)
        content = None
        match key & 7:
            case 0:  # varint
                _, at = _varint(message, at)
            case 1:  # 64 bits
                at += 8
            case 2:  # bytes
                length, at = _varint(message, at)
                content = message[at : at + length]
                at += length
            case 5:  # 32 bits
                at += 4
            case kind:
                raise ValueError(f"dali_zarr: expected a checkpoint of DALI, but found a field of kind {kind} at byte {start}")
        if at > len(message):
            raise ValueError(f"dali_zarr: expected a checkpoint of DALI, but it ends within the field at byte {start}")
        yield key >> 3, content, message[start:at]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError(f"dali_zarr: expected a checkpoint of DALI, but found no number at byte {at}")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _written(field: int, content: bytes) -> bytes:
    return _number(field << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
