"""A membership whose hub raises what nobody foresaw: it goes on after a moment of that, and ends for good."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import shoal
from shoal import Hub
from shoal.consumer import CoordinatedMembership, LeasedMembership, Membership
from shoal.core.errors import MembershipFailed, NotOwner, StoreUnavailable
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.ports import HubService
from shoal.testing.members import eventually, holds


class Faulty:
    """A part of a hub of which some calls raise, so many times."""

    def __init__(self, part: object, *calls: str, **parts: object) -> None:
        self._part, self._calls = part, calls
        self.faults_left = 0
        self.error: Exception = TypeError("nobody foresaw this")
        self.__dict__.update(parts)

    def __getattr__(self, name: str) -> Any:
        if name in self._calls and self.faults_left:
            self.faults_left -= 1
            raise self.error
        return getattr(self._part, name)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with shoal.connect(f"sqlite:///{tmp_path / 'shoal.db'}") as hub:
        hub.create_stream("orders", shards=2)
        yield hub


@pytest.fixture
def faulty(hub: Hub) -> Faulty:
    """The hub's groups."""
    return Faulty(hub.service.groups, "beat", "find")


@pytest.fixture(params=["coordinated", "leased"])
def anna(request: pytest.FixtureRequest, hub: Hub, faulty: Faulty) -> Iterator[Membership]:
    """A consumer of that hub, which beats often and holds all there is."""
    hub.create_group("orders", "billing", timeout=5, coordination=request.param)
    service = cast("HubService", Faulty(hub.service, groups=faulty))
    name = stream_name("orders")
    member: Membership
    if request.param == "leased":
        group = hub.service.groups.find(name, "billing")
        member = LeasedMembership(service, name, group, "anna", interval_ms=20)
    else:
        member = CoordinatedMembership(service, name, "billing", "anna", interval_ms=20)
    holds(member, [0, 1])
    yield member
    member.abandon()


def test_a_moment_of_it_is_survived(anna: Membership, faulty: Faulty) -> None:
    faulty.faults_left = 2
    eventually(lambda: faulty.faults_left == 0, "the faults are over")
    anna.checkpoint({0: 0})
    anna.leave()
    assert anna.error is None


def test_one_that_stays_ends_the_membership_and_wakes_who_waits(anna: Membership, faulty: Faulty) -> None:
    seen = anna.wait(0, 0)
    faulty.faults_left = 10**6
    assert anna.wait(seen, 20) > seen
    assert isinstance(anna.error, MembershipFailed)
    assert "TypeError: nobody foresaw this" in str(anna.error)
    assert anna.leases == {}
    assert not anna.may_act(0, 1)


def test_what_is_meant_for_an_epoch_that_is_not_held_changes_nothing(anna: Membership, hub: Hub) -> None:
    """Whoever had the shard before, in the same consumer, saves nothing and lets go of nothing."""
    hub.append("orders", 0, ["a", "b"])
    epoch = anna.leases[ShardId(0)].epoch
    with pytest.raises(NotOwner):
        anna.checkpoint({0: 2}, epochs={0: epoch - 1})
    anna.release({0: 2, 1: None}, epochs={0: epoch - 1, 1: epoch - 1})
    assert sorted(anna.leases) == [0, 1]
    assert anna.leases[ShardId(0)].epoch == epoch
    anna.checkpoint({0: 1}, epochs={0: epoch})
    anna.release({0: 2}, epochs={0: epoch})
    eventually(lambda: 0 in anna.leases and anna.leases[ShardId(0)].checkpoint == 2, "it comes again", 10)


def test_a_shard_of_a_leased_group_is_let_go_of_while_the_store_is_away(hub: Hub) -> None:
    hub.create_group("orders", "billing", timeout=5, coordination="leased")
    hub.append("orders", 0, ["a", "b"])
    service = Faulty(hub.service, "refresh_stream")
    service.error = StoreUnavailable("away")
    name = stream_name("orders")
    group = hub.service.groups.find(name, "billing")
    with LeasedMembership(cast("HubService", service), name, group, "anna", interval_ms=20) as anna:
        holds(anna, [0, 1])
        epoch = anna.leases[ShardId(0)].epoch
        service.faults_left = 10**9
        anna.release({0: 2})
        service.faults_left = 0
        eventually(lambda: 0 in anna.leases and anna.leases[ShardId(0)].epoch > epoch, "it comes again", 10)
        assert anna.leases[ShardId(0)].checkpoint == 2
