"""What happens between a batch's plan and its reads, or in their midst: on every store, without a JVM."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from pyspark.sql.types import StructType
from sqlalchemy.engine import make_url

import shoal
from shoal.core.errors import (
    Fenced,
    InvalidInput,
    NotOwner,
    StreamReplaced,
    UnknownStream,
)
from shoal.core.model import StreamInfo
from shoal.spark.data_source import schema_of
from shoal.spark.executor_reading import Reading, read_spans
from shoal.spark.hubs import address_of, close_hubs, hub_at, task_hub
from shoal.spark.member_query import MemberQuery
from shoal.spark.plan.spans import Owner, Span
from shoal.spark.sink import stream_writer
from shoal.spark.source_options import source_options
from shoal.spark.stream_reader import ShoalStreamReader
from shoal.testing.servers import PostgresServer
from tests.spark.planning import ALL, Driver, fill, held


def test_a_store_that_restarts_in_the_midst_of_a_batch_is_waited_for(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.fresh_database()
    given = {"hub": url, "stream": "orders", "startingOffsets": "earliest", "group": "billing"}
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        for _ in range(3):
            hub.append("orders", 0, [b"x" * 1000] * 2000)
    reader = ShoalStreamReader(source_options(given, is_streaming=True), schema_of(given))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    (partition,) = reader.partitions(start, end)
    batches = reader.read(partition)
    rows = next(batches).num_rows
    assert rows < 6000
    postgres_server.stop()
    again = Timer(1.0, postgres_server.start)
    again.start()
    rows += sum(batch.num_rows for batch in batches)
    assert rows == 6000
    assert reader.latestOffset(end, ALL) == end
    again.join()
    reader.stop()
    close_hubs()


def test_only_tasks_read_a_file_through_a_mapping(sqlite_url: str) -> None:
    def mapped_bytes(hub: shoal.Hub) -> int:
        store: Any = hub.service
        with store._store._database.read() as connection:
            found: int = connection.exec_driver_sql("PRAGMA mmap_size").scalar_one()
            return found

    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("orders", shards=1)
        assert mapped_bytes(hub) == 0
    address = address_of(sqlite_url)
    assert mapped_bytes(task_hub(address)) > 1 << 30
    assert mapped_bytes(hub_at(address)) == mapped_bytes(hub_at(address, keeps=True)) == 0
    close_hubs()


def test_a_file_that_was_deleted_and_made_anew_is_opened_anew(sqlite_url: str) -> None:
    address = address_of(sqlite_url)
    for value in (b"old", b"new"):
        for path in Path(make_url(sqlite_url).database or "").parent.glob("*"):
            path.unlink()
        with shoal.connect(sqlite_url) as hub:
            hub.create_stream("orders", shards=1)
            hub.append("orders", 0, [value])
        seen = task_hub(address)
        assert [record.value for record in seen.read("orders", 0, 0)] == [value]
        assert task_hub(address) is seen
    close_hubs()


def test_processes_that_begin_while_the_store_restarts_wait_for_it(postgres_server: PostgresServer) -> None:
    """Spark makes a process for each part of a batch: any of them may be the first to open the hub."""
    url = postgres_server.fresh_database()
    given = {"hub": url, "stream": "orders", "startingOffsets": "earliest"}
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=1)
        hub.append("orders", 0, [b"x"] * 5)
    schema = schema_of(given)
    partitions: list[Any] = []

    def plan() -> None:
        reader = ShoalStreamReader(source_options(given, is_streaming=True), schema)
        end = reader.latestOffset(reader.initialOffset(), ALL)
        partitions.extend(reader.partitions(reader.initialOffset(), end))
        reader.stop()

    def read() -> None:
        reader = ShoalStreamReader(source_options(given, is_streaming=True), schema)
        assert sum(batch.num_rows for batch in reader.read(partitions[0])) == 5

    def begin_to_write() -> None:
        stream_writer({"hub": url, "stream": "orders"}, StructType().add("value", "binary"), overwrite=False)

    for begin in (plan, read, begin_to_write):
        close_hubs()
        postgres_server.stop("immediate")
        again = Timer(0.3, postgres_server.start)
        again.start()
        begin()
        again.join()
    close_hubs()


def test_shards_that_are_split_and_merged_between_plan_and_read_are_read_as_planned(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=2)
    fill(hub, 2, 5)
    driver = Driver(begin(startingOffsets="earliest"))
    assert driver.plan()
    hub.split_shard("orders", 0)
    hub.merge_shards("orders", 3, 1)
    for shard in (2, 4):
        hub.append("orders", shard, [b"x"] * 3)
    driver.run()
    assert driver.rows == [(shard, offset) for shard in (0, 1) for offset in range(5)], "what was planned"
    driver.drive(lambda: len(driver.rows) >= 16)
    assert driver.rows[10:] == [(shard, offset) for shard in (2, 4) for offset in range(3)]


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_stream_that_is_deleted_between_plan_and_read_fails_the_task(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], is_made_anew: bool
) -> None:
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 5)
    strict = Driver(begin(startingOffsets="earliest"))
    lenient = Driver(begin(startingOffsets="earliest", failOnDataLoss="false"))
    for driver in (strict, lenient):
        assert driver.plan()
    hub.delete_stream("orders")
    if is_made_anew:
        hub.create_stream("orders", shards=1)
        fill(hub, 1, 7)
    with pytest.raises(StreamReplaced if is_made_anew else UnknownStream):
        strict.run()
    lenient.run()
    assert strict.rows == lenient.rows == [], "none of another stream's records are taken for its own"


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_that_is_made_anew_in_the_midst_of_a_read_fails_the_task(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], strict: str
) -> None:
    """What it gave by then is another's, and Spark has it; only an error makes Spark drop it."""
    hub.create_stream("orders", shards=1)
    for _ in range(3):
        fill(hub, 1, 2000)
    driver = Driver(begin(startingOffsets="earliest", failOnDataLoss=strict))
    assert driver.plan()
    (partition,) = driver.reader.partitions(driver.start, driver.end)
    rows = driver.reader.read(partition)
    next(rows)
    hub.delete_stream("orders")
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 7000)
    with pytest.raises(StreamReplaced):
        list(rows)


def test_a_member_takes_a_shard_whose_owner_has_read_on_since_the_streams_were_looked_at(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 1, 5)
    owner = hub.join_group("orders", "billing", "owner")
    owner.wait(0, 10.0)
    assert set(owner.leases) == {0}

    def read_on_and_leave() -> None:
        fill(hub, 1, 3)
        owner.leave({0: 8})

    driver = Driver(begin(group="billing", member="true", memberName="one"))
    waits = MemberQuery._wait_for_first

    def after_the_look(query: MemberQuery, streams: Mapping[str, StreamInfo]) -> None:
        assert streams["orders"].shards[0].next_offset == 5
        monkeypatch.undo()
        read_on_and_leave()
        waits(query, streams)

    monkeypatch.setattr(MemberQuery, "_wait_for_first", after_the_look)
    driver.plan()
    fill(hub, 1, 2)
    driver.drive(lambda: driver.rows == [(0, 8), (0, 9)])


def test_a_member_plans_a_shard_that_was_born_since_the_streams_were_looked_at(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another read on, its shard was split, and it left: while this one waited for its first shards."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 5)
    owner = hub.join_group("orders", "billing", "owner")
    while set(owner.leases) != {0, 1}:
        owner.wait(0, 10.0)
    driver = Driver(begin(group="billing", member="true", memberName="one"))
    waits = MemberQuery._wait_for_first

    def after_the_look(query: MemberQuery, streams: Mapping[str, StreamInfo]) -> None:
        monkeypatch.undo()
        fill(hub, 1, 3)
        children = hub.split_shard("orders", 1)
        for child in children:
            hub.append("orders", child.id, [b"x"] * 4)
        owner.leave({0: 8, 1: 5})
        deadline = time.monotonic() + 10
        while held(hub).get("one", 0) < 3:
            assert time.monotonic() < deadline, held(hub)
            time.sleep(0.01)
        waits(query, streams)

    monkeypatch.setattr(MemberQuery, "_wait_for_first", after_the_look)
    born = [(shard, offset) for shard in (2, 3) for offset in range(4)]
    driver.drive(lambda: sorted(driver.rows) == born)


def test_a_batch_that_runs_is_not_let_go_of(hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member="true", memberName="one"))
    one.plan_all(2)
    with hub.join_group("orders", "billing", "other") as other:
        seen = other.wait(0, 1.0)
        assert not other.leases, "the batch has not ended"
        one.run()
        one.plan()
        deadline = time.monotonic() + 10
        while not other.leases:
            seen = other.wait(seen, 1.0)
            assert time.monotonic() < deadline
        (lease,) = other.leases.values()
        assert lease.checkpoint == 10
    assert sorted(one.rows) == [(shard, offset) for shard in (0, 1) for offset in range(10)]


def test_a_fenced_task_fails_and_the_next_plan_leaves_the_shard_out(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member="true", memberName="one"))
    one.plan_all(2)
    hub.checkpoint("orders", "billing", 0, 4, force=True)
    with pytest.raises((Fenced, NotOwner)):
        one.run()
    assert one.rows == []
    deadline = time.monotonic() + 20
    while len(one.rows) < 16:
        assert time.monotonic() < deadline
        with suppress(Fenced, NotOwner):  # Until the member has heard of it.
            if one.plan():
                one.run()
    assert sorted(one.rows) == [(0, n) for n in range(4, 10)] + [(1, n) for n in range(10)]


def test_a_replayed_batch_is_read_under_a_current_lease_and_cut_to_the_groups_checkpoint(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=1.5)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member="true"))
    one.plan_all(2)
    assert one.reader._running is not None
    group = one.reader._running.query._group  # type: ignore[attr-defined]
    group.of("orders").abandon()  # As if it had been killed, in the midst of its batch.
    group._joined.clear()
    with hub.join_group("orders", "billing", "other") as other:
        deadline = time.monotonic() + 20
        while len(other.leases) < 2:
            other.wait(0, 0.2)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        other.release({0: 6, 1: None})

    again = Driver(begin(group="billing", member="true"), one.start)
    again.end = one.end
    again.run()
    assert sorted(again.rows) == [(0, n) for n in range(6, 10)] + [(1, n) for n in range(10)]
    fill(hub, 2, 1)
    again.drive(lambda: len(again.rows) >= 16)
    again.plan()
    assert hub.describe_group("orders", "billing").lag == 0
    assert len(again.rows) == 16


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_stop_in_the_midst_of_a_batch_hands_nothing_over(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str
) -> None:
    """Tasks may outlive the query: who got their shards at once could overtake them."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member=member))
    one.plan_until(lambda: len(held(hub)) == 1 and None not in held(hub))
    if member == "true":
        one.plan_all(2)
    (name,) = held(hub)
    assert one.reader.partitions(one.start, one.end)
    one.reader.stop()
    assert held(hub) == {name: 2}


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_stop_of_a_query_that_has_found_nothing_more_hands_over_at_once(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member=member))
    one.drive(lambda: len(one.rows) == 20)
    one.drive(lambda: not one.plan() and hub.describe_group("orders", "billing").lag == 0)
    one.reader.stop()
    assert hub.describe_group("orders", "billing").members == ()
    assert held(hub) == {None: 2}


def test_a_lone_query_that_was_stopped_in_the_midst_of_a_batch_goes_on_at_once_and_no_other_does(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    """Its name bars its dead self, and what it reads is Spark's to say. The group follows later."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=6.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", maxOffsetsPerTrigger=10))
    one.plan_until(lambda: None not in held(hub))
    assert one.reader.partitions(one.start, one.end)
    one.reader.stop()
    with pytest.raises(InvalidInput, match="without member=true a query takes all of it"):
        Driver(begin(group="billing")).drive(lambda: False)

    again = Driver(begin(group="billing", maxOffsetsPerTrigger=10), one.start)
    again.end = one.end
    again.run()
    began = time.monotonic()
    again.drive(lambda: len(again.rows) == 20)
    assert time.monotonic() - began < 5.0, "it waits for no timeout"
    assert sorted(again.rows) == [(shard, n) for shard in (0, 1) for n in range(10)]
    again.drive(lambda: hub.describe_group("orders", "billing").lag == 0)
    assert set(held(hub)) == {f"spark-{one.end['query']}"}


@pytest.mark.parametrize("options", [{"startingOffsets": "latest"}, {"group": "billing"}])
def test_a_first_batch_that_is_run_again_is_the_same_batch(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], options: dict[str, str]
) -> None:
    """Killed in its midst: Spark knows where it ends, and asks anew where the query begins."""
    hub.create_stream("orders", shards=2)
    if "group" not in options:
        fill(hub, 2, 3)
    one = Driver(begin(**options))
    fill(hub, 2, 5)
    assert one.plan()
    fill(hub, 2, 4)
    two = Driver(begin(**options))  # The other is still a member of the group.
    two.end = one.end
    two.run()
    shift = 0 if "group" in options else 3
    assert sorted(two.rows) == [(shard, n + shift) for shard in (0, 1) for n in range(5)]
    two.drive(lambda: len(two.rows) == 18)
    assert repr(two.reader.latestOffset(two.start, ALL)) == repr(two.start)


def test_a_member_killed_in_its_first_batch_comes_back_as_itself_and_reads_the_batch_again(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=1.5)
    fill(hub, 2, 5)
    one = Driver(begin(group="billing", member="true"))
    one.plan_all(2)
    assert one.reader._running is not None
    one.reader._running.query._group.abandon()  # type: ignore[attr-defined]
    two = Driver(begin(group="billing", member="true"))  # Spark asks anew where the query begins.
    two.end = one.end
    two.run()
    assert sorted(two.rows) == [(shard, n) for shard in (0, 1) for n in range(5)]
    assert [member.name for member in hub.describe_group("orders", "billing").members] == [
        f"spark-{one.end['query']}"
    ]
    assert not two.plan()


def test_a_store_that_restarts_while_a_members_shards_are_waited_for_is_waited_for(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.fresh_database()
    given = {"hub": url, "stream": "orders", "startingOffsets": "earliest"}
    options = source_options({**given, "group": "billing", "member": "true"}, is_streaming=True)
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_group("orders", "billing", timeout=5.0)
        fill(hub, 2, 5)
    one = Driver(ShoalStreamReader(options, schema_of(given)))
    one.plan_all(2)
    assert one.reader._running is not None
    one.reader._running.query._group.abandon()  # type: ignore[attr-defined]
    two = Driver(ShoalStreamReader(options, schema_of(given)))
    two.end = one.end

    def restart() -> None:
        assert not two.rows, "it still waits for the shards of its past life"
        postgres_server.stop()
        time.sleep(1.0)
        postgres_server.start()

    again = Timer(1.0, restart)
    again.start()
    two.run()
    again.join()
    two.drive(lambda: len(two.rows) == 10, within=30.0)
    assert sorted(two.rows) == [(shard, n) for shard in (0, 1) for n in range(5)]
    two.reader.stop()
    close_hubs()


def test_a_read_under_an_old_epoch_is_an_error_and_never_empty(hub: shoal.Hub, store_url: str) -> None:
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 5)
    hub.create_group("orders", "billing")
    reading = Reading(
        hub=address_of(store_url), schema=schema_of({"hub": store_url, "stream": "orders"}), strict=True
    )
    stream, group = hub.describe_stream("orders"), hub.service.groups.find
    number = group(stream.full_name, "billing").id

    def read(epoch: int) -> int:
        owner = Owner(number, epoch, False)
        span = Span(stream="orders", stream_id=stream.id, shard=0, start=0, end=5, owner=owner)
        return sum(batch.num_rows for batch in read_spans(reading, [span]))

    with hub.join_group("orders", "billing", "a") as member:
        deadline = time.monotonic() + 10
        while not member.leases:
            member.wait(0, 0.2)
            assert time.monotonic() < deadline
        epoch = next(iter(member.leases.values())).epoch
        assert read(epoch) == 5
    with pytest.raises((Fenced, NotOwner)):
        read(epoch)
    close_hubs()
