"""Keeps a member's query running when it loses a shard in the midst of a batch.

A task whose shard belongs to another by now fails, and Spark then ends the query: the batch cannot be
finished. Begun again with the same checkpoint, it reads what is left of that batch under the leases it has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from shoal.spark.reasons import reason

_log: Final = logging.getLogger("shoal.spark")

_LOSSES: Final = ("Fenced:", "NotOwner:", "LeaseLost:")


def keep_running(begin: Callable[[], StreamingQuery], *, losses_max: int = 100) -> StreamingQuery:
    """Run the query that `begin` starts until it ends, starting it again whenever it lost a shard.

    Any other failure is raised, and so is one loss after `losses_max` in a row, and no batch done in between.
    Returns the query that ended.
    """
    losses = 0
    while True:
        query = begin()
        try:
            query.awaitTermination()
        except PySparkException as error:
            line = reason(error)
            losses = 1 if _has_worked(query) else losses + 1
            if not line.startswith(_LOSSES) or losses > losses_max:
                raise
            _log.warning("%s: begun again after %s", query.name or query.id, line)
        else:
            return query


def _has_worked(query: StreamingQuery) -> bool:
    return any(progress["numInputRows"] for progress in query.recentProgress)
