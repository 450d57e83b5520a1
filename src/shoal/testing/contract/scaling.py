"""Scaling by load, as far as it is told and shown: the settings, and which keys are hot."""

from __future__ import annotations

import pytest

from shoal import Hub, Scaling
from shoal.core.errors import InvalidInput, UnknownShard, UnknownStream
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import unchanged


class ScalingContract(HubSuite):
    def test_a_stream_scales_by_itself_only_when_told(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders)
        assert hub.scaling(orders) is None
        told = Scaling(records_per_s=5000, bytes_per_s=1.5e6, shards_min=2, shards_max=8, cool_down_s=60)
        assert hub.set_scaling(orders, told) == told
        assert hub.scaling(orders) == told
        hub.set_scaling(orders, records_per_s=10)
        assert hub.scaling(orders) == Scaling(records_per_s=10)
        hub.set_scaling(orders)
        assert hub.scaling(orders) is None

    def test_a_stream_that_is_made_again_was_told_nothing(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders)
        hub.set_scaling(orders, records_per_s=1)
        hub.delete_stream(orders)
        hub.create_stream(orders)
        assert hub.scaling(orders) is None

    @pytest.mark.parametrize(
        ("field", "settings"),
        [
            ("records_per_s", {}),
            ("records_per_s", {"records_per_s": 0}),
            ("records_per_s", {"records_per_s": "many"}),
            ("bytes_per_s", {"bytes_per_s": float("nan")}),
            ("shards_min", {"records_per_s": 1, "shards_min": 0}),
            ("shards_min", {"records_per_s": 1, "shards_min": 9, "shards_max": 8}),
            ("shards_max", {"records_per_s": 1, "shards_max": 1.5}),
            ("cool_down_s", {"records_per_s": 1, "cool_down_s": -1}),
            ("merge_below", {"records_per_s": 1, "merge_below": 0.9}),
        ],
    )
    def test_nonsense_is_refused_and_changes_nothing(
        self, hub: Hub, orders: str, field: str, settings: dict[str, float]
    ) -> None:
        hub.create_stream(orders)
        with pytest.raises(InvalidInput, match=f"^{field}="):
            hub.set_scaling(orders, Scaling(**settings))  # type: ignore[arg-type]
        assert hub.scaling(orders) is None

    def test_an_unknown_stream_has_no_scaling_and_no_hot_keys(
        self, hub: Hub, orders: str, project: str
    ) -> None:
        hub.create_stream(f"{project}/another")
        with pytest.raises(UnknownStream):
            hub.set_scaling(orders, records_per_s=1)
        with pytest.raises(UnknownStream):
            hub.scaling(orders)
        with pytest.raises(UnknownStream):
            hub.hot_keys(orders)

    def test_hot_keys_are_those_of_the_newest_records(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        with hub.producer(orders) as producer:
            for i in range(300):
                producer.send(b"x", key=f"old-{i % 3}")
            producer.flush()
            for i in range(400):
                producer.send(b"x", key="busy" if i % 2 else f"key-{i}")
        with unchanged(hub, orders):
            found = hub.hot_keys(orders, most=1, sample=200)
        assert [hot.key for hot in found] == [b"busy"]
        assert 0.4 < found[0].share <= 1
        assert [hot.key for hot in hub.hot_keys(orders, found[0].shard, most=1, sample=200)] == [b"busy"]

    def test_records_without_a_key_are_load_and_no_key(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        assert hub.hot_keys(orders) == []
        with hub.producer(orders) as producer:
            for i in range(10):
                producer.send(b"x", key=None if i < 8 else "some")
        assert [(hot.key, hot.share) for hot in hub.hot_keys(orders)] == [(b"some", 0.2)]
        with pytest.raises(UnknownShard):
            hub.hot_keys(orders, 7)
        with pytest.raises(InvalidInput, match="most="):
            hub.hot_keys(orders, most=0)
