"""Projects, streams, their shards and offsets: not there, there already, closed, or out of range."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.errors.root import InvalidInput, NotFound, ShoalError
from shoal.core.model import StreamInfo


class UnknownProject(NotFound):
    def __init__(self, project: str) -> None:
        super().__init__(
            f"project={project!r}: there is no such project; creating a stream 'project/stream' makes it"
        )
        self.project = project


class UnknownStream(NotFound):
    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream={stream!r}: there is no such stream; create it with create_stream() "
            f"or 'shoal stream create {stream}'"
        )
        self.stream = stream


class StreamReplaced(NotFound):
    """The stream was deleted, and another was made under its name, since it was read."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream={stream!r}: it was deleted and made anew since this query read it; read the new "
            "one with a new checkpointLocation, or with failOnDataLoss=false from its first record on"
        )
        self.stream = stream


class UnknownShard(NotFound):
    def __init__(self, *, stream: str, shard: object, shards: int) -> None:
        super().__init__(f"shard={shard!r}: stream {stream!r} has shards 0 to {shards - 1}")
        self.stream, self.shard, self.shards = stream, shard, shards


class StreamExists(ShoalError):
    def __init__(self, stream: str) -> None:
        super().__init__(f"stream={stream!r}: there is one of this name already; choose another or delete it")
        self.stream = stream


class ProjectNotEmpty(ShoalError):
    def __init__(self, project: str, streams: int) -> None:
        super().__init__(f"project={project!r}: it still holds {streams} streams; delete those first")
        self.project, self.streams = project, streams


class ShardClosed(ShoalError):
    """The shard was closed by a split or merge: the append was not stored there, and never will be.

    Carries the stream's new map, and the last sequence that the closed shard accepted from this
    producer (-1 if none), so that a producer knows what is settled before it moves on.
    """

    def __init__(self, *, stream: StreamInfo, shard: int, last_sequence: int = -1) -> None:
        children = [info.id for info in stream.shards if shard in info.parents]
        super().__init__(
            f"shard={shard}: closed, stream {stream.name!r} continues in shards {children}; "
            "send by the new map in .stream"
        )
        self.stream, self.shard, self.last_sequence = stream, shard, last_sequence


class ShardChangeRefused(InvalidInput):
    """A split or merge that the ring does not allow."""


class OffsetExpired(ShoalError):
    """The offset lies below the first one that retention has kept."""

    def __init__(self, *, stream: str, shard: int, offset: int, first_offset: int) -> None:
        super().__init__(
            f"offset={offset}: shard {shard} of {stream!r} keeps records from offset {first_offset} on; "
            "continue there if skipping what expired is what you want"
        )
        self.stream, self.shard, self.offset, self.first_offset = stream, shard, offset, first_offset


class OffsetOutOfRange(ShoalError):
    """The offset lies past the end of the shard, or is no offset at all."""

    def __init__(self, *, stream: str, shard: int, offset: int, next_offset: int) -> None:
        super().__init__(
            f"offset={offset}: shard {shard} of {stream!r} ends at offset {next_offset}; "
            f"ask for an offset from 0 to {next_offset}"
        )
        self.stream, self.shard, self.offset, self.next_offset = stream, shard, offset, next_offset


class StillUnread(ShoalError):
    """Groups did not come to the end of closed shards in the time they were given."""

    def __init__(self, *, stream: str, groups: Sequence[str], records: int, waited_s: float) -> None:
        super().__init__(
            f"stream={stream!r}: after {waited_s:g} s {', '.join(groups)} still had {records:,} records of "
            "closed shards to read; nothing is lost: they go on, see shoal group describe"
        )
        self.stream, self.groups, self.records, self.waited_s = stream, groups, records, waited_s
