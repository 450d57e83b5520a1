"""Coordinated groups, call by call: heartbeats, numbers, names, deaths, single checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal import Hub
from shoal.core.checkpoint import Save
from shoal.core.errors import (
    CheckpointBackwards,
    Fenced,
    HeartbeatOutdated,
    InvalidInput,
    NameTaken,
    NotOwner,
    OffsetOutOfRange,
    UnknownConsumer,
    UnknownGroup,
)
from shoal.core.events import Letting
from shoal.core.membership import Beat
from shoal.core.model import ShardId, StreamName
from shoal.core.names import stream_name
from shoal.ports import GroupService, Newcomer
from shoal.testing.contract.suite import HubSuite
from shoal.testing.members import eventually, holds

QUICK = 0.6
"""A timeout that a test can wait for."""


class _Raw:
    """A consumer that speaks the calls itself, one heartbeat at a time."""

    def __init__(self, hub: Hub, stream: str, name: str, incarnation: str, group: str = "billing") -> None:
        self.groups: GroupService = hub.service.groups
        self.stream: StreamName = stream_name(stream)
        self.incarnation = incarnation
        self.joined = self.groups.join(self.stream, group, Newcomer(name=name, incarnation=incarnation))
        self.number = 0
        self.held: dict[ShardId, int] = {}
        self.seen = 0

    def beat(self, *, number: int | None = None, held: dict[int, int] | None = None) -> set[int]:
        """Beat, and take what is given; the shards that are wanted of this consumer."""
        self.number = self.number + 1 if number is None else number
        reported = self.held if held is None else {ShardId(shard): epoch for shard, epoch in held.items()}
        answer = self.groups.beat(
            self.stream,
            self.joined.group_id,
            Beat(
                incarnation=self.incarnation,
                number=self.number,
                timeout_ms=self.joined.timeout_ms,
                interval_ms=self.joined.interval_ms,
                held=reported,
                seen=self.seen,
            ),
        )
        self.seen = answer.version
        if answer.granted is not None:
            self.held = {grant.shard: grant.epoch for grant in answer.granted}
            self.wanted = {int(grant.shard) for grant in answer.granted if grant.is_wanted}
        return self.wanted

    def save(self, shard: int, epoch: int, offset: int) -> None:
        save = Save(shard=ShardId(shard), epoch=epoch, offset=offset)
        self.groups.save(self.stream, self.joined.group_id, [save])

    def release(self, shard: int, epoch: int, checkpoint: int | None = None) -> list[int]:
        letting = Letting(shard=ShardId(shard), epoch=epoch, checkpoint=checkpoint)
        return [int(s) for s in self.groups.release(self.joined.group_id, self.incarnation, [letting])]


class BeatContract(HubSuite):
    @pytest.fixture
    def billed(self, hub: Hub, orders: str) -> str:
        """A stream of four shards with ten records in each, and a coordinated group on it."""
        hub.create_stream(orders, shards=4)
        for shard in range(4):
            hub.append(orders, shard, [b"%d" % i for i in range(10)])
        hub.create_group(orders, "billing", timeout=10)
        return orders

    # --- Death and names. ---

    def test_a_silent_consumer_is_expired_and_its_shards_go_on_elsewhere(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=QUICK)
        dead = _Raw(hub, orders, "dead", "dead-1")
        assert dead.beat() == {0, 1}
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0, 1])
            with pytest.raises(UnknownConsumer):
                dead.beat()
            with pytest.raises(Fenced):
                dead.save(0, dead.held[ShardId(0)], 0)
            assert dead.release(0, dead.held[ShardId(0)]) == []
            kinds = [note.kind for _, note in hub.group_history(orders, "billing")]
            assert "expired" in kinds

    def test_heartbeats_that_are_refused_do_not_end_the_watch_over_the_dead(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=QUICK)
        dead = _Raw(hub, orders, "dead", "dead-1")
        dead.beat()
        stranger = Beat(incarnation="nobody", number=1, timeout_ms=1, interval_ms=1, held={}, seen=0)

        def is_over() -> bool:
            with pytest.raises(UnknownConsumer):
                dead.groups.beat(dead.stream, dead.joined.group_id, stranger)
            return not hub.describe_group(orders, "billing").members

        eventually(is_over, "the silent consumer is expired")

    def test_a_newer_process_bars_the_older_of_its_name_and_waits_for_what_that_holds(
        self, hub: Hub, billed: str
    ) -> None:
        old = _Raw(hub, billed, "anna", "anna-old")
        assert old.beat() == {0, 1, 2, 3}
        new = _Raw(hub, billed, "anna", "anna-new")
        with pytest.raises(NameTaken, match="anna"):
            old.beat()
        assert new.beat() == set()
        for shard, epoch in old.held.items():
            assert old.release(shard, epoch, 5) == [shard]
        assert new.beat() == {0, 1, 2, 3}
        assert all(new.held[shard] > epoch for shard, epoch in old.held.items())
        with pytest.raises((NameTaken, UnknownConsumer)):
            old.beat()
        with pytest.raises((NameTaken, UnknownConsumer)):
            old.groups.join(old.stream, "billing", Newcomer(name="anna", incarnation="anna-old"))

    def test_one_that_comes_back_does_not_take_its_name_from_who_has_it_now(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=10)
        _Raw(hub, orders, "anna", "anna-2")
        back = Newcomer(name="anna", incarnation="anna-3", is_again=True)
        with pytest.raises(NameTaken):
            hub.service.groups.join(stream_name(orders), "billing", back)

    def test_one_that_comes_back_to_a_group_made_anew_is_told_that_its_own_is_gone(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        for coordination in ("coordinated", "leased"):
            hub.create_group(orders, "billing", timeout=10)
            anna = _Raw(hub, orders, "anna", "anna-1")
            hub.delete_group(orders, "billing", force=True)
            hub.create_group(orders, "billing", timeout=10, coordination=coordination)
            back = Newcomer(name="anna", incarnation="anna-2", is_again=True, group_id=anna.joined.group_id)
            with pytest.raises(UnknownGroup, match="billing"):
                hub.service.groups.join(stream_name(orders), "billing", back)
            hub.delete_group(orders, "billing")

    def test_one_that_comes_back_beats_as_often_as_a_timeout_allows_that_was_shortened_meanwhile(
        self, hub: Hub, billed: str
    ) -> None:
        back = Newcomer(name="anna", incarnation="anna-2", interval_ms=6000)
        hub.update_group(billed, "billing", timeout=2)
        with pytest.raises(InvalidInput, match="heartbeat_interval"):
            hub.service.groups.join(stream_name(billed), "billing", back)
        joined = hub.service.groups.join(stream_name(billed), "billing", replace(back, is_again=True))
        assert (joined.timeout_ms, joined.interval_ms) == (2000, 1000)

    def test_the_hub_makes_nobody_a_member_of_a_group_that_is_leased(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=10, coordination="leased")
        with pytest.raises(InvalidInput, match="coordination='leased'"):
            _Raw(hub, orders, "anna", "anna-1")
        assert hub.describe_group(orders, "billing").members == ()

    # --- Heartbeats. ---

    def test_a_heartbeat_that_is_not_newer_changes_nothing(self, hub: Hub, billed: str) -> None:
        anna = _Raw(hub, billed, "anna", "anna-1")
        anna.beat(number=5)
        for number in (5, 4, 0, -1):
            with pytest.raises(HeartbeatOutdated):
                anna.beat(number=number)
        anna.beat(number=6)

    def test_heartbeats_for_shards_that_are_not_there_or_anothers_are_refused(
        self, hub: Hub, billed: str
    ) -> None:
        anna = _Raw(hub, billed, "anna", "anna-1")
        anna.beat()
        bert = _Raw(hub, billed, "bert", "bert-1")
        bert.beat()
        for held in ({99: 1}, {0: anna.held[ShardId(0)]}, {0: 10**9}):
            with pytest.raises(NotOwner):
                bert.beat(held=held)
        with pytest.raises(UnknownConsumer):
            _Raw(hub, billed, "carl", "carl-1").groups.beat(
                anna.stream,
                anna.joined.group_id,
                Beat(incarnation="nobody", number=1, timeout_ms=1000, interval_ms=100, held={}, seen=0),
            )

    def test_a_heartbeat_cannot_count_by_a_longer_timeout_than_the_groups(
        self, hub: Hub, billed: str
    ) -> None:
        anna = _Raw(hub, billed, "anna", "anna-1")
        anna.beat()
        beat = Beat(
            incarnation="anna-1", number=2, timeout_ms=10_001, interval_ms=100, held={}, seen=anna.seen
        )
        with pytest.raises(InvalidInput, match="timeout="):
            anna.groups.beat(anna.stream, anna.joined.group_id, beat)

    def test_a_report_that_the_group_does_not_agree_with_is_answered_in_full_until_it_does(
        self, hub: Hub, billed: str
    ) -> None:
        anna = _Raw(hub, billed, "anna", "anna-1")
        anna.beat()
        for _ in range(3):
            anna.held = {}
            anna.beat()
            assert sorted(anna.held) == [0, 1, 2, 3], "as if it had let go, and the store forgot it"

    # --- Checkpoints and fences. ---

    def test_an_owner_saves_its_checkpoint_and_nobody_else_does(self, hub: Hub, billed: str) -> None:
        anna = _Raw(hub, billed, "anna", "anna-1")
        anna.beat()
        epoch = anna.held[ShardId(2)]
        hub.checkpoint(billed, "billing", 2, 7, epoch=epoch)
        shard = hub.describe_group(billed, "billing").shards[2]
        assert (shard.checkpoint, shard.lag) == (7, 3)
        assert shard.lag_s > 0
        with pytest.raises(CheckpointBackwards):
            anna.save(2, epoch, 6)
        with pytest.raises(OffsetOutOfRange):
            anna.save(2, epoch, 11)
        with pytest.raises(Fenced):
            anna.save(2, epoch - 1, 8)
        with pytest.raises(Fenced):
            anna.save(2, epoch + 1, 8)
        anna.save(2, epoch, 7)
        anna.release(2, epoch)
        with pytest.raises((Fenced, NotOwner)):
            anna.save(2, epoch, 8)
        assert hub.describe_group(billed, "billing").shards[2].checkpoint == 7

    def test_a_release_with_a_checkpoint_that_goes_back_or_nowhere_is_refused(
        self, hub: Hub, billed: str
    ) -> None:
        anna = _Raw(hub, billed, "anna", "anna-1")
        anna.beat()
        epoch = anna.held[ShardId(0)]
        anna.save(0, epoch, 5)
        with pytest.raises(CheckpointBackwards):
            anna.release(0, epoch, 4)
        with pytest.raises(OffsetOutOfRange):
            anna.release(0, epoch, 11)
        assert hub.describe_group(billed, "billing").shards[0].owner == "anna"
