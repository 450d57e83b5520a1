"""Settings of a relay, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.limits import DURATION_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """How a relay looks, gathers and waits."""

    batch_records: int = 5_000
    """Rows that are relayed together: more make no row cheaper, and are sent again after a crash."""
    batch_bytes: int = 8_000_000
    """Or so many bytes of them."""
    poll_s: float = 0.1
    """How often an empty outbox is looked at."""
    lease_s: float = 10.0
    """A relay that is silent for so long is taken for dead by another that waits."""
    retry_s: float = 1.0
    """The wait after something went wrong."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_s"):
                if not is_number(value) or not 0 < value <= DURATION_S_MAX:
                    raise InvalidInput(field.name, value, f"seconds, more than 0, up to {DURATION_S_MAX:g}")
            elif not is_whole(value) or value < 1:
                raise InvalidInput(field.name, value, "a whole number from 1 on")
        if self.batch_records > _ROWS_MAX:
            raise InvalidInput("batch_records", self.batch_records, f"at most {_ROWS_MAX}")


_ROWS_MAX = 100_000
"""Their ids are noted in one row."""
