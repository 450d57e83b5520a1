"""The source's side of streaming queries on every store, without a JVM: as the process of Spark's runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Timer
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

import shoal
from shoal.core.checkpoint import Checkpoint
from shoal.core.errors import (
    Fenced,
    InvalidInput,
    NameTaken,
    NotOwner,
    SchemaMismatch,
    StreamReplaced,
    UnknownStream,
)
from shoal.spark.data_source import schema_of
from shoal.spark.executor_reading import Reading, read_spans
from shoal.spark.hubs import address_of, close_hubs
from shoal.spark.plan.spans import Owner, Span
from shoal.spark.sink import stream_writer
from shoal.spark.source_options import source_options
from shoal.spark.stream_reader import ShoalStreamReader
from shoal.testing.servers import PostgresServer
from shoal.wire.lanes import lanes_of

ALL = ReadAllAvailable()


@pytest.fixture
def hub(store_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(store_url) as hub:
        yield hub


@pytest.fixture
def begin(store_url: str) -> Iterator[Callable[..., ShoalStreamReader]]:
    begun: list[ShoalStreamReader] = []

    def start(**options: Any) -> ShoalStreamReader:
        given = {"hub": store_url, "stream": "orders"} | {name: str(value) for name, value in options.items()}
        begun.append(ShoalStreamReader(source_options(given, is_streaming=True), schema_of(given)))
        return begun[-1]

    yield start
    for reader in begun:
        reader.stop()
    close_hubs()


class Driver:
    """Does what Spark's driver does with a source, one batch at a time."""

    def __init__(self, reader: ShoalStreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.start = reader.initialOffset() if start is None else start
        self.end = self.start
        self.rows: list[tuple[int, int]] = []

    def plan(self, limit: Any = ALL) -> bool:
        """Ask for the next batch; whether there is one."""
        self.end = self.reader.latestOffset(self.start, limit)
        return self.end != self.start

    def plan_all(self, shards: int) -> None:
        """Ask until the next batch is of so many shards. None is run meanwhile."""
        deadline = time.monotonic() + 20
        while not self.plan() or len(self.end["batch"]) < shards:
            assert time.monotonic() < deadline, self.end

    def run(self) -> None:
        """Run the batch that was planned. If a task fails, nothing of it counts, and it is planned anew."""
        rows: list[tuple[int, int]] = []
        for partition in self.reader.partitions(self.start, self.end):
            for batch in self.reader.read(partition):
                places = (batch.column(name).to_pylist() for name in ("shard", "offset"))
                rows += list(zip(*places, strict=True))
        self.rows += rows
        self.start = self.end

    def drive(self, condition: Callable[[], bool], within: float = 20.0) -> None:
        """Batch after batch, until it is so."""
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"{len(self.rows)} rows: {sorted(self.rows)[:50]}"
            if self.plan():
                self.run()


def held(hub: shoal.Hub) -> dict[str | None, int]:
    found: dict[str | None, int] = {}
    for shard in hub.describe_group("orders", "billing").shards:
        found[shard.owner] = found.get(shard.owner, 0) + 1
    return found


def fill(hub: shoal.Hub, shards: int, records: int) -> None:
    for shard in range(shards):
        hub.append("orders", shard, [b"x"] * records)


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_members_divide_the_shards_and_hand_over_with_nothing_repeated(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], coordination: str
) -> None:
    hub.create_stream("orders", shards=4)
    hub.create_group("orders", "billing", timeout=10.0, coordination=coordination)
    fill(hub, 4, 10)
    one = Driver(begin(group="billing", member="true", memberName="one", maxOffsetsPerTrigger=7))
    one.drive(lambda: len(one.rows) >= 20)
    two = Driver(begin(group="billing", member="true", memberName="two", maxOffsetsPerTrigger=7))

    def both() -> None:
        for driver in (one, two):
            if driver.plan(ReadMaxRows(7)):
                driver.run()

    deadline = time.monotonic() + 20
    while held(hub) != {"one": 2, "two": 2} or len(one.rows) + len(two.rows) < 40:
        both()
        assert time.monotonic() < deadline, held(hub)
    fill(hub, 4, 5)
    while len(one.rows) + len(two.rows) < 60:
        both()
        assert time.monotonic() < deadline
    one.plan()  # The boundary of the last batch.
    one.reader.stop()
    two.drive(lambda: held(hub) == {"two": 4})
    fill(hub, 4, 5)
    two.drive(lambda: len(one.rows) + len(two.rows) >= 80)
    everything = [(shard, offset) for shard in range(4) for offset in range(20)]
    assert sorted(one.rows + two.rows) == everything, "each record once, through a join and a clean stop"
    two.plan()
    assert hub.describe_group("orders", "billing").lag == 0


def test_lanes_of_a_worker_that_hands_over_to_spark_are_not_repeated(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", timeout=10.0)
    with hub.producer("orders") as producer:
        for number in range(40):
            producer.send(b"%d" % number, key=f"k{number % 8}")
    with hub.join_group("orders", "billing", "worker") as worker:
        deadline = time.monotonic() + 10
        while not worker.leases:
            worker.wait(0, 0.2)
            assert time.monotonic() < deadline
        whole = hub.read("orders", 0, 0)
        done = lanes_of(whole, 2)[1]
        worker.release({0: Checkpoint(min(lanes_of(whole, 2)[0]), [(0, 40)])})
    spark = Driver(begin(group="billing", member="true"))
    spark.drive(lambda: len(spark.rows) >= 40 - len(done))
    assert sorted(offset for _, offset in spark.rows) == sorted(set(range(40)) - set(done))


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


def test_the_only_member_lets_go_of_all_when_it_is_announced_to_leave(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    """As drain() does. Nobody else is there to ask for its shards."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member="true", memberName="one"))
    one.plan_all(2)
    found = hub.service.groups.find(hub.describe_stream("orders").full_name, "billing")
    (member,) = hub.describe_group("orders", "billing").members
    hub.service.groups.retire(found.id, member.incarnation)
    assert held(hub) == {"one": 2}, "the batch has not ended"
    one.run()
    fill(hub, 2, 5)
    one.drive(lambda: held(hub) == {None: 2})
    assert sorted(one.rows) == [(shard, offset) for shard in (0, 1) for offset in range(10)]
    assert [int(shard.checkpoint) for shard in hub.describe_group("orders", "billing").shards] == [10, 10]


def test_a_stop_in_the_midst_of_a_batch_hands_nothing_over(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    """Tasks may outlive the query: who got their shards at once could overtake them."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 10)
    one = Driver(begin(group="billing", member="true", memberName="one"))
    one.plan_all(2)
    assert one.reader.partitions(one.start, one.end)
    one.reader.stop()
    assert held(hub) == {"one": 2}


def test_a_new_groups_start_is_that_of_the_query(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=3)
    fill(hub, 3, 5)
    with pytest.raises(InvalidInput, match="this stream is not read"):
        begin(group="billing", member="true", startingOffsets='{"order": {"0": 3}}').initialOffset()
    start = '{"orders": {"0": 3, "1": -1, "2": -2}}'
    one = Driver(begin(group="billing", member="true", startingOffsets=start))
    one.drive(lambda: len(one.rows) >= 7)
    assert sorted(one.rows) == [(0, 3), (0, 4), *((2, offset) for offset in range(5))]


@pytest.mark.parametrize("strict", ["true", "false"])
@pytest.mark.parametrize("member", ["true", "false"])
def test_of_a_stream_that_is_made_anew_the_group_is_made_anew_too_or_the_query_ends(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str, strict: str
) -> None:
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 5)
    one = Driver(begin(group="billing", member=member, failOnDataLoss=strict))
    one.drive(lambda: len(one.rows) == 5 and hub.describe_group("orders", "billing").lag == 0)
    hub.delete_stream("orders")
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 3)
    if strict == "true":
        with pytest.raises(StreamReplaced):
            one.drive(lambda: False)
        return
    one.drive(lambda: len(one.rows) == 8)
    assert [offset for _, offset in one.rows] == [0, 1, 2, 3, 4, 0, 1, 2]
    one.drive(lambda: hub.describe_group("orders", "billing").lag == 0)


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_new_stream_of_a_pattern_with_other_columns_is_refused_by_its_name(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str
) -> None:
    hub.create_stream("orders-1", shards=1)
    options = {"stream": "orders-[0-9]", "group": "billing", "member": member}
    one = Driver(begin(**options))
    hub.create_stream("orders-2", shards=1, schema={"n": "int64"})
    with pytest.raises(SchemaMismatch, match="orders-2='n: int64'"):
        one.drive(lambda: False)


def test_trigger_once_takes_what_is_there_however_little(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 5)
    for limit, is_enough in ((ReadMinRows(20), False), (ALL, True)):
        reader = begin(startingOffsets="earliest", minOffsetsPerTrigger=20)
        assert reader.getDefaultReadLimit() == ReadMinRows(20)
        assert Driver(reader).plan(limit) == is_enough


def test_a_second_process_with_the_same_checkpoint_ends_the_first(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 5)
    one = Driver(begin(group="billing", groupTimeout="10s"))
    one.drive(lambda: len(one.rows) == 5)
    two = Driver(begin(group="billing"), one.start)
    two.plan()
    with pytest.raises(NameTaken):
        one.drive(lambda: False)


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


def test_an_idle_answer_is_the_same_text_and_is_held_back(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=12)
    driver = Driver(begin(startingOffsets="earliest"))
    assert repr(driver.reader.latestOffset(driver.start, ALL)) == repr(driver.start)
    began = time.monotonic()
    for _ in range(5):
        assert repr(driver.reader.latestOffset(driver.start, ALL)) == repr(driver.start)
    assert time.monotonic() - began > 0.5
    fill(hub, 1, 1)
    driver.drive(lambda: driver.rows == [(0, 0)])


def test_a_query_that_shares_a_group_waits_for_its_shards_before_it_ends(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=2)
    fill(hub, 2, 5)
    hub.split_shard("orders", 0)
    hub.append("orders", 2, [b"x"])
    reader = begin(group="billing", member="true", maxOffsetsPerTrigger=4)
    reader.prepareForTriggerAvailableNow()
    hub.append("orders", 3, [b"late"])
    driver = Driver(reader)
    while driver.plan(ReadMaxRows(4)):
        driver.run()
    assert sorted(driver.rows) == [(0, n) for n in range(5)] + [(1, n) for n in range(5)] + [(2, 0)]


def test_a_checkpoint_of_a_member_is_no_checkpoint_of_a_lone_query(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=1)
    member = Driver(begin(group="billing", member="true"))
    with pytest.raises(InvalidInput, match="go on as a member"):
        begin().latestOffset(member.start, ALL)


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
