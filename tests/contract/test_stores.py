"""A store asked directly, with a view of the stream that others have overtaken meanwhile."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shoal import Hub, ProducerStamp
from shoal.core.checkpoint import Save
from shoal.core.errors import StoreFailure
from shoal.core.holding import Assignment
from shoal.core.membership import Beat
from shoal.core.model import ShardId, StreamSettings
from shoal.core.names import stream_name
from shoal.core.retention import plan_cuts
from shoal.core.routing import route_number
from shoal.hub.local import LocalHub
from shoal.ports import MemberView, Newcomer, Place, ShardEnd, StreamRoutes, Touch
from shoal.store.sql.store import SQLStore
from shoal.testing.members import eventually

FAR_MS = 10**14  # Long after anything was appended.


@pytest.fixture
def sql_store(store_url: str) -> Iterator[SQLStore]:
    store = SQLStore.open(store_url)
    yield store
    store.close()


def test_retention_with_an_older_view_of_the_stream_leaves_newer_shards_to_the_next_time(
    sql_store: SQLStore,
) -> None:
    # The keeper loads a stream; another process splits a shard and appends to a child; the keeper goes on.
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"a", b"b"])
    older = hub.describe_stream("orders")
    hub.split_shard("orders", 0)
    hub.append("orders", 1, [b"c"])
    settings = StreamSettings(retention_ms=1)
    for view, trimmed in ((older, {0}), (older, set()), (hub.describe_stream("orders"), {1})):
        cuts = sql_store.trim(view, lambda fronts, size: plan_cuts(fronts, size, settings, FAR_MS))
        assert set(cuts) == trimmed
    shards = hub.describe_stream("orders").shards
    assert [(shard.first_offset, shard.next_offset, shard.bytes) for shard in shards] == [
        (2, 2, 0),
        (1, 1, 0),
        (0, 0, 0),
    ]


def test_retention_of_a_stream_that_was_deleted_meanwhile_does_nothing(sql_store: SQLStore) -> None:
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"a"])
    older = hub.describe_stream("orders")
    hub.delete_stream("orders")
    settings = StreamSettings(retention_ms=1)
    assert sql_store.trim(older, lambda fronts, size: plan_cuts(fronts, size, settings, FAR_MS)) == {}


def test_what_deleted_streams_held_is_swept_in_bounded_steps_until_nothing_is_left(
    sql_store: SQLStore,
) -> None:
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    kept = hub.create_stream("kept", shards=1)
    hub.append("kept", 0, [b"kept"])
    for name in ("a", "b"):
        hub.create_stream(name, shards=2)
        hub.append(name, 0, [b"x"])
        hub.append(name, 1, [b"x"])
        hub.delete_stream(name)
    steps = 0
    while sql_store.sweep():
        steps += 1
        assert steps < 10
    assert steps >= 2
    assert hub.stats("kept").batches == 1
    # Ids are never used again, even though nothing is left of the streams that had them.
    assert hub.create_stream("c", shards=1).id > kept.id + 2
    assert sql_store.batch_at(kept.id + 1, ShardId(0), 0) is None


def test_a_producer_long_silent_is_forgotten_and_one_that_spoke_lately_is_not(sql_store: SQLStore) -> None:
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    hub.create_stream("orders", shards=1)
    stamp = ProducerStamp(producer="p", epoch=0, sequence=0)
    first = hub.append("orders", 0, [b"a"], stamp=stamp)
    assert sql_store.forget_producers(0) == 0
    assert hub.append("orders", 0, [b"a"], stamp=stamp) == first
    assert sql_store.forget_producers(FAR_MS) == 1
    assert hub.append("orders", 0, [b"a"], stamp=stamp) != first


def test_a_fault_in_a_commit_that_is_shared_is_told_to_the_one_who_brought_it(sql_store: SQLStore) -> None:
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"a"] * 5)
    groups, name = hub.service.groups, stream_name("orders")
    ids = {}
    for group in ("billing", "shipping"):
        hub.create_group("orders", group)
        ids[group] = groups.join(name, group, Newcomer(name="anna", incarnation=f"anna.{group}")).group_id

    def beat(group: str, number: Any, held: dict[ShardId, int]) -> Touch:
        act = Beat(
            incarnation=f"anna.{group}", number=number, timeout_ms=1000, interval_ms=100, held=held, seen=0
        )
        return Touch(stream=name, group_id=ids[group], act=act)

    (answer,) = sql_store.touch([beat("billing", 1, {})], 0)
    assert isinstance(answer, Assignment)
    assert answer.granted is not None
    save = Save(shard=ShardId(0), epoch=answer.granted[0].epoch, offset=3)
    shared = [
        beat("billing", 2, {}),
        beat("shipping", "first", {}),  # A number that cannot be compared with one.
        Touch(stream=name, group_id=ids["billing"], act=[save]),
        beat("shipping", 2, {}),
    ]
    assert [type(one) for one in sql_store.touch(shared, 0)] == [Assignment, StoreFailure, int, Assignment]
    assert hub.describe_group("orders", "billing").shards[0].checkpoint == 3
    with pytest.raises(StoreFailure, match="TypeError"):
        sql_store.touch([beat("shipping", "third", {})], 0)
    hub.close()


def test_who_follows_many_places_hears_of_every_kind_of_change_that_others_make(
    store_url: str, sql_store: SQLStore
) -> None:
    with Hub(LocalHub(SQLStore.open(store_url), keeper_interval_s=3600), "a hub of another process") as hub:
        stream = hub.create_stream("orders", shards=60)
        hub.create_group("orders", "billing")
        groups = hub.service.groups
        joined = groups.join(stream_name("orders"), "billing", Newcomer(name="anna", incarnation="anna-1"))
        view = MemberView(joined.group_id, "anna-1")
        routes = StreamRoutes(stream.id)
        places: list[Place] = [*(ShardEnd(stream.id, shard.id) for shard in stream.shards), view, routes]
        told: list[Place] = []
        following = sql_store.signal.follow(told.append)
        now = sql_store.signal.look(places)
        following.add_all([(place, now[place][0]) for place in places])
        eventually(lambda: bool(sql_store.signal._marks), "it has looked at all of them")
        acts: list[tuple[Callable[[], object], Place]] = [
            (lambda: hub.append("orders", 7, [b"a"]), ShardEnd(stream.id, ShardId(7))),
            (lambda: hub.append("orders", 7, [b"b"]), ShardEnd(stream.id, ShardId(7))),
            (lambda: hub.split_shard("orders", 9), ShardEnd(stream.id, ShardId(9))),
            (lambda: hub.split_shard("orders", 10), routes),
            (lambda: hub.delete_group("orders", "billing", force=True), view),
        ]
        for number, (act, place) in enumerate(acts):
            hub.append("orders", 59, [b"%d" % number])  # What is heard of another place hides nothing.
            before = told.count(place)
            act()
            eventually(lambda: told.count(place) > before, f"{place} is heard of")  # noqa: B023
        assert following.heard()[ShardEnd(stream.id, ShardId(7))] == 2
        # What was told of the view may have been the split's change of it: its end comes by itself.
        eventually(lambda: view not in following.heard(), "the view is over")
        assert ShardEnd(stream.id, ShardId(8)) not in told
        following.close()


@pytest.mark.parametrize("way", ["add_all", "expect"])
def test_a_place_that_is_named_often_is_waited_for_once_and_nobody_is_left_there(
    sql_store: SQLStore, way: str
) -> None:
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    stream = hub.create_stream("orders", shards=2)
    place, other = (ShardEnd(stream.id, shard.id) for shard in stream.shards)
    told: list[Place] = []
    following = sql_store.signal.follow(told.append)
    getattr(following, way)([(place, 7), (place, 1), (other, 3), (place, 9)])
    getattr(following, way)([(other, 3), (other, 3)])
    assert {at: len(waiters) for at, waiters in sql_store.signal._waiters.items()} == {place: 1, other: 1}
    sql_store.signal.ring([(place, 1), (place, 2), (other, 3)])
    assert told == [place]  # Past the lowest of its numbers.
    assert following.heard() == {place: 2}
    following.close()
    assert sql_store.signal._waiters == {}
    hub.close()


def test_a_map_is_told_to_other_processes_when_it_is_announced_when_it_changes_and_when_it_is_gone(
    sql_store: SQLStore, store_url: str
) -> None:
    other = SQLStore.open(store_url)
    with Hub(LocalHub(other, keeper_interval_s=3600), "a hub of another process") as hub:
        stream = hub.create_stream("orders", shards=1)
        place, told = StreamRoutes(stream.id), list[Place]()
        following = sql_store.signal.follow(told.append)
        following.add(place, route_number(stream.version))
        assert sql_store.signal.look([place]) == {place: (route_number(stream.version), True)}
        assert told == []
        other.announce_routes(stream.id, stream.version + 1)
        announced = route_number(stream.version) + 1
        eventually(lambda: following.heard() == {place: announced}, "it is announced")
        hub.split_shard("orders", 0)
        eventually(lambda: following.heard() == {place: announced + 1}, "it has changed")
        assert sql_store.signal.look([place]) == {place: (route_number(stream.version + 1), True)}
        following.move(place, announced + 1)
        told.clear()
        hub.delete_stream("orders")
        eventually(lambda: told == [place], "it is gone")
        assert sql_store.signal.look([place]) == {}
        following.close()


def test_many_announce_and_call_off_maps_at_once_and_none_is_refused(sql_store: SQLStore) -> None:
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    ids = [hub.create_stream(f"orders-{number}", shards=1).id for number in range(2)]
    threads_count, faults = 4, list[BaseException]()
    together = threading.Barrier(threads_count)

    def announce(stream_id: int) -> None:
        try:
            for version in range(2, 32):
                for announced in (version, None):
                    together.wait(60)
                    sql_store.announce_routes(stream_id, announced)
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            faults.append(error)
            together.abort()

    threads = [threading.Thread(target=announce, args=(ids[n % 2],)) for n in range(threads_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert [fault for fault in faults if not isinstance(fault, threading.BrokenBarrierError)] == []
    assert not sql_store.announced_routes()
    hub.close()
