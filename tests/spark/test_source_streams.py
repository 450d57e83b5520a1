"""Queries that read several streams, some of which come later, go, or are made anew; without a JVM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import shoal
from shoal.core.errors import InvalidInput, SchemaMismatch, StreamReplaced, UnknownStream
from shoal.spark.batch_reader import SpanPartition
from shoal.spark.data_source import schema_of
from shoal.spark.lone_query import LoneQuery
from shoal.spark.source_options import source_options
from shoal.spark.stream_reader import ShoalStreamReader
from tests.spark.planning import Driver, fill

Begin = Callable[..., ShoalStreamReader]


def planned(driver: Driver) -> list[list[tuple[str, int]]]:
    """Of each task of the batch that was planned, the streams and shards."""
    partitions: list[Any] = list(driver.reader.partitions(driver.start, driver.end))
    assert all(isinstance(one, SpanPartition) for one in partitions)
    return [[(span.stream.removeprefix("default/"), span.shard) for span in one.spans] for one in partitions]


def a_family(hub: shoal.Hub, stream: str) -> None:
    """A shard with records, and its children with some."""
    hub.append(stream, 0, [b"x"] * 400)
    hub.split_shard(stream, 0)
    for child in (1, 2):
        hub.append(stream, child, [b"y"] * 50)


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_group_in_order_is_read_in_order_beside_one_that_is_not(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    for stream, in_order in (("ordered", True), ("other", False)):
        hub.create_stream(stream, shards=1)
        hub.create_group(stream, "billing", in_order=in_order, timeout=5.0)
        a_family(hub, stream)
    driver = Driver(begin(stream="ordered,other", group="billing", member=member, minPartitions=4))
    driver.plan_until(lambda: len([place for task in planned(driver) for place in task]) == 4)
    places = sorted(place for task in planned(driver) for place in task)
    assert places == [("ordered", 0), ("other", 0), ("other", 1), ("other", 2)], (
        "children in order are a later batch's, and no shard is two tasks'"
    )


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_stream_that_comes_later_is_in_order_if_its_group_is(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    hub.create_stream("orders-1", shards=1)
    hub.create_group("orders-1", "billing", in_order=False, timeout=5.0)
    hub.append("orders-1", 0, [b"x"])
    driver = Driver(begin(stream="orders-[0-9]", group="billing", member=member, minPartitions=4))
    driver.drive(lambda: len(driver.rows) == 1)
    hub.create_stream("orders-2", shards=1)
    hub.create_group("orders-2", "billing", in_order=True, timeout=5.0)
    a_family(hub, "orders-2")
    driver.plan_until(lambda: True)
    assert planned(driver) == [[("orders-2", 0)]]


@pytest.mark.parametrize("member", ["true", "false"])
def test_the_group_of_a_stream_that_comes_later_is_made_as_those_of_the_others_are(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    hub.create_stream("orders-1", shards=1)
    hub.create_group("orders-1", "billing", in_order=False, timeout=5.0)
    hub.append("orders-1", 0, [b"x"])
    given = {"stream": "orders-[0-9]", "group": "billing", "member": member, "maxRecordsPerPartition": 50}
    driver = Driver(begin(**given))
    driver.drive(lambda: len(driver.rows) == 1)
    hub.create_stream("orders-2", shards=1)
    hub.append("orders-2", 0, [b"x"] * 400)
    driver.plan_until(lambda: len(planned(driver)) == 8)
    assert not hub.describe_group("orders-2", "billing").settings.in_order
    driver.run()
    driver.plan()
    driver.reader.stop()
    hub.append("orders-2", 0, [b"y"])
    again = Driver(begin(**given), driver.start)
    again.drive(lambda: again.rows == [(0, 400)])


def test_a_member_that_was_told_to_read_in_order_ends_when_its_group_is_put_out_of_order(
    hub: shoal.Hub, begin: Begin
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", in_order=True, timeout=5.0)
    hub.append("orders", 0, [b"x"] * 5)
    driver = Driver(begin(group="billing", member="true", inOrder="true"))
    driver.drive(lambda: len(driver.rows) == 5)
    hub.update_group("orders", "billing", in_order=False)
    a_family(hub, "orders")
    with pytest.raises(InvalidInput, match="inOrder='true': group 'billing' of orders says otherwise"):
        driver.plan()
    assert [int(one.checkpoint) for one in hub.describe_group("orders", "billing").shards] == [5, 0, 0], (
        "what it had read is saved"
    )


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_group_that_is_put_in_order_under_a_query_is_read_in_order(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", in_order=False, timeout=5.0)
    hub.append("orders", 0, [b"x"] * 100)
    driver = Driver(begin(group="billing", member=member, minPartitions=4))
    driver.drive(lambda: len(driver.rows) == 100)
    hub.update_group("orders", "billing", in_order=True)
    a_family(hub, "orders")
    driver.plan_until(lambda: True)
    assert planned(driver) == [[("orders", 0)]]


@pytest.mark.parametrize("member", ["true", "false"])
@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_of_the_pattern_that_is_deleted_ends_a_strict_query(
    hub: shoal.Hub, begin: Begin, member: str, strict: str
) -> None:
    for stream in ("orders-1", "orders-2"):
        hub.create_stream(stream, shards=1)
        hub.append(stream, 0, [b"x"] * 5)
    given = {"stream": "orders-[0-9]", "startingOffsets": "earliest", "failOnDataLoss": strict}
    driver = Driver(begin(group="billing", member=member, **given))
    driver.drive(lambda: len(driver.rows) == 10)
    driver.plan()
    hub.append("orders-2", 0, [b"never read"] * 5)
    hub.delete_stream("orders-2")
    hub.append("orders-1", 0, [b"y"])
    if strict == "true":
        with pytest.raises(UnknownStream, match="orders-2"):
            driver.drive(lambda: len(driver.rows) == 11)
    else:
        driver.drive(lambda: len(driver.rows) == 11)


@pytest.mark.parametrize("member", ["true", "false"])
@pytest.mark.parametrize("is_back", [True, False])
def test_a_stream_that_went_while_the_query_was_down_is_missed(
    hub: shoal.Hub, begin: Begin, member: str, is_back: bool
) -> None:
    for stream in ("orders-1", "orders-2"):
        hub.create_stream(stream, shards=1)
        hub.append(stream, 0, [b"x"] * 5)
    given = {"stream": "orders-[0-9]", "startingOffsets": "earliest", "group": "billing", "member": member}
    driver = Driver(begin(**given))
    driver.drive(lambda: len(driver.rows) == 10)
    hub.append("orders-1", 0, [b"y"])
    driver.drive(lambda: len(driver.rows) == 11)  # Its last batch holds nothing of the other.
    driver.plan()
    driver.reader.stop()
    hub.append("orders-2", 0, [b"never read"] * 4)
    hub.delete_stream("orders-2")
    if is_back:
        hub.create_stream("orders-2", shards=1)
        hub.append("orders-2", 0, [b"new"] * 3)
    again = Driver(begin(**given), json.loads(json.dumps(driver.start)))
    with pytest.raises(StreamReplaced if is_back else UnknownStream, match="orders-2"):
        again.drive(lambda: len(again.rows) == 3)


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_stream_that_a_query_comes_to_later_is_read_from_the_first_record_that_is_there(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    for stream in ("orders", "carts"):
        hub.create_stream(stream, shards=1)
        hub.append(stream, 0, [b"x"] * 5)
    hub.set_retention("carts", retention_bytes=1)
    hub.append("carts", 0, [b"y"] * 3)
    hub.enforce_retention("carts")
    first = hub.describe_stream("carts").shards[0].first_offset
    assert first == 5
    hub.set_retention("carts")
    given = {"group": "billing", "groupTimeout": "3s", "member": member, "startingOffsets": "earliest"}
    driver = Driver(begin(stream="orders", **given))
    driver.drive(lambda: len(driver.rows) == 5)
    driver.plan()
    driver.reader.stop()
    again = Driver(begin(stream="orders,carts", **given), driver.start)
    again.drive(lambda: len(again.rows) == 3)
    assert again.rows == [(0, 5), (0, 6), (0, 7)]


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_stream_that_a_query_comes_to_later_is_read_from_where_its_group_stands(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    for stream in ("orders", "carts"):
        hub.create_stream(stream, shards=1)
        hub.append(stream, 0, [b"x"] * 5)
    given = {"group": "billing", "groupTimeout": "3s", "member": member, "startingOffsets": "earliest"}
    driver = Driver(begin(stream="orders", **given))
    driver.drive(lambda: len(driver.rows) == 5)
    driver.plan()
    driver.reader.stop()
    hub.create_group("carts", "billing", timeout=3.0)
    hub.checkpoint("carts", "billing", 0, 4, force=True)
    again = Driver(begin(stream="orders,carts", **given), driver.start)
    again.drive(lambda: again.rows == [(0, 4)])
    hub.append("carts", 0, [b"y"])
    again.drive(lambda: again.rows == [(0, 4), (0, 5)])


def test_a_stream_that_comes_before_the_first_batch_is_read_from_where_its_group_stands(
    hub: shoal.Hub, begin: Begin
) -> None:
    hub.create_stream("orders-1", shards=1)
    driver = Driver(begin(stream="orders-[0-9]", group="billing", groupTimeout="3s", minPartitions=4))
    assert not driver.plan()
    hub.create_stream("orders-2", shards=1)
    a_family(hub, "orders-2")
    hub.create_group("orders-2", "billing", timeout=3.0)
    hub.checkpoint("orders-2", "billing", 0, 399, force=True)
    driver.plan_until(lambda: True)
    assert planned(driver) == [[("orders-2", 0)]]
    again = Driver(driver.reader, json.loads(json.dumps(driver.start)))
    again.end = json.loads(json.dumps(driver.end))
    for one in (driver, again):
        one.run()
        assert one.rows == [(0, 399)]


def test_a_stream_that_comes_before_the_first_batch_is_read_from_the_first_record_that_is_there(
    hub: shoal.Hub, begin: Begin
) -> None:
    hub.create_stream("orders-1", shards=1)
    driver = Driver(begin(stream="orders-[0-9]"))
    assert not driver.plan()
    hub.create_stream("orders-2", shards=1)
    hub.append("orders-2", 0, [b"x"] * 5)
    hub.set_retention("orders-2", retention_bytes=1)
    hub.append("orders-2", 0, [b"y"] * 3)
    hub.enforce_retention("orders-2")
    hub.set_retention("orders-2")
    driver.drive(lambda: driver.rows == [(0, 5), (0, 6), (0, 7)])


@pytest.mark.parametrize("member", ["true", "false"])
def test_a_query_that_may_lose_records_begins_again_without_a_named_stream_that_is_gone(
    hub: shoal.Hub, begin: Begin, member: str
) -> None:
    for stream in ("orders-1", "orders-2"):
        hub.create_stream(stream, shards=1)
        hub.append(stream, 0, [b"x"] * 5)
    given = {"stream": "orders-1,orders-2", "group": "billing", "groupTimeout": "3s", "member": member}
    driver = Driver(begin(**given, failOnDataLoss="false"))
    driver.drive(lambda: len(driver.rows) == 10)
    driver.plan()
    driver.reader.stop()
    hub.delete_stream("orders-2")
    hub.append("orders-1", 0, [b"y"])
    with pytest.raises(UnknownStream, match="orders-2"):
        begin(**given)
    again = Driver(begin(**given, failOnDataLoss="false"), driver.start)
    again.drive(lambda: again.rows == [(0, 5)])
    with pytest.raises(UnknownStream, match="orders-2"):
        Driver(begin(**given, failOnDataLoss="false"))  # One that begins now: it may be a slip.
    hub.delete_stream("orders-1")
    with pytest.raises(UnknownStream, match="orders-1"):
        begin(**given, failOnDataLoss="false")


def test_a_query_without_membership_runs_no_batch_again_beside_a_living_member(
    hub: shoal.Hub, begin: Begin
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "billing", timeout=1.0)
    hub.append("orders", 0, [b"x"] * 10)
    given = {"group": "billing", "maxOffsetsPerTrigger": 5}
    driver = Driver(begin(**given))
    driver.plan(ReadMaxRows(5))
    driver.run()
    driver.plan(ReadMaxRows(5))
    assert planned(driver) == [[("orders", 0)]]
    killed = driver.reader._running
    assert killed is not None
    assert isinstance(killed.query, LoneQuery)
    assert killed.query._group is not None
    killed.query._group.abandon()
    deadline = time.monotonic() + 20
    with hub.join_group("orders", "billing", "alive") as alive:
        while not alive.leases:
            alive.wait(0, 0.2)
            assert time.monotonic() < deadline
        again = Driver(begin(**given), json.loads(json.dumps(driver.start)))
        again.end = json.loads(json.dumps(driver.end))
        with pytest.raises(InvalidInput, match="1 consumers use it"):
            again.run()
    again = Driver(begin(**given), json.loads(json.dumps(driver.start)))
    again.end = json.loads(json.dumps(driver.end))
    again.run()
    assert len(again.rows) == 5


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
