"""Checkpoints as consumers give them, in both kinds of group: what is one, and what a refusal costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal import Hub
from shoal.core.checkpoint import Checkpoint, beyond
from shoal.core.errors import (
    CheckpointBackwards,
    InvalidInput,
    NotOwner,
    OffsetExpired,
    OffsetOutOfRange,
)
from shoal.core.model import ShardId
from shoal.testing.contract.suite import HubSuite
from shoal.testing.members import holds

NONSENSE = ["3", True, 1.0, float("nan"), [1], np.float64(2), np.bool_(True), np.array([1, 2])]
NO_SHARDS = [True, 1.0, "0", None, float("nan")]


class CheckpointContract(HubSuite):
    @pytest.fixture(params=["coordinated", "leased"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        """Both kinds of group keep the same promises."""
        found: str = request.param
        return found

    @pytest.fixture
    def saved(self, hub: Hub, orders: str, kind: str) -> str:
        """A stream of three shards with ten records in each, and a group on it."""
        hub.create_stream(orders, shards=3)
        for shard in range(3):
            hub.append(orders, shard, [b"%d" % i for i in range(10)])
        hub.create_group(orders, "billing", timeout=10, coordination=kind)
        return orders

    def test_numbers_of_numpy_are_offsets_and_shards_like_any_other(self, hub: Hub, saved: str) -> None:
        anna = hub.join_group(saved, "billing", "anna")
        holds(anna, range(3))
        anna.checkpoint({0: np.int64(2), np.int64(1): 3})  # type: ignore[dict-item]
        anna.checkpoint({0: 3})
        epoch = anna.leases[ShardId(1)].epoch
        hub.checkpoint(saved, "billing", np.int64(1), np.int32(4), epoch=epoch)  # type: ignore[arg-type]
        anna.release({np.int64(2): np.uint8(5)})  # type: ignore[dict-item]
        assert _checkpoints(hub, saved) == [3, 4, 5]
        anna.leave({0: np.int64(6)})  # type: ignore[dict-item]
        assert _checkpoints(hub, saved) == [6, 4, 5]
        with hub.join_group(saved, "billing", "bert") as bert:
            holds(bert, range(3))
            assert [type(lease.checkpoint) for lease in bert.leases.values()] == [int] * 3

    def test_what_is_done_beyond_a_checkpoint_is_kept_with_it(self, hub: Hub, saved: str) -> None:
        with hub.join_group(saved, "billing", "anna") as anna:
            holds(anna, range(3))
            anna.checkpoint({0: Checkpoint(2, [(4, 2)])})
            anna.release({0: None, 1: Checkpoint(3, [(3, 9)])})
            holds(anna, range(3))
            assert beyond(anna.leases[ShardId(0)].checkpoint) == ((4, 2),)
            assert beyond(anna.leases[ShardId(1)].checkpoint) == ((3, 9),)

    def test_what_is_no_offset_or_no_shard_is_refused_before_anything_is_let_go_of(
        self, hub: Hub, saved: str
    ) -> None:
        with hub.join_group(saved, "billing", "anna") as anna:
            holds(anna, range(3))
            calls: list[Callable[[Any], object]] = [anna.checkpoint, anna.release, anna.leave]
            for call in calls:
                for offset in NONSENSE:
                    with pytest.raises(InvalidInput, match=r"offset=.*an offset is an int") as refused:
                        call({0: 5, 1: offset})
                    assert refused.value.value is offset
                for shard in NO_SHARDS:
                    with pytest.raises(InvalidInput, match=r"shard=.*a shard is an int"):
                        call({shard: 5})
                with pytest.raises(InvalidInput, match="checkpoints="):
                    call([1])
            with pytest.raises(InvalidInput, match="offset=None"):
                anna.checkpoint({0: None})  # type: ignore[dict-item]
            for call in calls[:2]:
                with pytest.raises(NotOwner, match=r"'anna' does not hold it .*leases"):
                    call({0: 5, 99: 1})
            assert not anna.has_left
            holds(anna, range(3))
            assert _checkpoints(hub, saved) == [0, 0, 0]

    def test_a_checkpoint_lies_within_what_its_shard_keeps_and_the_error_names_the_stream(
        self, hub: Hub, orders: str, kind: str
    ) -> None:
        hub.create_stream(orders, shards=1, retention_bytes=1)
        hub.append(orders, 0, [b"a" * 100] * 3)
        hub.create_group(orders, "billing", timeout=10, coordination=kind)
        with hub.join_group(orders, "billing", "anna") as anna:
            holds(anna, [0])
            hub.append(orders, 0, [b"b" * 100] * 3)
            hub.enforce_retention(orders)
            epoch = anna.leases[ShardId(0)].epoch
            saves: list[Callable[[int], object]] = [
                lambda at: anna.checkpoint({0: at}),
                lambda at: hub.checkpoint(orders, "billing", 0, at, epoch=epoch),
            ]
            for save in saves:
                with pytest.raises(OffsetExpired, match="offset=1") as expired:
                    save(1)
                assert (expired.value.stream, expired.value.first_offset) == (orders, 3)
                for nowhere in (-1, 7, 10**30):
                    with pytest.raises(OffsetOutOfRange) as out:
                        save(nowhere)
                    assert (out.value.stream, out.value.next_offset) == (orders, 6)
            anna.checkpoint({0: 4})
            with pytest.raises(CheckpointBackwards):
                anna.checkpoint({0: 3})
            with pytest.raises(OffsetOutOfRange) as out:
                anna.release({0: 7})
            assert out.value.stream == orders

    def test_a_refused_checkpoint_costs_the_others_nothing_and_its_shard_is_let_go_of(
        self, hub: Hub, saved: str
    ) -> None:
        anna = hub.join_group(saved, "billing", "anna")
        holds(anna, range(3))
        anna.checkpoint({2: 4})
        epochs = {shard: lease.epoch for shard, lease in anna.leases.items()}
        with pytest.raises((OffsetOutOfRange, CheckpointBackwards)):
            anna.release({0: 5, 1: 10**9, 2: 3})
        holds(anna, range(3))
        assert all(lease.epoch > epochs[shard] for shard, lease in anna.leases.items())
        assert _checkpoints(hub, saved) == [5, 0, 4]
        anna.leave()

    def test_leaving_with_a_checkpoint_past_the_end_is_refused_while_nothing_has_ended(
        self, hub: Hub, saved: str
    ) -> None:
        anna = hub.join_group(saved, "billing", "anna")
        holds(anna, range(3))
        for nowhere in (10**9, -1):
            with pytest.raises(OffsetOutOfRange) as out:
                anna.leave({1: 2, 0: nowhere})
            assert out.value.stream == saved
            assert not anna.has_left
        assert _checkpoints(hub, saved) == [0, 0, 0]
        anna.checkpoint({0: 1})
        anna.leave({1: 2, 99: 1})
        assert _checkpoints(hub, saved) == [1, 2, 0]
        assert {shard.owner for shard in hub.describe_group(saved, "billing").shards} == {None}

    def test_leaving_with_a_checkpoint_that_goes_back_hands_everything_over_all_the_same(
        self, hub: Hub, saved: str
    ) -> None:
        anna = hub.join_group(saved, "billing", "anna")
        holds(anna, range(3))
        anna.checkpoint({0: 5, 2: 5})
        with pytest.raises(CheckpointBackwards):
            anna.leave({0: 4, 1: 6, 2: 3})
        assert anna.has_left
        info = hub.describe_group(saved, "billing")
        assert [(shard.owner, shard.checkpoint) for shard in info.shards] == [(None, 5), (None, 6), (None, 5)]
        assert info.members == ()

    def test_waiting_takes_numbers(self, hub: Hub, saved: str) -> None:
        with hub.join_group(saved, "billing", "anna") as anna:
            with pytest.raises(InvalidInput, match="seen='x'"):
                anna.wait("x", 0.1)  # type: ignore[arg-type]
            for timeout in ("x", None, float("nan"), True):
                with pytest.raises(InvalidInput, match="timeout="):
                    anna.wait(0, timeout)  # type: ignore[arg-type]
            holds(anna, range(3))
            assert anna.wait(0, 10**400) > 0

    def test_force_is_a_bool_and_a_start_what_it_says(self, hub: Hub, saved: str) -> None:
        with pytest.raises(InvalidInput, match="force='no'"):
            hub.checkpoint(saved, "billing", 0, 1, force="no")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="force='no'"):
            hub.delete_group(saved, "billing", force="no")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"start=\[0\]"):
            hub.create_group(saved, "other", start=[0])  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=r"to=\[1\]"):
            hub.reset_group(saved, "billing", to=[1])  # type: ignore[arg-type]
        assert _checkpoints(hub, saved) == [0, 0, 0]


def _checkpoints(hub: Hub, stream: str) -> list[int]:
    return [shard.checkpoint for shard in hub.describe_group(stream, "billing").shards]
