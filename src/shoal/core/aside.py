"""What goes with a record that is set aside: where it came from, how often it was tried, why it failed.

It travels in the record's headers. Until its delay is over it is a delayed record of the retry stream; then
it lies there as any record does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from shoal.core.limits import RETRY_SHARDS_MAX
from shoal.core.model import StreamInfo, StreamName, StreamSettings

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Records of a group that were set aside and are to be tried again."""

    stream: str
    """The retry stream."""
    waiting: int
    """Whose delay is not over yet."""
    due: int
    """That lie in the retry stream, and are not done."""


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


def retry_shards(stream: StreamInfo) -> int:
    """How many a new retry stream has: what is tried again is little, and all workers hold it beside the
    main stream."""
    return min(len(stream.open_shards), RETRY_SHARDS_MAX)
