"""A label and batches in one body: the label's length, the label, and then the batches as they are stored.

    4 bytes, big-endian: the length of the label · the label, JSON · payloads, one after another

A payload is a stored batch: one Arrow IPC message, compressed, whose schema follows from the stream's
columns and the layout number in the label, and its digest (see `layout`). Nothing is encoded anew on the
way, and nothing is done for each record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from shoal.core.errors import InvalidInput
from shoal.wire.values import from_json, to_json

CONTENT_TYPE: Final = "application/vnd.shoal.batches"
_LENGTH: Final = 4


def packed(kind: Any, label: object, payloads: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The parts of a body, in order."""
    head = to_json(kind, label)
    return [len(head).to_bytes(_LENGTH, "big") + head, *payloads]


def unpacked(kind: Any, body: bytes | memoryview, *, is_strict: bool) -> tuple[Any, memoryview]:
    """The label, and the bytes after it."""
    text, rest = divided(body)
    return label_from(kind, text, is_strict=is_strict), rest


def divided(body: bytes | memoryview) -> tuple[memoryview, memoryview]:
    """The bytes of the label, and those after it."""
    view = memoryview(body)
    end = _LENGTH + int.from_bytes(view[:_LENGTH], "big")
    if len(view) < end:
        raise InvalidInput("body", f"{len(view)} bytes", "the body is shorter than its label says")
    return view[_LENGTH:end], view[end:]


def label_from(kind: Any, text: bytes | memoryview, *, is_strict: bool) -> Any:
    """The label of these bytes."""
    return from_json(kind, text, is_strict=is_strict, field="label")


def holds_label(body: bytes | memoryview) -> bool:
    """Whether so much of a body has come as holds its label."""
    return len(body) >= _LENGTH and len(body) >= _LENGTH + int.from_bytes(body[:_LENGTH], "big")


def cut(payloads: memoryview, sizes: Sequence[int]) -> Iterator[memoryview]:
    """One after another, each of its size; all of it, or InvalidInput."""
    if any(size < 0 for size in sizes) or sum(sizes) != len(payloads):
        raise InvalidInput("body", f"{len(payloads)} bytes", "the batches are not as long as the label says")
    place = 0
    for size in sizes:
        yield payloads[place : place + size]
        place += size
