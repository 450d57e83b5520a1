"""One owner per shard, in both kinds of group: joins, hand-overs, leaves, splits, resets; what is fenced."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal import Hub
from shoal.consumer import Membership
from shoal.core.balance import balanced
from shoal.core.errors import (
    Fenced,
    InvalidInput,
    NameTaken,
    NotOwner,
    OffsetOutOfRange,
    OtherLeaseStore,
    ShoalError,
    UnknownGroup,
)
from shoal.core.group import GroupSettings
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.members import eventually, hand_over, holds, settle

QUICK = 0.6
"""A timeout that a test can wait for."""


def _expire(hub: Hub, stream: str, member: Membership) -> None:
    """Whoever watched has seen enough: it is no member any more, and has not heard of it yet."""
    groups = hub.service.groups
    group = groups.find(stream_name(stream), member.group)
    if group.settings.coordination == "coordinated":
        groups.leave(group.id, member.incarnation, ())
        return
    leased = groups.leased(group)
    eventually(
        lambda: any(
            leased.table.delete(row)
            for row in leased.table.instances(leased.key)
            if row.incarnation == member.incarnation
        ),
        f"the row of {member.name} is removed",
    )


class OwnershipContract(HubSuite):
    @pytest.fixture(params=["coordinated", "leased"])
    def coordination(self, request: pytest.FixtureRequest) -> str:
        """Both kinds of group keep the same promises."""
        found: str = request.param
        return found

    @pytest.fixture
    def stream(self, hub: Hub, orders: str, coordination: str) -> str:
        """A stream of four shards with ten records in each, and a group on it."""
        hub.create_stream(orders, shards=4)
        for shard in range(4):
            hub.append(orders, shard, [b"%d" % i for i in range(10)])
        hub.create_group(orders, "billing", timeout=10, coordination=coordination)
        return orders

    # --- Joining and handing over. ---

    def test_the_first_consumer_holds_everything_each_under_an_epoch_of_its_own(
        self, hub: Hub, stream: str
    ) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            assert len({lease.epoch for lease in anna.leases.values()}) == 4
            info = hub.describe_group(stream, "billing")
            assert info.state == "stable"
            assert [(member.name, member.shards) for member in info.members] == [("anna", 4)]
            assert {shard.owner for shard in info.shards} == {"anna"}

    def test_a_shard_moves_only_after_its_owner_let_go_and_goes_on_at_the_released_checkpoint(
        self, hub: Hub, stream: str
    ) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            bert = hub.join_group(stream, "billing", "bert")
            eventually(
                lambda: sum(lease.is_wanted for lease in anna.leases.values()) == 2, "anna is asked for two"
            )
            info = hub.describe_group(stream, "billing")
            moving = {shard.id: shard for shard in info.shards if shard.state == "transfer"}
            assert info.state == "moving"
            assert {(shard.owner, shard.next) for shard in moving.values()} == {("anna", "bert")}
            assert all("anna to let go" in shard.waiting_for for shard in moving.values())
            assert bert.leases == {}
            before = {shard: anna.leases[shard].epoch for shard in moving}
            assert hand_over(anna, 6) == set(moving)
            holds(bert, moving)
            for shard, lease in bert.leases.items():
                assert lease.checkpoint == 6
                assert lease.epoch > before[shard]
            holds(anna, set(range(4)) - set(moving))
            bert.leave()

    def test_leaving_hands_everything_over_at_once(self, hub: Hub, stream: str) -> None:
        with hub.join_group(stream, "billing", "bert") as bert:
            anna = hub.join_group(stream, "billing", "anna")
            held = settle(hub, stream, "billing", [anna, bert])
            anna.leave(dict.fromkeys(held["anna"], 4))
            holds(bert, range(4))
            assert {bert.leases[ShardId(shard)].checkpoint for shard in held["anna"]} == {4}
            assert [member.name for member in hub.describe_group(stream, "billing").members] == ["bert"]

    def test_one_that_leaves_while_it_is_still_taking_leaves_nothing_behind(
        self, hub: Hub, stream: str
    ) -> None:
        for pause_s in (0.0, 0.005, 0.01, 0.02, 0.04):
            anna = hub.join_group(stream, "billing", "anna")
            anna.wait(10**9, pause_s)
            anna.leave()
            info = hub.describe_group(stream, "billing")
            assert {shard.owner for shard in info.shards} == {None}
            assert info.state == "empty"

    def test_one_that_retires_drains_while_the_next_ones_wait_for_each_shard(
        self, hub: Hub, stream: str
    ) -> None:
        with (
            hub.join_group(stream, "billing", "anna") as anna,
            hub.join_group(stream, "billing", "bert") as bert,
        ):
            settle(hub, stream, "billing", [anna, bert])
            anna.retire()
            eventually(lambda: not any(x.is_wanted for x in anna.leases.values()), "anna is asked for all")
            first, *rest = sorted(anna.leases)
            anna.release({first: 9})
            eventually(lambda: first in bert.leases, "bert has the first while anna drains the rest")
            assert sorted(anna.leases) == rest
            hand_over(anna, 9)
            holds(bert, range(4))

    def test_counts_stay_within_one_and_only_what_must_move_does(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=10)
        hub.create_group(orders, "billing", timeout=10, coordination=coordination)
        members = [hub.join_group(orders, "billing", f"c{i}") for i in range(3)]
        held = settle(hub, orders, "billing", members)
        assert sorted(map(len, held.values())) == [3, 3, 4]
        members.append(hub.join_group(orders, "billing", "c3"))
        after = settle(hub, orders, "billing", members)
        assert sorted(map(len, after.values())) == [2, 2, 3, 3]
        moved = sum(len(held[name] - after[name]) for name in held)
        assert moved == len(after["c3"]) == 2
        for member in members:
            member.leave()

    @pytest.mark.parametrize("strategy", ["range", "round_robin"])
    def test_other_strategies_settle_too(self, hub: Hub, orders: str, strategy: str) -> None:
        hub.create_stream(orders, shards=5)
        hub.create_group(orders, "billing", timeout=10, strategy=strategy)
        members = [hub.join_group(orders, "billing", name) for name in ("a", "b")]
        held = settle(hub, orders, "billing", members)
        wanted = {
            "range": {"a": {0, 1}, "b": {2, 3, 4}},
            "round_robin": {"a": {0, 2, 4}, "b": {1, 3}},
        }
        assert held == wanted[strategy]
        for member in members:
            member.leave()

    def test_a_strategy_of_ones_own_decides_and_its_faults_change_nothing(
        self, orders: str, connect_again: ConnectAgain
    ) -> None:
        answers = {"all-to-first": lambda shards, members, _: dict.fromkeys(shards, min(members))}
        answers["forgetful"] = lambda shards, members, _: dict.fromkeys(list(shards)[1:], min(members))
        hub = connect_again(strategies=answers)
        hub.create_stream(orders, shards=3)
        hub.create_group(orders, "billing", strategy="all-to-first")
        with hub.join_group(orders, "billing", "b") as second:
            holds(second, range(3))
            with hub.join_group(orders, "billing", "a") as first:
                eventually(lambda: bool(hand_over(second)), "b is asked for everything")
                holds(first, range(3))
                assert second.leases == {}
        hub.create_group(orders, "broken", strategy="forgetful")
        with pytest.raises(ShoalError, match="left out the shards"):
            hub.join_group(orders, "broken", "a")
        assert hub.describe_group(orders, "broken").members == ()

    def test_what_a_process_without_the_strategy_leaves_open_another_one_decides(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        knowing = connect_again(strategies={"mine": balanced})
        knowing.create_stream(orders, shards=4)
        knowing.create_group(orders, "billing", strategy="mine", timeout=1.0, in_order=False)
        with knowing.join_group(orders, "billing", "anna") as anna:
            holds(anna, range(4))
            bert = hub.join_group(orders, "billing", "bert")
            held = settle(hub, orders, "billing", [anna, bert])
            assert sorted(map(len, held.values())) == [2, 2]
            hub.split_shard(orders, 0)
            settle(hub, orders, "billing", [anna, bert])
            bert.leave()
            holds(anna, range(1, 6))
        with hub.join_group(orders, "billing", "carl"):  # Nobody who knows it is there any more.
            reasons = {shard.waiting_for for shard in hub.describe_group(orders, "billing").shards[1:]}
            assert reasons == {"a process that knows strategy 'mine', or for that one to give a right answer"}

    def test_a_strategy_that_fails_once_is_asked_again(
        self, orders: str, connect_again: ConnectAgain
    ) -> None:
        is_broken = threading.Event()

        def moody(shards: Any, members: Any, held: Any) -> dict[ShardId, str]:
            if is_broken.is_set():
                raise RuntimeError("not today")
            return balanced(shards, members, held)

        hub = connect_again(strategies={"moody": moody})
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", strategy="moody", timeout=1.0)
        with hub.join_group(orders, "billing", "anna") as anna:
            bert = hub.join_group(orders, "billing", "bert")
            settle(hub, orders, "billing", [anna, bert])
            is_broken.set()
            bert.leave()
            assert len(anna.leases) == 1
            is_broken.clear()
            holds(anna, [0, 1])

    def test_two_memberships_of_one_name_end_with_the_newer_one(self, hub: Hub, stream: str) -> None:
        older = hub.join_group(stream, "billing", "anna", heartbeat_interval=0.1)
        holds(older, range(4))
        with hub.join_group(stream, "billing", "anna", heartbeat_interval=0.1) as newer:
            eventually(lambda: isinstance(older.error, NameTaken), "the older one is told")
            assert not any(lease.is_wanted for lease in older.leases.values())
            assert newer.error is None

    def test_checkpoints_that_are_saved_together_are_saved_all_or_none(self, hub: Hub, stream: str) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            with pytest.raises(OffsetOutOfRange):
                anna.checkpoint({0: 5, 1: 99})
            assert {shard.checkpoint for shard in hub.describe_group(stream, "billing").shards} == {0}
            anna.checkpoint({0: 5, 1: 6})
            found = [shard.checkpoint for shard in hub.describe_group(stream, "billing").shards]
            assert found == [5, 6, 0, 0]

    def test_a_read_shows_its_epoch_and_is_refused_once_that_is_not_current(
        self, hub: Hub, stream: str
    ) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            epoch = anna.leases[ShardId(1)].epoch
            assert len(hub.read(stream, 1, 0, group="billing", epoch=epoch)) == 10
            of_numpy: Any = np.int64(epoch)
            assert len(hub.read(stream, 1, 0, group="billing", epoch=of_numpy)) == 10
            hub.checkpoint(stream, "billing", 1, 0, epoch=of_numpy)
            with pytest.raises(InvalidInput, match="show the epoch of your lease, or use force"):
                hub.checkpoint(stream, "billing", 1, 0)
            with pytest.raises(Fenced):
                hub.read(stream, 1, 0, group="billing", epoch=epoch - 1)
            with pytest.raises(Fenced):
                hub.read(stream, 1, 0, group="billing", epoch=epoch + 1)
            anna.release({1: None})
            with pytest.raises((Fenced, NotOwner)):
                hub.read(stream, 1, 0, group="billing", epoch=epoch)
            assert len(hub.read(stream, 1, 0)) == 10
            with pytest.raises(InvalidInput, match="epoch="):
                hub.read(stream, 1, 0, group="billing")

    # --- Ends, splits, merges. ---

    def test_children_are_given_out_when_all_their_ancestors_have_been_read(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.append(orders, 0, [b"a"] * 3)
        hub.append(orders, 1, [b"b"] * 2)
        hub.create_group(orders, "billing", timeout=10, coordination=coordination)
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0, 1])
            child = hub.merge_shards(orders, 0, 1).id
            assert (
                hub.describe_group(orders, "billing").shards[child].waiting_for
                == "its ancestors [0, 1] to end"
            )
            anna.checkpoint({0: 3})
            holds(anna, [1])
            anna.checkpoint({1: 1})
            assert hub.describe_group(orders, "billing").shards[child].state == "wait"
            anna.checkpoint({1: 2})
            holds(anna, [child])
            info = hub.describe_group(orders, "billing")
            assert [str(shard.state) for shard in info.shards] == ["over", "over", "already_alloc"]

    def test_a_shard_that_holds_nothing_is_over_as_soon_as_it_is_closed(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=10, coordination=coordination)
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            for _ in range(3):  # A chain of empty shards: 0, then 1 and 2, and so on.
                hub.split_shard(orders, hub.describe_stream(orders).open_shards[0].id)
            open_ones = {shard.id for shard in hub.describe_stream(orders).open_shards}
            holds(anna, open_ones)

    def test_a_group_without_order_reads_parents_and_children_at_once(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        hub.create_group(orders, "billing", in_order=False, timeout=10, coordination=coordination)
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            hub.split_shard(orders, 0)
            holds(anna, [0, 1, 2])

    def test_a_group_that_becomes_ordered_binds_only_shards_that_are_born_later(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        hub.create_group(orders, "billing", in_order=False, timeout=10, coordination=coordination)
        left, right = hub.split_shard(orders, 0)
        hub.append(orders, left.id, [b"b"])
        hub.update_group(orders, "billing", in_order=True)  # Nobody has looked at the children yet.
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0, left.id, right.id])
            hub.split_shard(orders, left.id)
            eventually(lambda: len(hub.describe_group(orders, "billing").shards) == 5, "children are seen")
            states = [str(shard.state) for shard in hub.describe_group(orders, "billing").shards]
            assert states == [*["already_alloc"] * 3, "wait", "wait"]
        hub.update_group(orders, "billing", in_order=False)  # What waited is released, and stays so.
        hub.update_group(orders, "billing", in_order=True)
        with hub.join_group(orders, "billing", "bert") as bert:
            holds(bert, range(5))

    def test_a_member_hears_what_a_group_that_was_unordered_for_a_moment_has_released(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        hub.create_group(orders, "billing", timeout=1.0, coordination=coordination)
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            hub.split_shard(orders, 0)
            hub.update_group(orders, "billing", in_order=False)
            hub.update_group(orders, "billing", in_order=True)
            holds(anna, [0, 1, 2])

    # --- Going back. ---

    def test_what_is_to_come_again_counts_before_its_owner_has_let_go(self, hub: Hub, stream: str) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            anna.checkpoint({0: 10})
            eventually(lambda: hub.describe_group(stream, "billing").shards[1].lag_s > 0, "time passes")
            shard = hub.describe_group(stream, "billing").shards[0]
            assert (shard.lag, shard.lag_s) == (0, 0.0)
            hub.checkpoint(stream, "billing", 0, 3, force=True)
            shard = hub.describe_group(stream, "billing").shards[0]
            assert (shard.state, shard.lag, shard.lag_s > 0) == ("transfer", 7, True)

    def test_a_forced_checkpoint_opens_a_shard_again_that_was_over(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"] * 4)
        hub.create_group(orders, "billing", timeout=10, coordination=coordination)
        left, right = hub.split_shard(orders, 0)
        hub.append(orders, left.id, [b"b"] * 2)
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            anna.checkpoint({0: 4})
            holds(anna, [left.id, right.id])
            anna.checkpoint({left.id: 1})
            assert hub.checkpoint(orders, "billing", 0, 2, force=True) == [left.id]
            # Its children are held: they are fenced at once, and wait anew once they are let go of.
            with pytest.raises(Fenced):
                anna.checkpoint({left.id: 2})
            eventually(lambda: hand_over(anna) != set() or len(anna.leases) == 1, "children are let go of")
            eventually(lambda: bool(hand_over(anna)) or set(anna.leases) == {0}, "only shard 0 is held")
            holds(anna, [0])
            assert anna.leases[ShardId(0)].checkpoint == 2
            info = hub.describe_group(orders, "billing")
            assert [str(s.state) for s in info.shards] == ["already_alloc", "wait", "wait"]
            anna.checkpoint({0: 4})
            holds(anna, [left.id, right.id])
            assert anna.leases[left.id].checkpoint == 1

    def test_a_reset_goes_back_into_a_shard_that_was_done_with_long_ago(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        """A leased group has cleaned up by then: what was done is made again, and its children wait."""
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"] * 4)
        hub.create_group(orders, "billing", timeout=10, coordination=coordination)
        left, right = hub.split_shard(orders, 0)
        for child in (left, right):
            hub.append(orders, child.id, [b"b"] * 2)
        deep = hub.split_shard(orders, left.id)

        def told() -> set[tuple[str, int | None]]:
            return {(note.kind, note.shard) for _, note in hub.group_history(orders, "billing")}

        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            anna.checkpoint({0: 4})
            holds(anna, [left.id, right.id])
            anna.checkpoint({left.id: 2, right.id: 1})
            holds(anna, [right.id, *(shard.id for shard in deep)])
            if coordination == "leased":
                eventually(lambda: ("cleaned", 0) in told(), "its row is cleaned up")
            assert hub.checkpoint(orders, "billing", 0, 1, force=True) == [left.id, right.id]
            with pytest.raises(Fenced):
                anna.checkpoint({right.id: 2})
            eventually(lambda: hand_over(anna) == set() and set(anna.leases) == {0}, "only shard 0 is held")
            assert anna.leases[ShardId(0)].checkpoint == 1
            states = [str(shard.state) for shard in hub.describe_group(orders, "billing").shards]
            assert (states[0], states[right.id]) == ("already_alloc", "wait")
            anna.checkpoint({0: 4})
            holds(anna, [right.id, *(shard.id for shard in deep)])
            assert anna.leases[right.id].checkpoint == 1
            assert ("rewound", 0) in told()

    def test_a_reset_under_a_living_owner_fences_it_at_once_and_begins_when_it_let_go(
        self, hub: Hub, stream: str
    ) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            anna.checkpoint(dict.fromkeys(range(4), 8))
            epochs = {shard: lease.epoch for shard, lease in anna.leases.items()}
            hub.reset_group(stream, "billing", to={0: 1, 1: 0})
            with pytest.raises(Fenced):
                hub.read(stream, 0, 8, group="billing", epoch=epochs[ShardId(0)])
            with pytest.raises(Fenced):
                anna.checkpoint({0: 9})
            asked: set[int] = set()

            def is_asked_for_both() -> bool:
                asked.update(hand_over(anna, 9))
                return asked == {0, 1}

            eventually(is_asked_for_both, "anna is asked for both")
            holds(anna, range(4))
            assert [anna.leases[ShardId(s)].checkpoint for s in (0, 1)] == [1, 0]
            assert all(anna.leases[ShardId(s)].epoch > epochs[ShardId(s)] for s in (0, 1))
            assert anna.leases[ShardId(2)].epoch == epochs[ShardId(2)]

    def test_a_whole_group_goes_to_earliest_and_latest(self, hub: Hub, stream: str) -> None:
        hub.reset_group(stream, "billing", to="latest")
        assert hub.describe_group(stream, "billing").lag == 0
        hub.reset_group(stream, "billing", to="earliest")
        assert hub.describe_group(stream, "billing").lag == 40

    # --- Slow owners. ---

    def test_a_living_owner_is_not_forced_without_a_handover_timeout(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=QUICK, coordination=coordination)
        with hub.join_group(orders, "billing", "slow") as slow:
            holds(slow, [0, 1])
            with hub.join_group(orders, "billing", "anna") as anna:
                slow.wait(10**9, QUICK * 4)
                assert len(slow.leases) == 2
                assert anna.leases == {}

    def test_with_a_handover_timeout_a_shard_moves_after_its_owners_deadline(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=QUICK, handover_timeout=0.2, coordination=coordination)
        with hub.join_group(orders, "billing", "slow") as slow:
            holds(slow, [0, 1])
            anna = hub.join_group(orders, "billing", "anna")
            eventually(lambda: len(anna.leases) == 1, "the shard moves")
            (shard,) = anna.leases
            eventually(lambda: shard not in slow.leases, "the slow one has lost it")
            assert not slow.may_act(shard, 1)
            assert len(slow.leases) == 1

            def kinds() -> list[str]:
                return [note.kind for _, note in hub.group_history(orders, "billing")]

            # A leased consumer writes the history after the fact.
            eventually(lambda: kinds().count("forced") == 1, "it is in the history, once")
            assert kinds().index("frozen") < kinds().index("forced")
            anna.leave()

    def test_a_handover_timeout_runs_out_however_much_else_happens_in_the_group(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=QUICK, handover_timeout=0.2, coordination=coordination)
        policies = itertools.cycle(["strict", "best_tried"])
        with hub.join_group(orders, "billing", "slow") as slow:
            holds(slow, [0, 1])
            with hub.join_group(orders, "billing", "anna") as anna:

                def has_one_after_a_change() -> bool:
                    hub.update_group(orders, "billing", failure=next(policies))
                    return len(anna.leases) == 1

                eventually(has_one_after_a_change, "the shard moves", QUICK * 10, every_s=0.02)

    # --- Deleted. ---

    @pytest.mark.parametrize("where", ["beside the log", "apart"])
    @pytest.mark.parametrize("what", ["group", "stream"])
    def test_the_rows_of_a_leased_group_go_with_it_and_with_its_stream(
        self, orders: str, connect_again: ConnectAgain, tmp_path: Path, where: str, what: str
    ) -> None:
        hub = connect_again(leases=f"sqlite:///{tmp_path / 'leases.db'}" if where == "apart" else None)
        hub.create_stream(orders, shards=3)
        hub.create_group(orders, "billing", timeout=QUICK, coordination="leased")
        leased = hub.service.groups.leased(hub.list_groups(orders)[0])
        anna = hub.join_group(orders, "billing", "anna")
        bert = hub.join_group(orders, "billing", "bert")
        settle(hub, orders, "billing", [anna, bert])
        bert.abandon()
        if what == "stream":
            hub.delete_stream(orders)
        else:
            hub.delete_group(orders, "billing", force=True)
        eventually(lambda: anna.error is not None, "anna hears of it")
        # What she made while everything was being removed, she takes along when she has heard.
        eventually(
            lambda: not leased.table.instances(leased.key) and not leased.table.list(leased.key),
            "no row is left",
        )

    # --- Settings. ---

    def test_two_who_change_different_settings_at_once_both_have_their_way(
        self, hub: Hub, stream: str, connect_again: ConnectAgain
    ) -> None:
        another = connect_again()
        calls: list[int] = []

        def change(old: GroupSettings) -> GroupSettings:
            calls.append(old.timeout_ms)
            if len(calls) == 1:
                another.update_group(stream, "billing", in_order=False, handover_timeout=3)
            return replace(old, timeout_ms=5000)

        hub.service.groups.update(stream_name(stream), "billing", change)
        settings = hub.list_groups(stream)[0].settings
        assert (settings.timeout_ms, settings.in_order, settings.handover_timeout_ms) == (5000, False, 3000)
        assert calls == [10_000, 10_000]

    # --- Expired. ---

    def test_one_with_an_interval_of_its_own_comes_back_after_the_timeout_was_shortened(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=1, coordination=coordination)
        with hub.join_group(orders, "billing", "anna", heartbeat_interval=QUICK) as anna:
            holds(anna, [0, 1])
            hub.update_group(orders, "billing", timeout=QUICK - 0.1)
            before = anna.incarnation
            _expire(hub, orders, anna)
            eventually(lambda: anna.incarnation != before, "anna joins again")
            holds(anna, [0, 1])

    # --- One table for all. ---

    def test_a_leased_groups_rows_are_looked_for_where_it_was_made_and_nowhere_else(
        self, hub: Hub, orders: str, connect_again: ConnectAgain, tmp_path: Path
    ) -> None:
        leases = f"sqlite:///{tmp_path / 'leases.db'}"
        apart, another = connect_again(leases=leases), connect_again(leases=leases)
        apart.create_stream(orders, shards=2)
        apart.create_group(orders, "billing", timeout=10, coordination="leased")
        with apart.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0, 1])
            made = apart.list_groups(orders)[0].settings
            for call in (
                lambda: hub.join_group(orders, "billing", "bert"),
                lambda: hub.describe_group(orders, "billing"),
                lambda: hub.update_group(orders, "billing", timeout=5),
                lambda: hub.reset_group(orders, "billing", "latest"),
                lambda: hub.delete_group(orders, "billing", force=True),
            ):
                with pytest.raises(OtherLeaseStore, match=r"connect\(leases=") as refused:
                    call()
                assert (refused.value.group, refused.value.wanted) == ("billing", made.lease_store)
                assert refused.value.found != made.lease_store
            assert apart.list_groups(orders)[0].settings == made
            with another.join_group(orders, "billing", "carl") as carl:
                settle(apart, orders, "billing", [anna, carl])
            hub.split_shard(orders, 0)  # The shards change all the same.

    # --- Made anew. ---

    @pytest.mark.parametrize("made_as", ["coordinated", "leased"])
    @pytest.mark.parametrize("what", ["group", "stream"])
    def test_a_member_of_a_group_that_was_deleted_is_none_of_the_next_one_of_its_name(
        self, hub: Hub, orders: str, coordination: str, made_as: str, what: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=QUICK, coordination=coordination)
        lost: list[int] = []
        anna = hub.join_group(
            orders, "billing", "anna", listener=lambda told: lost.extend(one.shard for one in told.lost)
        )
        holds(anna, [0, 1])
        if what == "group":
            hub.delete_group(orders, "billing", force=True)
        else:
            hub.delete_stream(orders)
            hub.create_stream(orders, shards=2)
        hub.create_group(orders, "billing", timeout=QUICK, coordination=made_as)
        with hub.join_group(orders, "billing", "bert") as bert:
            eventually(lambda: anna.error is not None, "anna hears of it")
            assert isinstance(anna.error, UnknownGroup)
            assert str(anna.error) == str(UnknownGroup(stream=orders, group="billing"))
            assert anna.leases == {}
            eventually(lambda: set(lost) == {0, 1}, "its listener is told of each")
            holds(bert, [0, 1])
            assert [m.name for m in hub.describe_group(orders, "billing").members] == ["bert"]
        anna.leave()

    # --- Seeing it. ---

    def test_the_history_tells_who_came_went_and_what_moved(self, hub: Hub, stream: str) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            bert = hub.join_group(stream, "billing", "bert")
            settle(hub, stream, "billing", [anna, bert])
            bert.leave()
            holds(anna, range(4))
        notes = [note for _, note in hub.group_history(stream, "billing", limit=1000)]
        told = {(note.kind, note.consumer) for note in notes}
        assert {("joined", "anna"), ("joined", "bert"), ("moving", "anna"), ("left", "bert")} <= told
        assert [n.detail for n in notes if n.kind == "moving"] == ["to bert", "to bert"]
        times = [at for at, _ in hub.group_history(stream, "billing")]
        assert times == sorted(times)

    def test_a_change_of_the_timeout_reaches_living_consumers(self, hub: Hub, stream: str) -> None:
        with hub.join_group(stream, "billing", "anna") as anna:
            holds(anna, range(4))
            hub.update_group(stream, "billing", timeout=2.0)
            eventually(
                lambda: [m.timeout_ms for m in hub.describe_group(stream, "billing").members] == [2000],
                "anna states the new timeout",
            )

    def test_consumers_in_another_hub_on_the_same_store_take_part(
        self, hub: Hub, stream: str, connect_again: ConnectAgain
    ) -> None:
        with (
            hub.join_group(stream, "billing", "anna") as anna,
            connect_again().join_group(stream, "billing", "bert") as bert,
        ):
            held = settle(hub, stream, "billing", [anna, bert])
            assert sorted(map(len, held.values())) == [2, 2]
