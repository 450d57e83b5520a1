"""What a stream says about failed attempts of its producers: set, shown, overridden."""

from __future__ import annotations

import pytest

from shoal import Hub
from shoal.core.errors import InvalidInput, NotFound
from shoal.core.model import SendStrategy
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import values_by_key


class OrderingContract(HubSuite):
    def test_a_stream_says_nothing_about_order_unless_it_is_told(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders)
        assert hub.strategy(orders) is None
        assert hub.set_strategy(orders, "best_tried") is SendStrategy.BEST_TRIED
        assert hub.strategy(orders) is SendStrategy.BEST_TRIED
        hub.set_strategy(orders, SendStrategy.STRICT)
        assert hub.strategy(orders) == "strict"
        hub.set_strategy(orders, None)
        assert hub.strategy(orders) is None

    def test_it_can_be_told_when_it_is_made_and_forgets_it_with_its_end(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, strategy="best_tried")
        assert hub.strategy(orders) is SendStrategy.BEST_TRIED
        hub.set_scaling(orders, records_per_s=5)
        assert hub.strategy(orders) is SendStrategy.BEST_TRIED
        hub.delete_stream(orders)
        hub.create_stream(orders)
        assert hub.strategy(orders) is None

    def test_a_strategy_that_nobody_knows_is_refused(self, hub: Hub, orders: str) -> None:
        with pytest.raises(InvalidInput, match=r"^strategy="):
            hub.create_stream(orders, strategy="random")
        with pytest.raises(NotFound):
            hub.set_strategy(orders, "strict")
        hub.create_stream(orders)
        with pytest.raises(InvalidInput, match=r"^strategy="):
            hub.set_strategy(orders, "random")
        with pytest.raises(InvalidInput, match=r"^strategy="):
            hub.producer(orders, strategy="random")
        assert hub.strategy(orders) is None

    @pytest.mark.parametrize("told", ["strict", "best_tried", None])
    @pytest.mark.parametrize("own", ["strict", "best_tried", None])
    def test_whatever_the_strategy_without_failures_all_keys_are_in_order(
        self, hub: Hub, orders: str, told: str | None, own: str | None
    ) -> None:
        hub.create_stream(orders, shards=3, strategy=told)
        with hub.producer(orders, batch_records=5, linger_s=0.0, strategy=own) as producer:
            for i in range(300):
                producer.send(b"%d" % i, key=None if i % 3 == 2 else f"k{i % 6}")
            producer.flush()
            assert producer.stats.reordered == 0
        found = values_by_key(hub, orders)
        assert set(found.pop(None)) == {b"%d" % i for i in range(2, 300, 3)}
        assert found == {f"k{k}".encode(): [b"%d" % i for i in range(k, 300, 6)] for k in (0, 1, 3, 4)}
