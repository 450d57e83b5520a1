"""One record as user code sees it. A plain slotted class: a frozen dataclass costs six times as much here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

NO_HEADERS: Final[Mapping[str, bytes]] = MappingProxyType({})


class Record:
    """A record read from a shard.

    `value` is bytes, or a dict of the stream's columns if the stream is typed; `key` is bytes or None;
    `timestamp` is in milliseconds since 1970, UTC, and `time` is the same as a datetime.
    """

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: Any,
        headers: Mapping[str, bytes] = NO_HEADERS,
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.offset, self.timestamp, self.key))

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, "
            f"key={self.key!r}, value={self.value!r}, headers={dict(self.headers)!r})"
        )

    def _fields(self) -> tuple[object, ...]:
        return self.offset, self.timestamp, self.key, self.value, dict(self.headers)
