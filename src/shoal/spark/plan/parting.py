"""How a query that is stopped parts from its group. Spark says nothing of the tasks that it leaves behind.

Invariant: nobody is given a shard while tasks of a query that is gone may still be at it. A query that is
known by its name comes back to its place whichever way it parted.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from shoal.spark.plan.spans import Span


class Parting(StrEnum):
    """What becomes of the shards that are held."""

    HAND_OVER = "hand over"
    """At once: nothing runs."""
    FALL_SILENT = "fall silent"
    """As after a crash: they come free after the group's timeout, by when tasks have noticed, or are over."""


def parting(at_work: Collection[Span]) -> Parting:
    """`at_work`: what was given to tasks since the query last looked for more. Until it does, it cannot know
    that they are over: Spark asks for nothing between a batch's end and the next plan."""
    return Parting.FALL_SILENT if any(span.records for span in at_work) else Parting.HAND_OVER
