"""Producers that send much hear of splits and merges before they are refused for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

import shoal
from shoal import Hub, Producer
from shoal.core.errors import ShardChangeRefused, StoreBusy
from shoal.core.model import Shard, StreamInfo, StreamName
from shoal.core.routing import route_number
from shoal.hub.local import LocalHub
from shoal.hub.routes import Routes
from shoal.ports import Following, HubService, Place, Store, StreamRoutes
from shoal.store.sql.store import SQLStore
from shoal.testing.reading import until, values_by_key
from shoal.testing.serving import served

PATIENT: dict[str, Any] = {"hold_s": 60.0, "refresh_s": 3600.0, "linger_s": 0.0}
"""Nothing but what it is told moves such a producer, and a slow machine does not end its waiting."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shoal.db'}"


@pytest.fixture
def store(url: str) -> Iterator[SQLStore]:
    """As another process has it."""
    store = SQLStore.open(url)
    yield store
    store.close()


@pytest.fixture(params=["embedded", "served"])
def hub(request: pytest.FixtureRequest, url: str) -> Iterator[Hub]:
    with ExitStack() as stack:
        where = stack.enter_context(served(url)) if request.param == "served" else url
        yield stack.enter_context(shoal.connect(where))


class Sent:
    """Records of two keys, in order."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.count = 0

    def more(self) -> None:
        self._producer.send(b"%d" % self.count, key=b"k%d" % (self.count % 2))
        self.count += 1

    def until(self, condition: Callable[[], object]) -> None:
        """Send on meanwhile."""

        def met() -> object:
            self.more()
            return condition()

        until(met)

    def wanted(self) -> dict[bytes | None, list[object]]:
        return {b"k%d" % key: [b"%d" % i for i in range(key, self.count, 2)] for key in range(2)}


def busy(producer: Producer) -> Sent:
    """It has sent often enough to follow the map."""
    sent = Sent(producer)
    sent.until(lambda: producer.stats.calls > 3)
    producer.flush()
    return sent


@pytest.mark.parametrize("count", [1, 5])
def test_what_is_sent_while_a_change_is_announced_waits_and_is_not_refused(
    hub: Hub, store: SQLStore, count: int
) -> None:
    stream = hub.create_stream("orders", shards=2)
    with hub.producer("orders", **PATIENT) as producer:
        sent = busy(producer)
        store.announce_routes(stream.id, stream.version + 1)
        sent.until(lambda: producer.stats.held == 1)
        for _ in range(20):
            sent.more()
        hub.reshard("orders", count)
        producer.flush()
        stats = producer.stats
    assert (stats.refused, stats.failed, stats.held) == (0, 0, 1)
    assert stats.moved > 0
    assert values_by_key(hub, "orders") == sent.wanted()


def test_a_change_that_does_not_come_is_waited_for_only_a_moment(hub: Hub, store: SQLStore) -> None:
    stream = hub.create_stream("orders", shards=2)
    with hub.producer("orders", **{**PATIENT, "hold_s": 0.2}) as producer:
        sent = busy(producer)
        store.announce_routes(stream.id, stream.version + 1)
        sent.until(lambda: producer.stats.held == 1)
        producer.flush()
        store.announce_routes(stream.id, None)
        assert (producer.stats.refused, producer.stats.moved) == (0, 0)
    assert values_by_key(hub, "orders") == sent.wanted()


def test_a_transaction_waits_for_a_map_that_is_announced_too(hub: Hub, store: SQLStore) -> None:
    stream = hub.create_stream("orders", shards=1)
    with hub.producer("orders", **PATIENT) as producer:
        sent = busy(producer)
        store.announce_routes(stream.id, stream.version + 1)
        sent.until(lambda: producer.stats.held == 1)
        changing = threading.Thread(target=hub.split_shard, args=("orders", 0))
        with producer.transaction() as transaction:
            transaction.send(b"%d" % sent.count, key=b"k%d" % (sent.count % 2))
            sent.count += 1
            changing.start()
        changing.join()
        assert (producer.stats.refused, producer.stats.transactions) == (0, 1)
    assert values_by_key(hub, "orders") == sent.wanted()


def test_a_producer_that_follows_nothing_is_refused_and_goes_on(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    with hub.producer("orders", **{**PATIENT, "hold_s": 0.0}) as producer:
        sent = busy(producer)
        hub.split_shard("orders", 0)
        sent.more()
        producer.flush()
        assert (producer.stats.refused, producer.stats.held) == (1, 0)
    assert values_by_key(hub, "orders") == sent.wanted()


class Counted:
    """A service that knows who follows."""

    def __init__(self, service: HubService) -> None:
        self._service = service
        self.open = self.begun = 0

    def follow(self, moved: Callable[[Place], None]) -> Following:
        self.begun += 1
        self.open += 1
        following = self._service.follow(moved)
        close = following.close

        def closed() -> None:
            self.open -= 1
            close()

        following.close = closed  # type: ignore[method-assign]
        return following

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def test_only_a_producer_that_sends_often_follows_and_only_while_it_does(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    counted = Counted(hub.service)
    front = Hub(cast("HubService", counted), "counted")
    with front.producer("orders", refresh_s=0.0) as producer:
        producer.send(b"once").result(30)
        assert counted.begun == 0
        sent = Sent(producer)
        sent.until(lambda: counted.open == 1)
        producer.flush()
        until(lambda: counted.open == 0)
        sent.until(lambda: counted.begun == 2)
    assert counted.open == 0


class Slow:
    """A service in which an append takes until it is let go on, if asked to."""

    def __init__(self, service: HubService) -> None:
        self._service = service
        self.is_slow = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def append(self, *arguments: Any) -> Any:
        if self.is_slow:
            self.begun.set()
            assert self.go_on.wait(60)
        return self._service.append(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def test_who_learns_of_a_change_by_a_refusal_waits_for_no_other(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    slow = Slow(hub.service)
    with Hub(cast("HubService", slow), "slow").producer("orders", **PATIENT) as producer:
        sent = busy(producer)
        slow.is_slow = True
        sent.more()
        assert slow.begun.wait(60)
        told = vars(vars(producer)["_sender"])["_routes"]
        hub.split_shard("orders", 0)
        until(lambda: told.is_told)  # And does not look, since its call is on its way.
        slow.is_slow = False
        slow.go_on.set()
        producer.flush(30)
        assert (producer.stats.refused, producer.stats.held) == (1, 0)
    assert values_by_key(hub, "orders") == sent.wanted()


class Refusing:
    """A store in which shards cannot be changed now."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def change_shards(self, name: StreamName, rule: Callable[[StreamInfo], tuple[Shard, ...]]) -> StreamInfo:
        raise StoreBusy(f"{name}: others have the lock", 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_change_that_fails_is_called_off_and_one_that_is_refused_is_not_announced(store: SQLStore) -> None:
    local = LocalHub(store, keeper_interval_s=3600)
    hub = Hub(local, "a hub on the store")
    stream = hub.create_stream("orders", shards=1)
    place = StreamRoutes(stream.id)
    told: list[Place] = []
    following = store.signal.follow(told.append)
    following.expect([(place, route_number(stream.version))])
    with pytest.raises(ShardChangeRefused):
        hub.merge_shards("orders", 0)
    assert hub.reshard("orders", 1) == hub.describe_stream("orders")
    assert told == []
    with pytest.raises(StoreBusy):
        Hub(LocalHub(cast("Store", Refusing(store)), keeper_interval_s=3600), "busy").split_shard("orders", 0)
    assert told == [place]
    assert store.signal.look([place]) == {place: (route_number(stream.version), True)}
    hub.split_shard("orders", 0)
    assert store.signal.look([place]) == {place: (route_number(stream.version + 1), True)}
    following.close()


def test_what_was_announced_by_one_who_is_gone_is_taken_away(store: SQLStore) -> None:
    hub = Hub(LocalHub(store, keeper_interval_s=3600), "a hub on the store")
    stream = hub.create_stream("orders", shards=1)
    store.announce_routes(stream.id, stream.version + 1)
    keeper = Routes(store, 0.0)
    keeper.keep()
    assert store.announced_routes() == {stream.id: stream.version + 1}, "it may be about to come"
    keeper.keep()
    assert store.announced_routes() == {}
    store.announce_routes(stream.id, stream.version + 1)
    keeper.keep()
    hub.split_shard("orders", 0)
    hub.split_shard("orders", 1)
    keeper.keep()
    assert store.announced_routes() == {stream.id: stream.version + 2}, "another than was seen before"
