"""One record as user code sees it.

A tuple with names: of all kinds of object it is the cheapest to make in numbers (a slotted class costs a
quarter more, a frozen dataclass several times as much), and it cannot be changed by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

NO_HEADERS: Final[Mapping[str, bytes]] = MappingProxyType({})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Record(NamedTuple):
    """A record read from a shard, or to be appended to one."""

    offset: int
    timestamp: int
    """Milliseconds since 1970, UTC; `time` is the same as a datetime."""
    key: bytes | None
    value: Any
    """Bytes, or a dict of the stream's columns if it is typed; None if it was sent as None."""
    headers: Mapping[str, bytes] = NO_HEADERS

    @property
    def time(self) -> datetime:
        """The timestamp as an aware datetime."""
        return _EPOCH + timedelta(milliseconds=self.timestamp)

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, "
            f"key={self.key!r}, value={self.value!r}, headers={dict(self.headers)!r})"
        )
