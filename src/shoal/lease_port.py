"""The table that a leased group lives in: any store that can compare and set one row will do.

It may be another database than the log's, under a name that the user chooses. Nothing spans two rows, and no
lock is held between a read and a write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal.core.errors import StoreBusy
from shoal.core.lease import Change, InstanceRow, LeaseRow, Row, SequenceRow, drawn
from shoal.core.leasing import Outcome
from shoal.core.limits import STEP_TRIES_MAX
from shoal.core.model import ShardId


class LeaseTable(Protocol):
    """Rows of groups: a shard's by (group, shard), an instance's by (group, name), one sequence per group.

    Two rows are equal if all their fields are, the wall clocks apart, which the table stamps itself. A table
    may compare less: (born, revision) of a shard's row, (incarnation, revision) of an instance's and revision
    of a sequence's never come twice. An answer that does not come is StoreUnavailable: the change may be in.
    """

    def list(self, group: str) -> Sequence[LeaseRow]:
        """All rows of shards, as of one moment."""

    def load(self, group: str, shard: ShardId) -> LeaseRow | None:
        """One shard's row."""

    def instances(self, group: str) -> Sequence[InstanceRow]:
        """All rows of consumers, as of one moment."""

    def sequence(self, group: str) -> SequenceRow | None:
        """The group's sequence. It is never deleted, not even with the group."""

    def create(self, row: Row) -> bool:
        """Store it if there is none with its key."""

    def swap(self, old: Row, new: Row) -> bool:
        """Store `new` if `old` is what is stored."""

    def delete(self, row: Row) -> bool:
        """Remove it if it is what is stored."""


class LiveTable(LeaseTable, Protocol):
    """A table as a consumer's threads use it: several changes in one commit, and waiting for others'."""

    def attempt(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        """Try each change by itself; they may share a commit. One that fails does not touch the others."""

    def wait(self, group: str, timeout_s: float) -> None:
        """Return when shards or consumers of the group may have changed, or after the timeout.

        For one thread at a time.
        """

    def close(self) -> None:
        """Give back what waiting needed."""


def found_instead(table: LeaseTable, change: Change) -> Row | None:
    """The row that a refused change was about, as it is now."""
    row = change.old or change.new
    match row:
        case LeaseRow():
            return table.load(row.group, row.shard)
        case InstanceRow():
            return next((other for other in table.instances(row.group) if other.name == row.name), None)
        case SequenceRow():
            return table.sequence(row.group)
        case None:
            return None


def draw(table: LeaseTable, group: str, count: int) -> range:
    """Take so many numbers from the sequence. Numbers whose answer was lost are given to nobody."""
    for _ in range(STEP_TRIES_MAX):
        row = table.sequence(group)
        if row is None:
            table.create(SequenceRow(group=group))
        elif table.swap(row, drawn(row, count)):
            return range(row.number + 1, row.number + count + 1)
    raise StoreBusy(f"{STEP_TRIES_MAX} others were faster to draw numbers of {group!r}", 0.0)
