"""LogHub's messages, written field by field, as simply as can be."""

from collections.abc import Sequence

Pairs = Sequence[tuple[bytes, bytes]]


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes) -> bytes:
    """A field of bytes, or of a message."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def pair(key: bytes, value: bytes) -> bytes:
    return field(1, key) + field(2, value)


def log(time: int, nanoseconds: int | None, pairs: Pairs) -> bytes:
    """A log, as a field of its group."""
    contents = b"".join(field(2, pair(*one)) for one in pairs)
    tail = b"" if nanoseconds is None else b"\x25" + nanoseconds.to_bytes(4, "little")
    return field(1, b"\x08" + varint(time) + contents + tail)


def group(
    logs: Sequence[tuple[int, int | None, Pairs]],
    names: Sequence[bytes | None] = (None, None, None),
    tags: Pairs = (),
) -> bytes:
    """A group: its logs; topic, source and machine; its tags."""
    return b"".join(
        [
            *(log(*one) for one in logs),
            *(field(3 + i, name) for i, name in enumerate(names) if name is not None),
            *(field(6, pair(*tag)) for tag in tags),
        ]
    )
