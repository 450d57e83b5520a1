"""The source's side of streaming queries on every store, without a JVM: as the process of Spark's runs it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import shoal
from shoal.core.errors import InvalidInput, NameTaken
from shoal.spark.batch_reader import ShoalBatchReader, SpanPartition
from shoal.spark.data_source import schema_of
from shoal.spark.hubs import close_hubs
from shoal.spark.source_options import source_options
from shoal.spark.stream_reader import ShoalStreamReader
from tests.spark.planning import ALL, Driver, done_in_lanes, fill, held


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


def test_a_query_begins_at_a_time(hub: shoal.Hub, begin: Callable[..., ShoalStreamReader]) -> None:
    hub.create_stream("orders", shards=1)
    times = pa.array([1_000, 2_000, 3_000, 4_000], pa.timestamp("ms", "UTC"))
    hub.append("orders", 0, pa.table({"value": [b"x"] * 4, "timestamp": times}))
    driver = Driver(begin(startingTimestamp=3_000))
    driver.drive(lambda: driver.rows == [(0, 2), (0, 3)])


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
