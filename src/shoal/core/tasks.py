"""What happens to a shard in a worker's hands, as values: phases, endings, tasks, failures, pieces.

`delivery` decides with them; a shell carries them out. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a shard is, in its worker."""

    WAITING = "waiting"
    """A parent is still being finished here."""
    INITIALIZING = "initializing"
    PROCESSING = "processing"
    STOPPING = "stopping"
    """Nothing more is handed out; `shutdown` is due, or runs."""
    STOP_COMPLETED = "stop_completed"


class Reason(StrEnum):
    """Why a shard leaves its processor, which decides what that may still save."""

    ENDED = "ended"
    """Consumed to its end: the end is saved, by the user or for the user."""
    MOVED = "moved"
    """Another consumer gets it: what is done may be saved."""
    STOPPED = "stopped"
    """The worker stops: what is done may be saved."""
    LOST = "lost"
    """It is not ours any more: nothing can be saved."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records that are handed to user code together, by their offsets."""

    offsets: Sequence[int]
    bytes: int = 0
    source: object = None
    """Where the shell finds the records; not looked at here."""

    @property
    def first(self) -> int:
        return self.offsets[0]

    @property
    def next(self) -> int:
        """The offset after the last."""
        return self.offsets[-1] + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How user code failed."""

    kind: str
    """The name of the error's class."""
    text: str
    reached: int | None = None
    """The offset of the record that it was given last, if it took them one by one."""
    is_outage: bool = False
    """The error itself says that it is not the record's fault."""


# --- What is to be done. -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialize:
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    lane: int
    piece: Piece
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNothing:
    """There is nothing new, and the processor wants to know."""

    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDown:
    lane: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Put a record into the group's retry or dead stream, and say so when it is durable there."""

    lane: int
    offset: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Let go of the shard, with this checkpoint; None: it is not ours, and there is nothing to let go of."""

    checkpoint: int | None
    as_saved: bool = False
    """It is ours, and what was saved is all that counts: more may be than we know."""

    @property
    def is_due(self) -> bool:
        """Whether there is something to let go of."""
        return self.checkpoint is not None or self.as_saved


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWorker:
    """The policy says so."""

    failure: Failure


Task = Initialize | Process | ProcessNothing | ShutDown | SetAside
"""What runs apart, one for a lane at a time; each is answered by `returned` or `raised`."""
Action = Task | Release | StopWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Records to be fetched: all that come, or what one lane wants once more."""

    offset: int
    until: int | None = None
    lane: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why a lane stands still, or the whole shard, if it cannot be read."""

    failure: Failure
    attempts: int
