"""A leased consumer whose answers are lost on its way out: what it let go of is free all the same, at once.

Defends invariant 5: the timeout is half a minute, so whatever the next owner gets sooner was handed over, and
it goes on from the last checkpoint that came with the release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shoal import Hub
from shoal.consumer import LeasedMembership
from shoal.core.errors import NameTaken
from shoal.core.lease import Change, ChangeKind
from shoal.core.leasing import Outcome
from shoal.core.model import ShardId
from shoal.lease_port import Tried
from shoal.testing.members import eventually, holds

STREAM, GROUP = "orders", "billing"


class Losing:
    """A table that loses answers: of changes that `are_lost` once, before or after they were carried out."""

    def __init__(self, table: Any, kind: ChangeKind, *, is_in: bool) -> None:
        self._table, self._kind, self._is_in = table, kind, is_in
        self.lost = 0

    def attempt(self, group: str, changes: Sequence[Change], *, together: bool = False) -> Sequence[Tried]:
        if not self.lost and any(change.kind is self._kind for change in changes):
            self.lost += 1
            if self._is_in:
                self._table.attempt(group, changes, together=together)
            return [Tried(change, Outcome.UNKNOWN) for change in changes]
        found: Sequence[Tried] = self._table.attempt(group, changes, together=together)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


def lose(member: LeasedMembership, kind: ChangeKind, *, is_in: bool) -> Losing:
    losing = Losing(member._table, kind, is_in=is_in)
    member._table = losing
    return losing


@pytest.fixture
def join(hub: Hub) -> Callable[[str], LeasedMembership]:
    hub.create_stream(STREAM, shards=1)
    hub.append(STREAM, 0, [b"x"] * 10)
    hub.create_group(STREAM, GROUP, coordination="leased", timeout=30)

    def join(name: str) -> LeasedMembership:
        member = hub.join_group(STREAM, GROUP, name)
        assert isinstance(member, LeasedMembership)
        return member

    return join


Join = Callable[[str], LeasedMembership]


@pytest.mark.parametrize("is_in", [True, False], ids=["in", "not in"])
@pytest.mark.parametrize("kind", [ChangeKind.RELEASE, ChangeKind.LEAVE])
def test_a_leave_whose_answer_is_lost_is_said_again(join: Join, kind: ChangeKind, *, is_in: bool) -> None:
    anna = join("anna")
    holds(anna, [0])
    bert = join("bert")
    losing = lose(anna, kind, is_in=is_in)
    anna.leave({0: 7})
    holds(bert, [0])
    assert losing.lost == 1
    assert bert.leases[next(iter(bert.leases))].checkpoint == 7


@pytest.mark.parametrize("is_in", [True, False], ids=["in", "not in"])
def test_a_release_whose_answer_is_lost_is_said_again_by_the_leave_that_follows(
    hub: Hub, join: Join, *, is_in: bool
) -> None:
    anna = join("anna")
    holds(anna, [0])
    losing = lose(anna, ChangeKind.RELEASE, is_in=is_in)
    anna.release({0: 7})
    anna.leave()
    assert losing.lost == 1
    (shard,) = hub.describe_group(STREAM, GROUP).shards
    assert (shard.owner, shard.checkpoint) == (None, 7)
    bert = join("bert")
    holds(bert, [0])


def test_one_that_was_barred_says_its_release_again_until_it_is_heard(join: Join) -> None:
    older = join("anna")
    holds(older, [0])
    newer = join("anna")
    eventually(lambda: isinstance(older.error, NameTaken), "the older one is told")
    losing = lose(older, ChangeKind.RELEASE, is_in=False)
    older.release({0: 7})
    assert losing.lost == 1
    holds(newer, [0])
    assert newer.leases[next(iter(newer.leases))].checkpoint == 7


def test_a_take_that_is_answered_to_a_later_life_of_its_consumer_is_not_held_by_it(
    hub: Hub, join: Join
) -> None:
    """1. A life thinks out a take. 2. It is buried, and the membership comes back as another. 3. The take is
    in, under the old one's name: nobody acts on it, and it comes free after the watch."""
    hub.update_group(STREAM, GROUP, timeout=1.0)
    holder = join("holder")
    holds(holder, [0])
    anna = join("anna")
    first = anna.incarnation
    held: list[int] = []

    def bury_and_come_back() -> None:
        (row,) = (row for row in anna._table.instances(anna._key) if row.name == "anna")
        anna._table.delete(row)
        anna._renew()
        anna._renew()
        held.append(len(anna.leases))

    anna._table = Waylaid(anna._table, ChangeKind.TAKE, bury_and_come_back)
    holder.leave()
    eventually(lambda: held == [0], "it came back in the midst of its take")
    assert anna.incarnation != first
    row = anna._table.load(anna._key, ShardId(0))
    if row is not None and row.consumer_owner == first:
        assert not anna.may_act(0, row.owner_epoch)
        assert 0 not in anna.leases
    holds(anna, [0])
    assert anna._table.load(anna._key, ShardId(0)).consumer_owner == anna.incarnation


class Waylaid:
    """A table that has something else happen before the first change of a kind."""

    def __init__(self, table: Any, kind: ChangeKind, happens: Callable[[], None]) -> None:
        self._table, self._kind, self._happens = table, kind, [happens]

    def attempt(self, group: str, changes: Sequence[Change], *, together: bool = False) -> Sequence[Tried]:
        if self._happens and any(change.kind is self._kind for change in changes):
            self._happens.pop()()
        found: Sequence[Tried] = self._table.attempt(group, changes, together=together)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)
