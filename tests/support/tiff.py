"""Writes tiled TIFF files around tiles that are encoded already."""

from __future__ import annotations

import struct

TYPES = {"B": 1, "H": 3, "I": 4, "Q": 16}


def tiff(tags: dict[int, tuple[str, tuple[int, ...]]], tiles: list[bytes], *, order: str = "<", big: bool = False) -> bytes:
    """A file of one image. ``tags`` has a type and numbers for each tag, without the tiles' offsets and lengths; ``big`` is
    BigTIFF."""
    number = "Q" if big else "I"
    data = bytearray(b"II" if order == "<" else b"MM") + struct.pack(f"{order}H", 43 if big else 42)
    data += struct.pack(f"{order}HHQ", 8, 0, 0) if big else struct.pack(f"{order}I", 0)
    places = []
    for tile in tiles:
        places.append(len(data) if tile else 0)
        data += tile
    tags = tags | {324: (number, tuple(places)), 325: (number, tuple(map(len, tiles)))}
    entries = b""
    for tag, (kind, numbers) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(numbers)}{kind}", *numbers)
        if len(packed) > struct.calcsize(number):
            data += b"\0" * (-len(data) % 8)
            place = len(data)
            data += packed
            packed = struct.pack(order + number, place)
        entries += struct.pack(f"{order}HH{number}", tag, TYPES[kind], len(numbers)) + packed.ljust(struct.calcsize(number), b"\0")
    data += b"\0" * (-len(data) % 8)
    struct.pack_into(order + number, data, 8 if big else 4, len(data))
    return bytes(data) + struct.pack(order + ("Q" if big else "H"), len(tags)) + entries + b"\0" * 8
