"""The socket of delayed records: what waits, and how it gets into the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedRow:
    """Records that are due together, as they are kept."""

    due_ms: int
    wait_ms: int | None
    """How long they were to wait, if that is what was asked for."""
    place: int | None
    records: int
    raw_bytes: int
    layout: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRow:
    """The same, found when it is due."""

    id: int
    stream_id: int
    place: int | None
    layout: int
    payload: bytes


class DelayStore(Protocol):
    """Keeps what is to come later. It comes in with appends."""

    def next_due(self) -> int | None:
        """When the next one is due, by the wall clock; None if nothing waits."""

    def due(self, now_ms: int, *, rows: int, size: int, besides: Collection[int] = ()) -> Sequence[DueRow]:
        """The first that are due of one stream, none of `besides`: so many rows or bytes, before they were
        compressed, and at least one."""

    def bring_forward(self, now_ms: int) -> int:
        """The wall clock may have been set back: what was to wait for so long, and by this clock would wait
        for longer, is due so long from now. A bounded part of it; how many rows."""

    def count_delayed(self, stream_id: int) -> int:
        """How many records wait for a stream."""

    def all_delayed(self) -> Mapping[int, int]:
        """The same for all streams that records wait for, by their ids."""
