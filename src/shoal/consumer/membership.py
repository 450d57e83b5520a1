"""What a consumer of a group can do, whichever kind of group it is: the worker above cannot tell which."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from shoal.core.errors import ShoalError
from shoal.core.holding import Answered, Lease
from shoal.core.model import ShardId, StreamName
from shoal.ports import Fence, GroupSaves

Answer = TypeVar("Answer")
Listener = Callable[[Answered], None]
"""Is told, from the membership's own thread, what was opened, is to be handed back, or is lost."""


class Membership(Protocol):
    """A living member of a group. Use it from any thread; close it with `leave()`. Void in a forked child."""

    name: str
    stream: StreamName
    group: str

    @property
    def group_id(self) -> int: ...

    @property
    def incarnation(self) -> str:
        """The random id of this life of the consumer."""

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        """What this consumer holds, what it is to hand back included."""

    @property
    def error(self) -> ShoalError | None:
        """Why the membership ended by itself: its name was taken, the group is gone, or its thread failed."""

    @property
    def has_left(self) -> bool:
        """Whether it was closed: by `leave`, or with its hub."""

    def may_act(self, shard: int, epoch: int) -> bool:
        """Whether a batch of this shard may be handed to user code at this moment."""

    def fence(self, shard: int) -> Fence | None:
        """What a read shows: only the current owner may read as one. None: it reads like anyone."""

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until what is held has changed since `seen` (0 at first), or is lost; the new number."""

    def checkpoint(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> None:
        """Save checkpoints, shard to offset: all of them, or none and an error.

        `epochs`: by shard, those under which they were made. Held under another by now, it is not owned.
        """

    def saves(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> GroupSaves:
        """The same checkpoints, for a producer's transaction to save."""

    def check_pledge(self) -> None:
        """Refuse what no transaction can save: checkpoints that are kept apart from the log, or nobody's."""

    def release(
        self, checkpoints: Mapping[int, int | None], *, epochs: Mapping[int, int] | None = None
    ) -> None:
        """Let go of shards, with their last checkpoints. From here on nothing is done under their epochs.

        What makes no sense, or is not held, is refused before anything is let go of. A checkpoint that leads
        back or nowhere is refused too, but to let go never is: its shard goes on from what was saved, the
        others from what they came with, and the error is raised in the end.

        `epochs`: by shard, those that are let go of. What is not held under them any more is left as it is.
        """

    def retire(self) -> None:
        """Announce that this consumer will leave: it is given nothing more, and asked for what it has."""

    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        """Hand everything over at once, with last checkpoints where given, and end.

        One that makes no sense, or lies past its shard's end, is refused before anything is ended. One that
        leads back is dropped, everything is handed over all the same, and the error is raised in the end.
        """

    def abandon(self) -> None:
        """Fall silent without a word, as a crash would: what is held comes free after the timeout."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def insist(call: Callable[[], Answer], on: type[ShoalError], within_s: float) -> Answer:
    """Make a call again while it fails so, for so long: what it says is said once, and must be heard."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return call()
        except on as error:
            if not error.retriable or time.monotonic() >= deadline:
                raise
        time.sleep(_AGAIN_S)


def boot_ms() -> int:
    """Milliseconds of the clock that goes on while the machine sleeps: what a deadline counts by."""
    return time.clock_gettime_ns(BOOT_CLOCK) // 1_000_000


_AGAIN_S: Final = 0.05
BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
