"""Numbered appends: a batch that is repeated is stored once, and whoever shows an old epoch is fenced."""

from __future__ import annotations

import pytest

from shoal import Appended, Hub, ProducerStamp, ShardClosed
from shoal.core.errors import OutOfSequence, ProducerFenced
from shoal.core.limits import PRODUCER_WINDOW
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_shard, unchanged


def stamp(sequence: int, *, epoch: int = 0, producer: str = "till-1") -> ProducerStamp:
    return ProducerStamp(producer=producer, epoch=epoch, sequence=sequence)


class IdempotenceContract(HubSuite):
    def test_a_repeated_batch_is_stored_once_and_answered_as_the_first_time(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"before"])
        first = hub.append(orders, 0, [b"a", b"b"], stamp=stamp(0))
        with unchanged(hub, orders):
            assert hub.append(orders, 0, [b"a", b"b"], stamp=stamp(0)) == first == Appended(0, 1, 3)

    def test_every_batch_of_the_window_can_be_repeated_and_none_before_it(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        sent = PRODUCER_WINDOW + 3
        answers = [hub.append(orders, 0, [b"%d" % i], stamp=stamp(i)) for i in range(sent)]
        with unchanged(hub, orders):
            for i in range(sent - PRODUCER_WINDOW, sent):
                assert hub.append(orders, 0, [b"%d" % i], stamp=stamp(i)) == answers[i]
            with pytest.raises(OutOfSequence, match="raise the producer's epoch"):
                hub.append(orders, 0, [b"2"], stamp=stamp(sent - PRODUCER_WINDOW - 1))

    def test_a_gap_in_the_numbering_is_refused(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"], stamp=stamp(0))
        with unchanged(hub, orders), pytest.raises(OutOfSequence, match="sequence=2") as caught:
            hub.append(orders, 0, [b"c"], stamp=stamp(2))
        assert (caught.value.expected, caught.value.shard) == (1, 0)
        assert hub.append(orders, 0, [b"b"], stamp=stamp(1)).first_offset == 1

    def test_numbering_begins_at_zero(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with unchanged(hub, orders), pytest.raises(OutOfSequence):
            hub.append(orders, 0, [b"a"], stamp=stamp(1))

    def test_a_higher_epoch_begins_anew_and_fences_the_older(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"], stamp=stamp(0))
        hub.append(orders, 0, [b"b"], stamp=stamp(0, epoch=3))
        with unchanged(hub, orders):
            for sequence in (0, 1):
                with pytest.raises(ProducerFenced, match="epoch 2 is fenced, the log has seen 3") as caught:
                    hub.append(orders, 0, [b"late"], stamp=stamp(sequence, epoch=2))
                assert (caught.value.held, caught.value.current) == (2, 3)
        assert [record.value for record in read_shard(hub, orders, 0)] == [b"a", b"b"]

    def test_producers_and_shards_are_numbered_apart(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            for producer in ("till-1", "till-2"):
                hub.append(orders, shard, [producer.encode()], stamp=stamp(0, producer=producer))
        assert [record.value for record in read_shard(hub, orders, 1)] == [b"till-1", b"till-2"]

    def test_a_repeat_after_the_shard_was_closed_is_still_answered_as_the_first_time(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        answers = [hub.append(orders, 0, [b"%d" % i], stamp=stamp(i)) for i in range(2)]
        hub.split_shard(orders, 0)
        with unchanged(hub, orders):
            for i in range(2):
                assert hub.append(orders, 0, [b"%d" % i], stamp=stamp(i)) == answers[i]

    def test_shard_closed_carries_the_last_sequence_and_the_new_map(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        for i in range(3):
            hub.append(orders, 0, [b"x"], stamp=stamp(i))
        hub.split_shard(orders, 0)
        with unchanged(hub, orders), pytest.raises(ShardClosed) as caught:
            hub.append(orders, 0, [b"x"], stamp=stamp(3))
        assert caught.value.last_sequence == 2
        assert caught.value.stream == hub.describe_stream(orders)
        with pytest.raises(ShardClosed) as caught:
            hub.append(orders, 0, [b"x"], stamp=stamp(0, producer="till-2"))
        assert caught.value.last_sequence == -1

    def test_another_hub_on_the_store_knows_the_numbering(self, hub: Hub, orders: str, hub_url: str) -> None:
        import shoal  # noqa: PLC0415 - only this test opens a hub by itself

        hub.create_stream(orders, shards=1)
        first = hub.append(orders, 0, [b"a"], stamp=stamp(0))
        with shoal.connect(hub_url) as other:
            assert other.append(orders, 0, [b"a"], stamp=stamp(0)) == first
        assert hub.next_offset(orders, 0) == 1
