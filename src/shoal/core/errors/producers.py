"""Producers and their transactions."""

from __future__ import annotations

from shoal.core.errors.root import InvalidInput, ShoalError


class ProducerFenced(ShoalError):
    """A newer epoch of the same producer has written; whoever shows an older one is fenced."""

    def __init__(self, *, producer: str, held: int, current: int) -> None:
        super().__init__(f"producer {producer!r}: epoch {held} is fenced, the log has seen {current}")
        self.producer, self.held, self.current = producer, held, current


class OutOfSequence(ShoalError):
    """A numbered batch that is neither the next one nor one that is still remembered."""

    def __init__(self, *, producer: str, shard: int, sequence: int, expected: int) -> None:
        super().__init__(
            f"producer {producer!r}, shard {shard}: sequence={sequence}, but the next one is {expected}; "
            "raise the producer's epoch to begin anew"
        )
        self.producer, self.shard, self.sequence, self.expected = producer, shard, sequence, expected


class BufferFull(ShoalError):
    """The producer's memory limit was reached and nothing drained within the time allowed."""

    retriable = True

    def __init__(self, *, buffered: int, limit: int, waited_s: float) -> None:
        super().__init__(
            f"buffer_bytes_max={limit}: {buffered} bytes wait, and none were stored within {waited_s:g} s; "
            "send slower, raise buffer_bytes_max, or look at why the store is slow"
        )
        self.buffered, self.limit, self.waited_s = buffered, limit, waited_s


class DeliveryTimeout(ShoalError):
    """A batch was given up after `delivery_timeout_s`, or after `max_attempts`; whether it was stored is not
    known.

    `__cause__` is the store's last answer. `attempts` is 0 if it was the time that was up.
    """

    def __init__(self, *, shard: int, records: int, waited_s: float, last: str, attempts: int = 0) -> None:
        limit = f"with max_attempts={attempts}" if attempts else f"within delivery_timeout_s={waited_s:g}"
        super().__init__(
            f"shard {shard}: {records} records were not confirmed {limit}; the store's last answer: {last}"
        )
        self.shard, self.records, self.waited_s, self.last = shard, records, waited_s, last
        self.attempts = attempts


class WrongThread(InvalidInput):
    """A call that would wait for the thread it is made from."""


class TransactionEnded(ShoalError):
    """The transaction was committed or aborted, or has failed: nothing more goes into it."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the transaction has ended: {why}; begin another with producer.transaction()")
        self.why = why


class ProducerClosed(ShoalError):
    def __init__(self, why: str) -> None:
        super().__init__(f"the producer is closed: {why}; make a new one with hub.producer()")
        self.why = why
