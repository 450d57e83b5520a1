"""Queries of Spark: shards that were not handed over, and batches that were not repeated as they were."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.errors.root import ShoalError
from shoal.core.errors.texts import plain


class DrainTimeout(ShoalError):
    """A Spark query did not let go of its shards in time; it still runs, and gets nothing new, unless it was
    still at its first batch: then it has not said which shards it has."""

    def __init__(self, *, member: str, shards: Sequence[str], waited_s: float) -> None:
        held = ", ".join(shards) or "its shards"
        super().__init__(
            f"timeout={waited_s:g}: {member} still holds {held}, since its batch has not ended; "
            "drain again with a longer one (if the group is leased: where its driver runs), or stop() the "
            "query: what its batch had begun is then repeated"
        )
        self.member, self.shards, self.waited_s = member, shards, waited_s


class DrainFailed(ShoalError):
    """A Spark query ended by an error of its own before it had handed its shards over."""

    def __init__(self, *, member: str, reason: str) -> None:
        super().__init__(
            f"query={member!r}: it failed before it had handed over: {plain(reason)}; its shards come free "
            "after the group's timeout. Mend that, and start it again with its checkpoint"
        )
        self.member, self.reason = member, reason


class DrainCutShort(ShoalError):
    """A Spark query was stopped in a batch that had just begun: that batch is repeated."""

    def __init__(self, *, member: str, shards: Sequence[str]) -> None:
        super().__init__(
            f"query={member!r}: it was stopped in a batch that had just begun; {', '.join(shards)} come free "
            "after the group's timeout, and that batch is repeated. Drain it where its driver runs"
        )
        self.member, self.shards = member, shards


class NotRepeated(ShoalError):
    """A batch or a task was run again with other rows than before; exactly once cannot be kept."""

    def __init__(self, *, where: str, detail: str) -> None:
        super().__init__(
            f"{where} was run before with other rows: {detail}. Rows must come in the same partitions and "
            "order when a batch is run again: restart with the same number of partitions and the same "
            "spark.sql.execution.arrow.maxRecordsPerBatch, put .repartition(n) before the sink, sort within "
            "partitions (mapInArrow), or run this batch once with exactlyOnce=false, which may store rows "
            "twice"
        )
        self.where, self.detail = where, detail
