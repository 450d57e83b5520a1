"""What goes with a record that is set aside: where it came from, how often it was tried, why it failed.

It travels in the record's headers. A retry stream has one shard for each delay, so that the records of a
shard come due in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from shoal.core.model import StreamName, StreamSettings
from shoal.core.retry import FailureRules

OURS: Final = "shoal-"
"""How the names of our headers begin. They do not count against the limits of a record: one that was as large
as it may be can be set aside too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a record that was set aside came from, and what became of it."""

    stream: str
    shard: int
    offset: int
    timestamp: int
    attempts: int
    error: str

    def headers(self) -> dict[str, bytes]:
        """As the record carries it."""
        return {
            f"{OURS}stream": self.stream.encode(),
            f"{OURS}shard": str(self.shard).encode(),
            f"{OURS}offset": str(self.offset).encode(),
            f"{OURS}timestamp": str(self.timestamp).encode(),
            f"{OURS}attempts": str(self.attempts).encode(),
            f"{OURS}error": self.error.encode(errors="replace"),
        }


def origin_of(headers: Mapping[str, bytes]) -> Origin | None:
    """What the headers say; None if the record was never set aside."""
    try:
        return Origin(
            stream=headers[f"{OURS}stream"].decode(),
            shard=int(headers[f"{OURS}shard"]),
            offset=int(headers[f"{OURS}offset"]),
            timestamp=int(headers[f"{OURS}timestamp"]),
            attempts=int(headers[f"{OURS}attempts"]),
            error=headers[f"{OURS}error"].decode(errors="replace"),
        )
    except (KeyError, ValueError):
        return None


def own_headers(headers: Mapping[str, bytes]) -> dict[str, bytes]:
    """The record's own headers, without ours."""
    return {name: value for name, value in headers.items() if not name.startswith(OURS)}


def retry_stream(stream: StreamName, group: str) -> StreamName:
    """Where records of this group wait for another attempt."""
    return StreamName(stream.project, f"{stream.stream}.{group}.retry")


def dead_stream(stream: StreamName, group: str) -> StreamName:
    """Where records of this group end that could not be processed."""
    return StreamName(stream.project, f"{stream.stream}.{group}.dead")


def kept_for_ever(settings: StreamSettings) -> StreamSettings:
    """The settings of a stream for what was set aside: the main stream's retention takes none of it."""
    return replace(settings, retention_ms=None, retention_bytes=None)


def due_ms(rules: FailureRules, tier: int, set_aside_ms: int, wall_ms: int, now_ms: int) -> int:
    """When a record is tried again, on the clock of `now_ms`.

    It was set aside at `set_aside_ms` of a wall clock, which shows `wall_ms` now. However the wall clocks
    jump, nobody waits longer than the delay.
    """
    longest_ms = delay_ms(rules, tier)
    return now_ms + min(max(0, set_aside_ms + longest_ms - wall_ms), longest_ms)


def delay_ms(rules: FailureRules, tier: int) -> int:
    """How long a record waits in this shard of the retry stream."""
    delays_s = rules.delays_s or (0.0,)  # Without any, only what was replayed is here.
    return round(delays_s[min(tier, len(delays_s) - 1)] * 1000)
