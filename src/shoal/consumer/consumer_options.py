"""Everything a consumer that polls can be told, in one frozen object. Kafka's names, where the meaning is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from shoal.consumer.options import OnExpired, WorkerOptions
from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.limits import DURATION_S_MAX
from shoal.core.retry import FailureRules

Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer polls. Times are in seconds."""

    auto_commit: bool = True
    """What a poll returned is declared done by the next one, and reaches the hub in the background."""
    auto_commit_interval: float = 5.0
    """How often, apart from hand-overs and the end, which always wait for it."""
    auto_offset_reset: str = "earliest"
    """Where there is no position, or retention was faster: earliest, latest, or none, which is an error."""
    max_poll_records: int = 1_000_000
    """At most, from one poll. Bytes bound it before: a poll returns what has been fetched."""
    fetch_max_bytes: int = 8_000_000
    """At most, of one shard, in one read."""
    ahead_bytes: int = 64_000_000
    """What all shards of a stream together may have fetched and not yet finished."""
    max_poll_interval: float | None = None
    """Who does not poll for so long gives its shards up. None: heartbeats alone say that it lives."""
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    look_interval: float = 5.0
    """How often it is looked for streams that match, or have come again. It costs one query."""
    close_timeout: float = 30.0
    """How long `close` and `subscribe` wait for what is to be handed over."""
    heartbeat_interval: float | None = None
    """None: a quarter of the group's timeout."""
    create_group: bool = True
    """Make the group if there is none, as these say:"""
    in_order: bool = True
    timeout: float = 20.0
    handover_timeout: float | None = None
    coordination: str = "coordinated"
    strategy: str | None = None
    """None: `balanced` for one stream; for several `spread`, so that the same member is not the fuller one in
    all of them. A leased group is always balanced."""

    def __post_init__(self) -> None:
        for name in ("auto_commit", "create_group", "in_order"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(name, getattr(self, name), "True or False")
        if self.auto_offset_reset not in _RESETS:
            raise InvalidInput("auto_offset_reset", self.auto_offset_reset, f"one of {', '.join(_RESETS)}")
        for name in ("max_poll_records", "fetch_max_bytes", "ahead_bytes"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise InvalidInput(name, value, "a whole number from 1 on")
        for name in ("key_deserializer", "value_deserializer"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidInput(name, getattr(self, name), "a function of bytes")
        for name in ("auto_commit_interval", "look_interval", "close_timeout", "max_poll_interval"):
            value = getattr(self, name)
            is_left_out = value is None and name == "max_poll_interval"
            if not is_left_out and not (is_number(value) and 0 < value <= DURATION_S_MAX):
                raise InvalidInput(name, value, f"seconds, above 0 and up to {DURATION_S_MAX:g}")
        self.as_worker(is_several=False)  # Which checks the others.

    def as_worker(self, *, is_several: bool, in_order: bool | None = None) -> WorkerOptions:
        """The same, as the runtime of one stream is told. `is_several`: it is one of several streams."""
        is_leased = self.coordination == "leased"
        default = "spread" if is_several and not is_leased else "balanced"
        return WorkerOptions(
            heartbeat_interval=self.heartbeat_interval,
            fetch_bytes=self.fetch_max_bytes,
            ahead_bytes=self.ahead_bytes,
            batch_records=self.max_poll_records,
            persist_interval=self.auto_commit_interval,
            stop_timeout=self.close_timeout,
            on_expired=_RESETS[self.auto_offset_reset],
            failure=FailureRules(),
            create_group=self.create_group and self.auto_offset_reset != "none",
            start="earliest" if self.auto_offset_reset == "none" else self.auto_offset_reset,
            in_order=self.in_order if in_order is None else in_order,
            timeout=self.timeout,
            handover_timeout=self.handover_timeout,
            coordination=self.coordination,
            strategy=self.strategy or default,
        )


_RESETS: Final = {"earliest": OnExpired.JUMP, "latest": OnExpired.END, "none": OnExpired.STOP}
