"""The table that a leased group lives in: any store that can compare and set one row will do.

It may be another database than the log's, under a name that the user chooses. Nothing spans two rows, and no
lock is held between a read and a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from shoal.core.errors import StoreBusy
from shoal.core.lease import Change, InstanceRow, LeaseRow, Row, SequenceRow, drawn
from shoal.core.leasing import Outcome
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.model import ShardId


class LeaseTable(Protocol):
    """Rows of groups: a shard's by (group, shard), an instance's by (group, name), one sequence per group.

    Two rows are equal if all their fields are, the wall clocks apart, which the table stamps itself. A table
    may compare less: (born, revision) of a shard's row, (incarnation, revision) of an instance's and revision
    of a sequence's never come twice. One that may forget commits (an asynchronous fail-over) has to compare
    the epoch of a shard's row, too: revisions come again then, and a forced checkpoint must not be undone by
    an owner that never heard of it. An answer that does not come is StoreUnavailable: the change may be in.
    """

    def list(self, group: str) -> Sequence[LeaseRow]:
        """All rows of shards, as of one moment."""

    def load(self, group: str, shard: ShardId) -> LeaseRow | None:
        """One shard's row."""

    def instances(self, group: str) -> Sequence[InstanceRow]:
        """All rows of consumers, as of one moment."""

    def sequence(self, group: str) -> SequenceRow | None:
        """The group's sequence. It is never deleted, not even with the group."""

    def begin(self, group: str) -> None:
        """See that the group has a sequence. A new one begins above every number that the table has given:
        a group that is deleted and made again gives no epoch that a sink has seen before."""

    def create(self, row: Row) -> bool:
        """Store it if there is none with its key."""

    def swap(self, old: Row, new: Row) -> bool:
        """Store `new` if `old` is what is stored."""

    def delete(self, row: Row) -> bool:
        """Remove it if it is what is stored."""


class Glance(NamedTuple):
    """All rows of a group: shards' first, the others as of that moment or later."""

    leases: Sequence[LeaseRow]
    instances: Sequence[InstanceRow]
    sequence: SequenceRow


class LeaseNews(NamedTuple):
    """Where a consumer of a leased group waits: shards that changed hands, consumers that came or went."""

    table: str
    group: str


class Tried(NamedTuple):
    """How a change went."""

    change: Change
    """With the number that it wanted; still without it if no answer came."""
    outcome: Outcome
    found: Row | None = None
    """The row that was found instead, if the change was refused and `wants_found`."""


class LiveTable(LeaseTable, Protocol):
    """A table as a consumer's threads use it: many rows at once, and waiting for others' changes."""

    def glance(self, group: str) -> Glance:
        """Everything about a group."""

    def glimpse(self, group: str) -> tuple[Glance, int]:
        """The same, and the number that its news was at: for one who waits at its place."""

    def place(self, group: str) -> LeaseNews:
        """Where the store's signal tells of its news."""

    def attempt(self, group: str, changes: Sequence[Change], *, together: bool = False) -> Sequence[Tried]:
        """Try each change by itself; they may share a commit. One that is refused does not touch the others.

        Numbers that they want are drawn first. `together`: all or none; if one is refused, all are, each with
        the row that is there.
        """

    def listen(self) -> None:
        """Before the first glance: see that waiting for what comes after it need not begin with a connection.

        For the thread that waits.
        """

    def wait(self, group: str, timeout_s: float) -> None:
        """Return when a shard changed hands, or a consumer came or went, since the last glance; or after the
        timeout. Renewals and watches wake nobody. For one thread at a time.
        """

    def ring(self, group: str) -> None:
        """Wake all who wait, in every process: something else has changed, such as the stream."""

    def close(self) -> None:
        """Give back what waiting needed."""


def draw(table: LeaseTable, group: str, count: int) -> range:
    """Take so many numbers from the sequence. Numbers whose answer was lost are given to nobody."""
    for _ in range(STEP_TRIES_MAX):
        row = table.sequence(group)
        if row is None:
            table.begin(group)
        elif table.swap(row, drawn(row, count)):
            return range(row.number + 1, row.number + count + 1)
    raise StoreBusy(f"{STEP_TRIES_MAX} others were faster to draw numbers of {group!r}", 0.0)
