"""What callers may say. An embedded hub's front door checks its users' arguments; strangers come in by this
one.

Shapes are checked when a body is decoded; here is what only the meaning of a parameter decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from shoal.core.appending import check_number
from shoal.core.describing import changed
from shoal.core.errors import InvalidInput
from shoal.core.group import (
    RULES,
    Delivery,
    GroupSettings,
    attempts_max,
    checked_lease_table,
    handover_timeout_ms,
    timeout_ms,
    unused_ms,
    visibility_ms,
)
from shoal.core.limits import (
    HISTORY_KEPT,
    NAME_LENGTH_MAX,
    READ_WAIT_S_MAX,
    RECEIVE_RECORDS_MAX,
    TEXT_LENGTH_MAX,
    TIMESTAMP_MS_MAX,
    VISIBILITY_S_MAX,
)
from shoal.core.membership import COUNTED_MS_MAX, Beat
from shoal.core.model import StreamSettings
from shoal.core.names import checked_name, checked_producer
from shoal.core.retention import checked_retention
from shoal.core.ring import checked_hash, checked_shard_count
from shoal.core.share_acts import Receive
from shoal.wire.layout import stored_schema

ITEMS_MAX: Final = 100_000
"""In one list. More than any client of ours sends."""


def check_arguments(part: str, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse what does not make sense, before anything is done."""
    for parameter, value in arguments.items():
        check = _BY_NAME.get(parameter)
        if check is not None and value is not None:
            check(parameter, value)
        elif isinstance(value, list | tuple | dict) and len(value) > ITEMS_MAX:
            raise InvalidInput(parameter, f"{len(value)} items", f"at most {ITEMS_MAX}")
    if (part, name) == ("hub", "create_stream"):
        checked_shard_count(arguments["shards"])
    if (part, name) == ("groups", "update"):
        for field in set(changed(arguments["expected"], arguments["settings"])) - _CHANGEABLE:
            raise InvalidInput(field, "changed", f"only {', '.join(sorted(_CHANGEABLE))} may be changed")


def _text(limit: int) -> Callable[[str, Any], None]:
    def check(parameter: str, value: Any) -> None:
        if not 0 < len(value) <= limit:
            raise InvalidInput(parameter, f"{len(value)} characters", f"1 to {limit} of them")

    return check


def _between(low: float, high: float) -> Callable[[str, Any], None]:
    def check(parameter: str, value: Any) -> None:
        if not low <= value <= high:
            raise InvalidInput(parameter, value, f"from {low:g} to {high:g}")

    return check


def _settings(_: str, value: Any) -> None:
    if isinstance(value, StreamSettings):
        _stream_settings(value)
    elif isinstance(value, GroupSettings):
        _group_settings(value)


def _stream_settings(settings: StreamSettings) -> None:
    checked_retention("retention_ms", settings.retention_ms)
    checked_retention("retention_bytes", settings.retention_bytes)
    if settings.schema is not None:
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(settings.schema))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InvalidInput(
                "schema", f"{len(settings.schema)} bytes", f"no Arrow schema ({error})"
            ) from error
        if stored_schema(schema) != settings.schema:
            raise InvalidInput(
                "schema", f"{len(settings.schema)} bytes", "without metadata, as Arrow writes it"
            )


def _group_settings(settings: GroupSettings) -> None:
    timeout_ms("timeout", settings.timeout_ms / 1000)
    if settings.handover_timeout_ms is not None:
        handover_timeout_ms(settings.handover_timeout_ms / 1000)
    if settings.visibility_ms is not None:
        visibility_ms(settings.visibility_ms / 1000)
    if settings.unused_ms is not None:
        unused_ms(settings.unused_ms / 1000)
    if settings.max_attempts is not None:
        attempts_max(settings.max_attempts)
    checked_name("strategy", settings.strategy)
    if settings.rules != RULES:
        raise InvalidInput("rules", settings.rules, f"this server knows version {RULES}")
    for field, kind in (
        ("visibility_ms", Delivery.SHARED),
        ("max_attempts", Delivery.SHARED),
        ("unused_ms", Delivery.BROADCAST),
    ):
        if settings.delivery is kind and getattr(settings, field) is None:
            raise InvalidInput(field, None, f"a group with delivery={kind.value!r} has one")
    if settings.lease_table is not None:
        checked_lease_table(settings.lease_table)


def _newcomer(_: str, newcomer: Any) -> None:
    checked_name("consumer", newcomer.name)
    _text(INCARNATION_MAX)("incarnation", newcomer.incarnation)


def _beat(_: str, beat: Beat) -> None:
    _text(INCARNATION_MAX)("incarnation", beat.incarnation)
    _between(1, COUNTED_MS_MAX)("timeout_ms", beat.timeout_ms)
    _between(1, COUNTED_MS_MAX)("interval_ms", beat.interval_ms)


def _receive(_: str, asked: Receive) -> None:
    _text(2 * NAME_LENGTH_MAX)("consumer", asked.consumer)
    _between(1, RECEIVE_RECORDS_MAX)("max_records", asked.max_records)
    _between(1, VISIBILITY_S_MAX * 1000)("visibility_ms", asked.visibility_ms)


_CHANGEABLE: Final = {
    "in_order",
    "timeout_ms",
    "handover_timeout_ms",
    "failure",
    "visibility_ms",
    "max_attempts",
    "unused_ms",
}
INCARNATION_MAX: Final = NAME_LENGTH_MAX
_BY_NAME: Final[Mapping[str, Callable[[str, Any], object]]] = {
    "group": checked_name,
    "project": checked_name,
    "consumer": checked_name,
    "producer": lambda parameter, value: checked_producer(value, parameter),
    "held": check_number,
    "incarnation": _text(INCARNATION_MAX),
    "why": _text(TEXT_LENGTH_MAX),
    "retention_ms": checked_retention,
    "retention_bytes": checked_retention,
    "count": lambda _, value: checked_shard_count(value),
    "at": lambda parameter, value: checked_hash(value, parameter),
    "limit": _between(1, HISTORY_KEPT),
    "timeout_s": _between(0, READ_WAIT_S_MAX),
    "wait_for_s": _between(0, READ_WAIT_S_MAX),
    "max_bytes": _between(1, 1 << 40),
    "timestamp_ms": _between(0, TIMESTAMP_MS_MAX),
    "settings": _settings,
    "newcomer": _newcomer,
    "beat": _beat,
    "asked": _receive,
}
