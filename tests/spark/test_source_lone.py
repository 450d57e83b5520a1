"""Streaming queries that read for themselves, with a group that looks on, on every store; without a JVM."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import shoal
from shoal.core.checkpoint import beyond
from shoal.core.errors import InvalidInput
from shoal.spark.lone_query import LoneQuery
from shoal.spark.stream_reader import ShoalStreamReader
from tests.spark.planning import Driver, done_in_lanes, fill, held


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
