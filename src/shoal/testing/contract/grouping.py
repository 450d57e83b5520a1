"""Groups as people make, change, look at and delete them; and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shoal import Hub
from shoal.core.errors import (
    GroupExists,
    GroupInUse,
    InvalidInput,
    InvalidName,
    OffsetExpired,
    OffsetOutOfRange,
    StrategyRefused,
    TooManyGroups,
    UnknownGroup,
    UnknownShard,
    UnknownStream,
)
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.members import holds


def states(hub: Hub, stream: str, group: str = "billing") -> list[str]:
    return [str(shard.state) for shard in hub.describe_group(stream, group).shards]


class GroupContract(HubSuite):
    def test_a_new_group_knows_every_shard_and_nobody_holds_one(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=3)
        hub.append(orders, 1, [b"a", b"b"])
        made = hub.create_group(orders, "billing", timeout=7.5)
        assert made.version == hub.describe_group(orders, "billing").version
        assert (made.name, made.state, made.in_order, made.timeout) == ("billing", "empty", True, 7.5)
        assert made.members == ()
        assert [(s.id, s.state, s.owner, s.epoch, s.checkpoint, s.lag) for s in made.shards] == [
            (0, "not_alloc", None, 0, 0, 0),
            (1, "not_alloc", None, 0, 0, 2),
            (2, "not_alloc", None, 0, 0, 0),
        ]
        assert made.lag == 2

    def test_groups_are_listed_by_name_with_their_settings(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "b", in_order=False)
        hub.create_group(orders, "a", timeout=3, handover_timeout=60)
        listed = hub.list_groups(orders)
        assert [group.name for group in listed] == ["a", "b"]
        assert [group.settings.in_order for group in listed] == [True, False]
        assert [group.settings.timeout_ms for group in listed] == [3000, 20000]
        assert [group.settings.handover_timeout_ms for group in listed] == [60_000, None]

    def test_the_sixth_group_and_a_name_that_is_there_are_refused(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        for i in range(5):
            hub.create_group(orders, f"g{i}")
        with pytest.raises(TooManyGroups, match="5 groups already"):
            hub.create_group(orders, "sixth")
        with pytest.raises(GroupExists, match="'g3'"):
            hub.create_group(orders, "g3")
        assert len(hub.list_groups(orders)) == 5
        connect_again(groups_per_stream=6).create_group(orders, "sixth")

    def test_groups_of_different_streams_have_nothing_to_do_with_each_other(
        self, hub: Hub, project: str
    ) -> None:
        for stream in (f"{project}/a", f"{project}/b"):
            hub.create_stream(stream, shards=1)
            hub.create_group(stream, "billing")
        hub.delete_group(f"{project}/a", "billing")
        assert hub.list_groups(f"{project}/a") == []
        assert len(hub.list_groups(f"{project}/b")) == 1

    def test_a_deleted_stream_takes_its_groups_along(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing")
        hub.delete_stream(orders)
        hub.create_stream(orders, shards=1)
        assert hub.list_groups(orders) == []

    def test_start_positions_are_resolved_when_the_group_is_made(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        hub.append(orders, 0, [b"a", b"b"])
        starts: dict[str, Any] = {
            "first": "earliest",
            "last": "latest",
            "soon": datetime.now(UTC) + timedelta(hours=1),
            "long-ago": datetime.now(UTC) - timedelta(hours=1),
            "exact": {0: 1},
        }
        made = {name: hub.create_group(orders, name, start=start) for name, start in starts.items()}
        hub.append(orders, 0, [b"c"])
        positions = {name: [s.checkpoint for s in info.shards] for name, info in made.items()}
        assert positions == {
            "first": [0, 0],
            "last": [2, 0],
            "soon": [2, 0],
            "long-ago": [0, 0],
            "exact": [1, 0],
        }
        assert hub.describe_group(orders, "last").lag == 1

    def test_a_closed_shard_with_nothing_left_for_the_group_is_born_over(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        hub.append(orders, 0, [b"a"])
        hub.split_shard(orders, 0)
        hub.split_shard(orders, 1)
        hub.create_group(orders, "billing")
        assert states(hub, orders) == ["not_alloc", "over", "wait", "wait", "not_alloc", "not_alloc"]
        hub.create_group(orders, "late", start="latest")
        assert states(hub, orders, "late") == ["over", "over", *["not_alloc"] * 4]

    def test_an_in_order_group_that_becomes_unordered_releases_what_waits_and_binds_only_later_births(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        hub.create_group(orders, "billing")
        left, right = hub.split_shard(orders, 0)
        assert states(hub, orders) == ["not_alloc", "wait", "wait"]
        assert hub.update_group(orders, "billing", in_order=False).in_order is False
        assert states(hub, orders) == ["not_alloc"] * 3
        hub.append(orders, left.id, [b"b"])
        hub.update_group(orders, "billing", in_order=True)
        assert states(hub, orders) == ["not_alloc"] * 3
        hub.split_shard(orders, left.id)
        assert states(hub, orders) == ["not_alloc"] * 3 + ["wait", "wait"]
        assert right.id == 2

    def test_settings_that_are_not_given_stay(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=9, handover_timeout=30)
        after = hub.update_group(orders, "billing", timeout=4)
        assert (after.timeout, after.in_order, after.settings.handover_timeout_ms) == (4, True, 30_000)
        after = hub.update_group(orders, "billing", handover_timeout=None)
        assert (after.timeout, after.settings.handover_timeout_ms) == (4, None)

    def test_a_group_in_use_is_deleted_only_by_force_and_its_consumer_is_told(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=5)
        with hub.join_group(orders, "billing", "anna", heartbeat_interval=0.1) as anna:
            holds(anna, [0])
            with pytest.raises(GroupInUse, match="anna"):
                hub.delete_group(orders, "billing")
            hub.delete_group(orders, "billing", force=True)
            holds(anna, [])
            assert hub.list_groups(orders) == []

    @pytest.mark.parametrize("coordination", ["coordinated", "leased"])
    def test_a_group_that_is_made_again_gives_higher_epochs_than_before(
        self, hub: Hub, orders: str, coordination: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        epochs: list[int] = []
        for _ in range(3):
            hub.create_group(orders, "billing", coordination=coordination)
            with hub.join_group(orders, "billing", "anna") as anna:
                holds(anna, [0, 1])
                assert min(lease.epoch for lease in anna.leases.values()) > max(epochs, default=0)
                epochs += [lease.epoch for lease in anna.leases.values()]
            hub.delete_group(orders, "billing")

    @pytest.mark.parametrize("timeout", [0, -1, 0.01, 86_400, float("nan"), float("inf"), "20", None, True])
    def test_a_timeout_out_of_range_is_refused(self, hub: Hub, orders: str, timeout: float) -> None:
        hub.create_stream(orders, shards=1)
        with pytest.raises(InvalidInput, match="timeout="):
            hub.create_group(orders, "billing", timeout=timeout)
        assert hub.list_groups(orders) == []

    @pytest.mark.parametrize("interval", [0, -1, 5, 5.1, float("nan"), "1"])
    def test_a_heartbeat_interval_not_shorter_than_the_timeout_is_refused(
        self, hub: Hub, orders: str, interval: float
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_group(orders, "billing", timeout=5)
        with pytest.raises(InvalidInput, match="heartbeat_interval="):
            hub.join_group(orders, "billing", "anna", heartbeat_interval=interval)
        assert hub.describe_group(orders, "billing").members == ()

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 129, None, 7])
    def test_names_outside_the_rule_are_refused(self, hub: Hub, orders: str, name: str) -> None:
        hub.create_stream(orders, shards=1)
        with pytest.raises(InvalidName, match="group="):
            hub.create_group(orders, name)
        hub.create_group(orders, "billing")
        with pytest.raises(InvalidName, match="consumer="):
            hub.join_group(orders, "billing", name)

    def test_what_cannot_be_combined_is_refused(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with pytest.raises(InvalidInput, match="in_order"):
            hub.create_group(orders, "billing", in_order=True, delivery="shared")
        with pytest.raises(InvalidInput, match="delivery="):
            hub.create_group(orders, "billing", delivery="telepathic")
        with pytest.raises(InvalidInput, match="coordination="):
            hub.create_group(orders, "billing", coordination="none")
        with pytest.raises(InvalidInput, match="handover_timeout="):
            hub.create_group(orders, "billing", handover_timeout=0)
        with pytest.raises(StrategyRefused, match="fair-ish"):
            hub.create_group(orders, "billing", strategy="fair-ish")
        assert hub.list_groups(orders) == []

    def test_what_is_not_there_is_named(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with pytest.raises(UnknownStream):
            hub.create_group(f"{orders}-nowhere", "billing")
        for act in (
            lambda: hub.describe_group(orders, "nobody"),
            lambda: hub.delete_group(orders, "nobody"),
            lambda: hub.update_group(orders, "nobody", timeout=3),
            lambda: hub.reset_group(orders, "nobody", to="earliest"),
            lambda: hub.checkpoint(orders, "nobody", 0, 0, force=True),
            lambda: hub.group_history(orders, "nobody"),
            lambda: hub.join_group(orders, "nobody", "anna"),
        ):
            with pytest.raises(UnknownGroup, match="'nobody'"):
                act()

    def test_positions_that_lead_nowhere_are_refused_and_change_nothing(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1, retention_bytes=1)
        hub.append(orders, 0, [b"a" * 100] * 3)
        hub.append(orders, 0, [b"b" * 100] * 3)
        hub.enforce_retention(orders)
        first = hub.first_offset(orders, 0)
        assert first > 0
        hub.create_group(orders, "billing")
        before = hub.describe_group(orders, "billing")
        with pytest.raises(OffsetOutOfRange):
            hub.checkpoint(orders, "billing", 0, 7, force=True)
        with pytest.raises(OffsetExpired):
            hub.checkpoint(orders, "billing", 0, first - 1, force=True)
        with pytest.raises(UnknownShard):
            hub.reset_group(orders, "billing", to={5: 0})
        with pytest.raises(InvalidInput, match="to="):
            hub.reset_group(orders, "billing", to="yesterday")
        with pytest.raises(InvalidInput, match="offset="):
            hub.checkpoint(orders, "billing", 0, "1", force=True)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="epoch="):
            hub.checkpoint(orders, "billing", 0, 3)
        assert hub.describe_group(orders, "billing").version == before.version
