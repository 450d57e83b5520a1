"""User code that consumes: processors that fail, dead letters, and consumers that poll."""

from __future__ import annotations

from shoal.core.errors.root import NotFound, ShoalError


class ProcessorFailed(ShoalError):
    """User code raised, and the policy is to stop."""

    def __init__(self, *, shard: int, kind: str, text: str) -> None:
        super().__init__(f"shard={shard}: the processor raised {kind}: {text}; the policy is to stop")
        self.shard, self.kind, self.text = shard, kind, text


class UnknownDeadLetter(NotFound):
    def __init__(self, *, where: str, number: int) -> None:
        super().__init__(
            f"number={number}: {where} has no open dead letter of this number; "
            "see them with dead_letters() or 'shoal group dead list'"
        )
        self.where, self.number = where, number


class ConsumerBusy(ShoalError):
    """Two threads, or two tasks, want the same consumer at once: each would get a part of the records."""

    def __init__(self, *, consumer: str, doing: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: another thread is in {doing}(); poll from one, or give each a "
            "consumer of its own. wakeup() and close() may come from any"
        )
        self.consumer, self.doing = consumer, doing


class ConsumerClosed(ShoalError):
    def __init__(self, why: str) -> None:
        super().__init__(f"the consumer is closed: {why}; make a new one")
        self.why = why


class PollTooLate(ShoalError):
    """Nobody polled for `max_poll_interval`: the shards were given up. The next poll joins again."""

    def __init__(self, *, consumer: str, interval_s: float) -> None:
        super().__init__(
            f"consumer={consumer!r}: it was not polled for max_poll_interval={interval_s:g} s, and has given "
            "its shards up; what was not committed comes again elsewhere. Poll again to join, with fewer "
            "records at a time (max_poll_records), or with a longer interval"
        )
        self.consumer, self.interval_s = consumer, interval_s


class WokenUp(ShoalError):
    """`wakeup()` was called: the poll that waits, or else the next one, ends with this. Nothing is lost."""

    def __init__(self) -> None:
        super().__init__("the consumer was woken up; poll again, or close it")


class DeserializationFailed(ShoalError):
    """A deserializer raised on a record; `__cause__` is what. Seek past it to go on without it."""

    def __init__(self, *, stream: str, shard: int, offset: int, what: str) -> None:
        super().__init__(
            f"offset={offset}: the {what} of this record of {stream!r}, shard {shard}, cannot be read; "
            f"seek to {offset + 1} to leave it out"
        )
        self.stream, self.shard, self.offset, self.what = stream, shard, offset, what
