"""The source's side of streaming queries on every store, without a JVM: as the process of Spark's runs it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import shoal
from shoal.core.checkpoint import Checkpoint, beyond
from shoal.core.errors import (
    InvalidInput,
    NameTaken,
    SchemaMismatch,
    StreamReplaced,
)
from shoal.spark.batch_reader import ShoalBatchReader, SpanPartition
from shoal.spark.data_source import schema_of
from shoal.spark.hubs import close_hubs
from shoal.spark.lone_query import LoneQuery
from shoal.spark.source_options import source_options
from shoal.spark.stream_reader import ShoalStreamReader
from shoal.wire.lanes import lanes_of
from tests.spark.planning import ALL, Driver, fill, held


@pytest.fixture
def hub(store_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(store_url) as hub:
        yield hub


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


def done_in_lanes(hub: shoal.Hub, *, in_order: bool = True) -> set[int]:
    """A worker of two lanes hands over: one has done all, the other nothing. The 40 records that are left."""
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", timeout=2.0, in_order=in_order)
    with hub.producer("orders") as producer:
        for number in range(40):
            producer.send(b"%d" % number, key=f"k{number % 8}")
    with hub.join_group("orders", "billing", "worker") as worker:
        deadline = time.monotonic() + 10
        while not worker.leases:
            worker.wait(0, 0.2)
            assert time.monotonic() < deadline
        slow, quick = lanes_of(hub.read("orders", 0, 0), 2)
        worker.release({0: Checkpoint(min(slow), [(0, 40)])})
    assert set(slow) | set(quick) == set(range(40))
    assert 10 < len(slow) < 30
    return set(slow)


@pytest.mark.parametrize("member", ["true", "false"])
@pytest.mark.parametrize("in_order", [True, False])
def test_lanes_of_a_worker_that_hands_over_to_spark_are_not_repeated(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str, in_order: bool
) -> None:
    left = done_in_lanes(hub, in_order=in_order)
    spark = Driver(begin(group="billing", member=member))
    spark.drive(lambda: len(spark.rows) >= len(left))
    fill(hub, 1, 3)
    spark.drive(lambda: len(spark.rows) >= len(left) + 3)
    assert sorted(offset for _, offset in spark.rows) == sorted(left | {40, 41, 42})


def test_a_lone_query_leaves_out_what_lanes_have_done_through_restarts_and_batches_that_are_run_again(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    left = done_in_lanes(hub)
    given = {"group": "billing", "maxOffsetsPerTrigger": "10"}
    one = Driver(begin(**given))
    assert one.plan(ReadMaxRows(10))
    again = Driver(begin(**given))  # Killed in its first batch: Spark asks anew where the query begins.
    again.end = json.loads(json.dumps(one.end))
    again.run()
    assert again.plan(ReadMaxRows(10))
    third = Driver(begin(**given), json.loads(json.dumps(again.start)))
    third.end = json.loads(json.dumps(again.end))
    third.run()  # And in its second one: nobody but Spark's offsets knows how it was planned.
    begun = int(third.start["streams"]["orders"]["shards"]["0"])
    third.drive(lambda: not third.plan(ReadMaxRows(10)))
    assert sorted(offset for _, offset in again.rows + third.rows) == sorted(left)
    assert "beyond" in again.start["streams"]["orders"]
    assert begun < 40
    assert "beyond" not in third.start["streams"]["orders"], "it has come past all of them"


def test_a_group_under_a_lone_query_keeps_what_lanes_have_done(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    """Whoever comes after the query goes on where it stands."""
    left = done_in_lanes(hub)
    one = Driver(begin(group="billing", maxOffsetsPerTrigger="10"))
    for _ in range(2):
        assert one.plan(ReadMaxRows(10))
        one.run()

    def checkpoint() -> int:
        return hub.describe_group("orders", "billing").shards[0].checkpoint

    stood = int(checkpoint())
    deadline = time.monotonic() + 20
    while int(checkpoint()) == stood:
        one.plan(ReadMaxRows(0))
        assert time.monotonic() < deadline
    assert 0 < int(checkpoint()) < 40
    assert beyond(checkpoint()) == ((0, 40),)
    assert {offset for _, offset in one.rows} == {n for n in left if n < checkpoint()}


@pytest.mark.parametrize("in_order", ["true", "false"])
def test_a_batch_read_from_where_the_group_stands_leaves_out_what_lanes_have_done(
    hub: shoal.Hub, store_url: str, in_order: str
) -> None:
    left = done_in_lanes(hub)
    given = {"hub": store_url, "stream": "orders", "group": "billing", "startingOffsets": "group"}
    reader = ShoalBatchReader(
        source_options({**given, "inOrder": in_order, "minPartitions": "3"}, is_streaming=False),
        schema_of(given),
    )
    found = [
        offset
        for part in reader.partitions()
        if isinstance(part, SpanPartition)
        for batch in reader.read(part)
        for offset in batch.column("offset").to_pylist()
    ]
    assert sorted(found) == sorted(left)
    close_hubs()


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


def test_a_group_that_is_reset_under_a_query_of_its_own_sees_it_again_where_it_is(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    """Spark's checkpoint is the truth of such a query: it reads nothing again, and says so to the group."""
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=10.0)
    fill(hub, 2, 5)
    one = Driver(begin(group="billing"))
    one.drive(lambda: len(one.rows) == 10 and hub.describe_group("orders", "billing").lag == 0)
    hub.reset_group("orders", "billing", to="earliest")
    one.drive(lambda: hub.describe_group("orders", "billing").lag == 0)
    fill(hub, 2, 1)
    one.drive(lambda: len(one.rows) == 12 and hub.describe_group("orders", "billing").lag == 0)
    assert held(hub) == {f"spark-{one.start['query']}": 2}


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


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_checkpoint_of_other_streams_is_refused_by_their_names_or_left_behind(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], strict: str
) -> None:
    for stream in ("orders", "carts"):
        hub.create_stream(stream, shards=1)
    fill(hub, 1, 5)
    one = Driver(begin(stream="carts"))
    two = Driver(begin(stream="orders", failOnDataLoss=strict), one.start)
    if strict == "true":
        with pytest.raises(InvalidInput, match="stream='carts': the query has read it until now"):
            two.plan()
        return
    two.drive(lambda: len(two.rows) == 5)


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
    for limit, is_enough in ((ReadMinRows(20), False), (ReadAllAvailable(), True)):
        reader = begin(startingOffsets="earliest", minOffsetsPerTrigger=20)
        assert reader.getDefaultReadLimit() == ReadMinRows(20)
        assert Driver(reader).plan(limit) == is_enough


@pytest.mark.parametrize("member", ["true", "false"])
def test_trigger_once_of_which_a_group_would_not_hear_is_refused(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str
) -> None:
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 5)
    reader = begin(group="billing", member=member)
    assert not isinstance(reader.getDefaultReadLimit(), ReadAllAvailable), "Spark's word for it"
    with pytest.raises(InvalidInput, match=r"trigger='once': .*availableNow"):
        Driver(reader).plan(ReadAllAvailable())
    assert hub.describe_group("orders", "billing").members == ()


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
@pytest.mark.parametrize("is_now", [True, False])
def test_a_member_passes_over_what_retention_took_of_a_closed_shard_and_goes_on_with_its_children(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], coordination: str, is_now: bool
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=4.0, coordination=coordination)
    fill(hub, 2, 10)
    for shard in (0, 1):
        hub.checkpoint("orders", "billing", shard, 4, force=True)
    hub.split_shard("orders", 0)
    time.sleep(1.1)
    hub.set_retention("orders", retention=1.0)
    hub.enforce_retention()
    hub.set_retention("orders")
    for shard in (2, 3):
        hub.append("orders", shard, [b"x"] * 5)
    reader = begin(group="billing", member="true", failOnDataLoss="false")
    if is_now:
        reader.prepareForTriggerAvailableNow()
    driver = Driver(reader)
    driver.drive(lambda: len(driver.rows) == 10)
    assert sorted(driver.rows) == [(shard, offset) for shard in (2, 3) for offset in range(5)]
    driver.plan()
    shards = hub.describe_group("orders", "billing").shards
    assert [int(shard.checkpoint) for shard in shards] == [10, 10, 5, 5], "what is gone is not lag"


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_a_query_without_membership_takes_over_from_who_died(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], coordination: str
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=2.0, coordination=coordination)
    dead = hub.join_group("orders", "billing", "dead")
    while len(dead.leases) < 2:
        dead.wait(0, 10.0)
    dead.abandon()
    deadline = time.monotonic() + 20
    while coordination == "coordinated" and hub.describe_group("orders", "billing").members:
        assert time.monotonic() < deadline  # Of a leased group nobody is left who would notice.
        time.sleep(0.1)
    fill(hub, 2, 5)
    driver = Driver(begin(group="billing"))
    driver.drive(lambda: len(driver.rows) == 10)
    driver.drive(lambda: not driver.plan() and hub.describe_group("orders", "billing").lag == 0)


def test_the_dead_of_several_leased_groups_are_listened_to_at_once(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    names = [f"orders-{number}" for number in range(6)]
    for name in names:
        hub.create_stream(name, shards=1)
        hub.create_group(name, "billing", timeout=2.0, coordination="leased")
        dead = hub.join_group(name, "billing", "dead")
        while not dead.leases:
            dead.wait(0, 10.0)
        dead.abandon()
    driver = Driver(begin(stream=",".join(names), group="billing"))
    began = time.monotonic()
    driver.plan()
    assert 2.0 <= time.monotonic() - began < 6.0


def test_a_query_without_membership_is_refused_beside_a_living_member_of_a_leased_group(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=60.0, coordination="leased")
    fill(hub, 2, 5)
    with hub.join_group("orders", "billing", "alive", heartbeat_interval=1.0) as alive:
        while len(alive.leases) < 2:
            alive.wait(0, 10.0)
        driver = Driver(begin(group="billing"))
        with pytest.raises(InvalidInput, match="1 consumers use it"):
            driver.plan()
        assert len(alive.leases) == 2


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_a_query_without_membership_ends_when_its_group_has_given_its_shards_to_another(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], coordination: str
) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=4.0, handover_timeout=0.5, coordination=coordination)
    fill(hub, 2, 5)
    driver = Driver(begin(group="billing"))
    driver.drive(lambda: len(driver.rows) == 10 and held(hub).keys() != {None})
    driver.drive(lambda: not driver.plan() and hub.describe_group("orders", "billing").lag == 0)
    with hub.join_group("orders", "billing", "late") as late:
        deadline = time.monotonic() + 20
        while not late.leases:
            driver.plan()
            assert time.monotonic() < deadline, held(hub)
        (mine,) = late.leases
        assert not driver.plan(), "of what is not its own nothing is new"
        hub.append("orders", 1 - mine, [b"x"])
        driver.drive(lambda: driver.rows[-1] == (1 - mine, 5))
        hub.append("orders", mine, [b"x"])
        with pytest.raises(InvalidInput, match=rf"shard {mine} is late's.*member=true"):
            driver.drive(lambda: False)
    assert (mine, 5) not in driver.rows


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


@pytest.mark.parametrize(
    "given",
    [{"startingOffsets": "earliest"}, {"group": "billing", "member": "true", "groupTimeout": "10s"}],
    ids=["lone", "member"],
)
def test_a_batch_that_is_run_again_is_divided_as_it_was_whatever_the_options_say_by_then(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], given: dict[str, str]
) -> None:
    """A sink that is exactly once knows rows by their partition; and another driver may have other cores."""
    hub.create_stream("orders", shards=4)
    fill(hub, 4, 5)
    driver = Driver(begin(minPartitions=2, **given))
    if "member" in given:
        driver.plan_all(4)
    else:
        assert driver.plan()

    def divided(reader: ShoalStreamReader) -> list[set[int]]:
        parts = reader.partitions(driver.start, driver.end)
        return [{span.shard for span in part.spans} for part in parts if isinstance(part, SpanPartition)]

    before = divided(driver.reader)
    assert len(before) == 2
    driver.reader.stop()
    again = begin(minPartitions=4, **given)
    assert divided(again) == before
    hub.append("orders", 0, [b"x"])
    driver = Driver(again, driver.end)
    driver.drive(driver.plan)
    assert driver.end["tasks"] == [4, None, False], "the next batch is divided as it is asked for now"


@pytest.mark.parametrize("given", [{}, {"group": "billing", "member": "true"}], ids=["lone", "member"])
def test_a_shard_with_little_in_it_has_its_turn_though_a_batch_has_fewer_records_than_shards(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], given: dict[str, str]
) -> None:
    hub.create_stream("orders", shards=4)
    for shard, records in enumerate([50, 40, 1, 1]):
        hub.append("orders", shard, [b"x"] * records)
    driver = Driver(begin(maxOffsetsPerTrigger=2, startingOffsets="earliest", **given))
    deadline = time.monotonic() + 20
    if given:
        driver.plan_all(4)  # All four shards are held.
    while len(driver.rows) < 8:
        assert time.monotonic() < deadline, driver.rows
        if driver.plan(ReadMaxRows(2)):
            driver.run()
    assert {(2, 0), (3, 0)} <= set(driver.rows)


@pytest.mark.parametrize("member", ["false", "true"])
def test_a_bound_of_tasks_beside_a_group_in_order_is_refused_before_the_query_begins(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str
) -> None:
    hub.create_stream("orders", shards=1)
    told = "maxRecordsPerPartition=10: group 'billing' of orders is in order, and a shard is read by one"
    options = {"group": "billing", "member": member, "maxRecordsPerPartition": 10}
    with pytest.raises(InvalidInput, match=told):
        begin(**options).initialOffset()
    assert hub.describe_groups("orders") == [], "whoever is refused makes no group, which would be in order"
    hub.create_group("orders", "billing", in_order=True)
    with pytest.raises(InvalidInput, match=told):
        begin(**options).initialOffset()
    hub.update_group("orders", "billing", in_order=False)
    fill(hub, 1, 40)
    driver = Driver(begin(**options))
    driver.drive(driver.plan)
    assert len(driver.reader.partitions(driver.start, driver.end)) == 4


def test_a_query_that_was_killed_and_reads_what_is_there_now_saves_it_to_its_group_before_it_ends(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]
) -> None:
    """Its shards are its dead self's until the timeout, and it has read all of them long before."""
    hub.create_stream("orders", shards=2)
    fill(hub, 2, 5)
    killed = Driver(begin(group="billing", groupTimeout="3s", startingOffsets="earliest"))
    killed.drive(lambda: len(killed.rows) == 10)
    killed.drive(lambda: killed.plan() or hub.describe_group("orders", "billing").lag == 0)
    query = killed.reader._running.query  # type: ignore[union-attr]
    assert isinstance(query, LoneQuery)
    assert query._group is not None
    query._group.abandon()
    fill(hub, 2, 5)
    reader = begin(group="billing")
    reader.prepareForTriggerAvailableNow()
    again = Driver(reader, killed.start)
    while again.plan():
        again.run()
    assert len(again.rows) == 10
    assert hub.describe_group("orders", "billing").lag == 0


def test_a_query_begins_at_a_time(hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]) -> None:
    hub.create_stream("orders", shards=1)
    times = pa.array([1_000, 2_000, 3_000, 4_000], pa.timestamp("ms", "UTC"))
    hub.append("orders", 0, pa.table({"value": [b"x"] * 4, "timestamp": times}))
    driver = Driver(begin(startingTimestamp=3_000))
    driver.drive(lambda: driver.rows == [(0, 2), (0, 3)])


def test_a_stream_that_a_pattern_matches_later_is_read_from_its_beginning_and_the_notes_of_sinks_are_not(
    hub: shoal.Hub, store_url: str
) -> None:
    """A query that reads the notes of its own sink would feed itself."""
    hub.create_stream("orders", shards=1)
    fill(hub, 1, 1)
    hub.create_stream("spark.ledger", shards=1)
    hub.append("spark.ledger", 0, [b"a note"])
    given = {"hub": store_url, "streamPattern": ".*", "startingOffsets": "earliest"}
    reader = ShoalStreamReader(source_options(given, is_streaming=True), schema_of(given))
    driver = Driver(reader)
    driver.drive(lambda: driver.rows == [(0, 0)])
    hub.create_stream("bills", shards=1)
    hub.append("bills", 0, [b"x", b"x"])
    driver.drive(lambda: driver.rows == [(0, 0), (0, 0), (0, 1)])
    assert list(driver.end["streams"]) == ["bills", "orders"]
    reader.stop()


@pytest.mark.parametrize("start", [{"startingOffsets": "latest"}, {"startingTimestamp": "4000000000000"}])
@pytest.mark.parametrize("member", ["true", "false"])
def test_a_stream_that_comes_to_a_query_later_is_read_whole_and_its_group_says_so(
    hub: shoal.Hub, begin: Callable[..., ShoalStreamReader], member: str, start: dict[str, str]
) -> None:
    """Where the query begins holds for the streams that it begins with; also after a restart."""
    hub.create_stream("orders-1", shards=1)
    hub.append("orders-1", 0, [b"x"] * 3)
    options = {"stream": "orders-[0-9]", "group": "billing", "member": member, "groupTimeout": "2s", **start}

    def lag(stream: str) -> int:
        return hub.describe_group(stream, "billing").lag

    def read_whole(driver: Driver, stream: str, records: int) -> None:
        hub.create_stream(stream, shards=1)
        hub.append(stream, 0, [b"x"] * records)
        driver.rows.clear()
        deadline = time.monotonic() + 20
        while not driver.plan():
            assert time.monotonic() < deadline
        assert lag(stream) == records, "before any of it is read"
        driver.run()
        driver.drive(lambda: driver.rows == [(0, n) for n in range(records)])
        driver.drive(lambda: not driver.plan() and lag(stream) == 0)

    one = Driver(begin(**options))
    assert not one.plan()
    read_whole(one, "orders-2", 5)
    one.reader.stop()
    read_whole(Driver(begin(**options), one.start), "orders-3", 7)
    assert [int(shard.checkpoint) for shard in hub.describe_group("orders-1", "billing").shards] == [3]


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
