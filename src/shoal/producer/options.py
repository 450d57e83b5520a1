"""Settings of a producer, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, CALLS_MAX, DURATION_S_MAX
from shoal.core.model import SendStrategy
from shoal.core.parcels import checked_strategy
from shoal.producer.setting_aside import Fallback


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer gathers, waits and gives up."""

    linger_s: float = 0.005
    """How long a record may wait for company. 5 ms is not felt, and makes batches of a busy sender large."""
    batch_bytes: int = 2_000_000
    """A batch of `send` is sent when it reaches this size: larger ones compress no better."""
    batch_records: int = 100_000
    """Or this many records."""
    buffer_bytes_max: int = 40_000_000
    """Bytes that wait to be stored. Over this, `send` blocks: a slow store must not eat the memory."""
    send_timeout_s: float = 60.0
    """How long `send` blocks before it raises BufferFull."""
    delivery_timeout_s: float = 120.0
    """How long a record is tried, counted from its `send`, before its future fails. Records of a batch fail
    together: the first one's time counts. A split or merge meanwhile gives nobody more time."""
    max_attempts: int = 100
    """`best_tried`: after so many a batch goes to the outbox, or fails. The delivery timeout holds, too."""
    calls_max: int = 2
    """Calls of the hub that are on their way at once. Batches are numbered, so order does not suffer."""
    retry_first_s: float = 0.02
    """The wait after a first failure; it doubles from try to try."""
    retry_most_s: float = 1.0
    """The longest wait between two tries: a store that is back is noticed within this."""
    close_timeout_s: float = 30.0
    """How long `close`, and the end of the program, wait for what is buffered."""
    refresh_s: float = 5.0
    """How old the map of shards may get while records are sent: a newer one is then asked for. Who sends more
    often than that is also told of splits and merges when they are announced."""
    hold_s: float = 0.5
    """How long what is not on its way waits, at most, for a map that was announced; mostly it is there within
    0.1 s. So hardly any batch is refused for a shard that was closed. 0: it waits for none, and learns of
    newer maps by the age of its own, or by a refusal, which costs one call."""
    strategy: SendStrategy | str | None = None
    """`strict`: a record keeps its shard and its place in line, however long that takes. `best_tried`: it may
    go to another shard after a failed attempt. None: as the stream says; and if that says nothing, records
    with a key are strict, others best tried."""
    outbox: Fallback | None = None
    """Where `best_tried` puts what it could not send: an OutboxFallback."""
    partitioner: Callable[[bytes], int | str] | None = None
    """Places a key on the ring instead of the stream's hash: an int from 0 to 2**128-1, or hexadecimal
    digits. One key must always get one place: that is what keeps it in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategy", checked_strategy(self.strategy))
        if self.outbox is not None and not hasattr(self.outbox, "put"):
            raise InvalidInput("outbox", self.outbox, "a shoal.OutboxFallback")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in {"strategy", "outbox"}:
                continue
            if field.name == "partitioner":
                if value is not None and not callable(value):
                    raise InvalidInput(field.name, value, "a function of a key that returns its hash key")
            elif field.name.endswith("_s"):
                if not is_number(value) or not 0 <= value <= DURATION_S_MAX:
                    raise InvalidInput(field.name, value, f"seconds from 0 to {DURATION_S_MAX:g}")
            elif not is_whole(value) or value < 1:
                raise InvalidInput(field.name, value, "a whole number from 1 on")
        for name, most in (
            ("batch_bytes", BATCH_BYTES_MAX // 2),
            ("batch_records", BATCH_RECORDS_MAX),
            ("calls_max", CALLS_MAX),
        ):
            if getattr(self, name) > most:
                raise InvalidInput(name, getattr(self, name), f"at most {most}")
        if self.buffer_bytes_max < self.batch_bytes:
            raise InvalidInput("buffer_bytes_max", self.buffer_bytes_max, "at least batch_bytes")
