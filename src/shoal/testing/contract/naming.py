"""Producers with a name: one life after the other, and nothing that was numbered is stored twice."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import pytest

from shoal import Hub, Producer, ProducerOptions
from shoal.core.errors import (
    DeliveryTimeout,
    InvalidInput,
    InvalidName,
    ProducerFenced,
    StoreUnavailable,
    UnknownStream,
)
from shoal.ports import HubService
from shoal.testing.contract.suite import ConnectAgain, HubSuite
from shoal.testing.reading import read_stream, unchanged, values_by_key


def send_all(producer: Producer, numbers: range, keys: int = 7) -> list[bool]:
    """Numbered records of several keys; for each, whether it was a repeat."""
    sent = [producer.send(b"%d" % i, key=b"%d" % (i % keys), number=i) for i in numbers]
    producer.flush()
    return [future.is_repeat for future in sent]


def stored_numbers(hub: Hub, stream: str) -> list[int]:
    return sorted(int(record.value) for shard in read_stream(hub, stream).values() for record in shard)


class ForgetfulHub:
    """A hub that is away at times, and opens producers without a word."""

    def __init__(self, service: HubService) -> None:
        self._service, self.is_away, self.lost = service, False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    def append(self, *arguments: Any) -> Any:
        if self.is_away:
            raise StoreUnavailable("away")
        return self._service.append(*arguments)

    def open_producer(self, *arguments: Any) -> Any:
        opening = self._service.open_producer(*arguments)
        if self.lost:
            self.lost -= 1
            raise StoreUnavailable("the answer was lost")
        return opening


class NamingContract(HubSuite):
    def test_a_second_life_fences_the_first_on_every_shard(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        first = hub.producer(orders, name="till-1")
        first.send(b"a", key="one").result()
        second = hub.producer(orders, name="till-1")
        # The second has sent nothing yet; no shard knows of it, and still the first is refused everywhere.
        with unchanged(hub, orders):
            for key in ("one", "two", "three", "four", "five"):
                with pytest.raises(ProducerFenced, match="fenced"):
                    first.send(b"late", key=key).result()
        second.send(b"b", key="one").result()
        second.close()
        with pytest.raises(ProducerFenced):
            first.close()

    def test_one_that_is_fenced_does_not_win_its_name_back(self, hub: Hub, orders: str) -> None:
        info = hub.create_stream(orders, shards=1)
        service = hub.service
        first = service.open_producer(info, "till-1")
        second = service.open_producer(info, "till-1")
        assert second.epoch > first.epoch
        with pytest.raises(ProducerFenced) as caught:
            service.open_producer(info, "till-1", first.epoch)
        assert (caught.value.held, caught.value.current) == (first.epoch, second.epoch)
        assert service.open_producer(info, "till-1", second.epoch).epoch > second.epoch

    def test_one_who_goes_on_and_does_not_hear_the_answer_asks_again_and_gets_the_same(
        self, hub: Hub, orders: str
    ) -> None:
        info = hub.create_stream(orders, shards=1)
        service = hub.service
        first = service.open_producer(info, "till-1")
        second = service.open_producer(info, "till-1", first.epoch)
        for _ in range(2):
            assert service.open_producer(info, "till-1", first.epoch) == second
        third = service.open_producer(info, "till-1", second.epoch)
        assert first.epoch < second.epoch < third.epoch
        with pytest.raises(ProducerFenced):
            service.open_producer(info, "till-1", first.epoch)
        # Another begins under the name: nobody who had it goes on, whatever they have not heard.
        service.open_producer(info, "till-1")
        for opening in (first, second, third):
            with pytest.raises(ProducerFenced):
                service.open_producer(info, "till-1", opening.epoch)

    def test_a_producer_is_not_fenced_by_itself(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        service = ForgetfulHub(hub.service)
        options = ProducerOptions(delivery_timeout_s=0.1, retry_first_s=0.01)
        stream = hub.describe_stream(orders)
        with Producer(cast("HubService", service), stream, options, name="till-1") as producer:
            producer.send(b"a", key="one").result(10)
            service.is_away = True
            with pytest.raises(DeliveryTimeout):
                producer.send(b"b", key="one").result(10)
            service.is_away, service.lost = False, 1
            producer.send(b"c", key="one").result(10)
            assert service.lost == 0
        assert values_by_key(hub, orders) == {b"one": [b"a", b"c"]}

    def test_names_of_other_streams_and_other_names_are_left_alone(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.create_stream(f"{orders}-2", shards=1)
        with (
            hub.producer(orders, name="till-1") as one,
            hub.producer(orders, name="till-2") as two,
            hub.producer(f"{orders}-2", name="till-1") as other,
        ):
            for producer in (one, two, other, one):
                producer.send(b"x").result()

    def test_what_an_earlier_life_has_stored_is_not_stored_again(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=3)
        assert send_all(hub.producer(orders, name="till-1"), range(100)) == [False] * 100
        again = connect_again().producer(orders, name="till-1")
        assert again.highest_number == 99
        assert send_all(again, range(50, 150)) == [True] * 50 + [False] * 50
        assert stored_numbers(hub, orders) == list(range(150))
        assert send_all(hub.producer(orders, name="till-2"), range(10)) == [False] * 10

    def test_repeats_are_known_across_splits_and_merges(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=2)
        for life, shards in enumerate((2, 5, 3, 7, 1, 4)):
            hub.reshard(orders, shards)
            end = 60 * (life + 1)
            sent = send_all(hub.producer(orders, name="till-1"), range(end))
            assert sent == [True] * (end - 60) + [False] * 60
        assert stored_numbers(hub, orders) == list(range(360))

    def test_a_merge_loses_nothing_of_the_parent_that_was_behind(self, hub: Hub, orders: str) -> None:
        # Of two shards only one has the higher numbers, as if the producer had died between two commits.
        hub.create_stream(orders, shards=2)
        low, high = "0", "f" * 32
        first = hub.producer(orders, name="till-1")
        for number in range(10):
            first.send(b"%d" % number, hash_key=low, number=number).result()
        first.close()
        hub.merge_shards(orders, 0, 1)
        with hub.producer(orders, name="till-1") as again:
            sent = [
                again.send(b"%d" % number, hash_key=place, number=number).is_repeat
                for number, place in enumerate([low, high] * 6)
            ]
        assert sent == [True, False] * 5 + [False, False]

    def test_numbered_records_without_a_key_are_known_again(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=4)
        with hub.producer(orders, name="till-1") as producer:
            for number in range(3000):
                producer.send(b"%d" % number, number=number)
        hub.reshard(orders, 3)
        with hub.producer(orders, name="till-1") as again:
            assert all(again.send(b"%d" % number, number=number).is_repeat for number in range(3000))
            assert not again.send(b"3000", number=3000).is_repeat
        assert stored_numbers(hub, orders) == list(range(3001))
        assert all(shard.next_offset > 0 for shard in hub.describe_stream(orders).shards[:4])

    def test_a_producer_is_forgotten_after_the_time_it_is_kept(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=2)
        send_all(hub.producer(orders, name="till-1"), range(10))
        epoch = hub.service.open_producer(hub.describe_stream(orders), "till-1").epoch
        connect_again(producers_kept=0.001, housekeeping_s=0.05)
        for _ in range(200):
            if hub.producer(orders, name="till-1").highest_number == -1:
                break
        opening = hub.service.open_producer(hub.describe_stream(orders), "till-1")
        assert opening.epoch > epoch  # An epoch never comes again, or one that was fenced would be taken.
        assert opening.numbers == {}

    def test_what_is_no_number_is_refused(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        with hub.producer(orders, name="till-1") as producer, unchanged(hub, orders):
            for wrong in (-1, 1.5, "1", True, 2**62):
                with pytest.raises(InvalidInput, match="number="):
                    producer.send(b"x", number=wrong)  # type: ignore[arg-type]
        with hub.producer(orders, name="till-1") as producer:
            producer.send(b"x", number=3)
            for number in (3, 2):
                with pytest.raises(InvalidInput, match="numbers rise, and 3 came before"):
                    producer.send(b"x", number=number)
        with hub.producer(orders) as producer, pytest.raises(InvalidInput, match="producer with a name"):
            producer.send(b"x", number=1)
        for name in ("", "~x", "a b", 3, "x" * 101):
            with pytest.raises(InvalidName, match="producer="):
                hub.producer(orders, name=name)  # type: ignore[arg-type]
        info = hub.describe_stream(orders)
        hub.delete_stream(orders)
        with pytest.raises(UnknownStream):
            hub.service.open_producer(info, "till-1")

    def test_lives_that_overlap_store_every_number_once_and_in_order(
        self, hub: Hub, orders: str, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=2)
        total, lives = 400, 4
        hubs = [connect_again() for _ in range(lives)]

        def live(life: int) -> None:
            # Each begins while the one before is in the midst of its sending, and is fenced in its own.
            with (
                suppress(ProducerFenced),
                hubs[life].producer(orders, name="till-1", linger_s=0.0) as producer,
            ):
                for number in range(total):
                    sent = producer.send(b"%d" % number, key=b"%d" % (number % 5), number=number)
                    if number == 80 * (life + 1) and life + 1 < lives:
                        following.append(threads.submit(live, life + 1))
                    if number % 7 == 0:
                        sent.result()

        with ThreadPoolExecutor(lives) as threads:
            following: list[Future[None]] = [threads.submit(live, 0)]
            for future in following:  # It grows while we wait.
                future.result(60)
        assert stored_numbers(hub, orders) == list(range(total))
        for key, values in values_by_key(hub, orders).items():
            assert values == [b"%d" % n for n in range(int(key or b""), total, 5)]
