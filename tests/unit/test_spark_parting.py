"""How a query that is stopped parts from its group, without Spark and without a hub."""

from __future__ import annotations

from shoal.spark.plan.parting import Parting, parting
from shoal.spark.plan.spans import Span


def span(start: int, end: int) -> Span:
    return Span(stream="orders", stream_id=7, shard=0, start=start, end=end)


def test_a_query_whose_tasks_may_be_at_work_hands_nothing_over() -> None:
    assert parting([span(3, 4)]) is Parting.FALL_SILENT


def test_a_query_that_has_given_out_nothing_since_it_last_looked_hands_over() -> None:
    assert parting([]) is Parting.HAND_OVER
    assert parting([span(3, 3)]) is Parting.HAND_OVER, "of no records there is no task"
