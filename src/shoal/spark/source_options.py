"""Everything the source can be told, named as in Spark's Kafka connector where the meaning is the same."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from shoal.core.errors import InvalidInput, shown_url
from shoal.core.names import checked_name
from shoal.core.polling import Subscription, subscription_of
from shoal.spark.hubs import HubAddress, address_of
from shoal.spark.options import Option, as_json, flag, names, parsed, seconds, size, text, whole
from shoal.spark.plan.starting import Kind, Place, place_of
from shoal.wire.timestamps import timestamp_ms


def _place(name: str, value: str) -> Place:
    return place_of(name, as_json(name, value) if value.startswith("{") else value.lower())


def _time(name: str, value: str) -> Place:
    """Milliseconds since 1970, as Kafka's connector takes them, or ISO 8601 with a time zone."""
    try:
        at = int(value) if re.fullmatch(r"\d+", value) else datetime.fromisoformat(value)
        return Place(kind=Kind.TIME, time_ms=timestamp_ms(at))
    except ValueError:
        raise InvalidInput(
            name, value, "milliseconds since 1970, or ISO 8601 with a time zone: 2026-01-31T12:00:00Z"
        ) from None


KNOWN: Final = (
    Option(name="hub", parse=text, is_required=True, doc="the hub's URL, such as postgresql://user@host/db"),
    Option(name="leases", parse=text, doc="the URL of another database for the tables of leased groups"),
    Option(name="stream", parse=text, doc="a stream, several with commas between, or a regular expression"),
    Option(name="streamPattern", parse=text, doc="a regular expression for whole names of streams"),
    Option(name="group", parse=text, doc="the group that sees the query's progress"),
    Option(name="member", parse=flag, default=False, doc="whether the query shares the group with others"),
    Option(name="memberName", parse=text, doc="the member's name; otherwise the query's own"),
    Option(name="groupTimeout", parse=seconds, default=20.0, doc="of a group that is made by the query"),
    Option(name="inOrder", parse=flag, doc="a shard after all its ancestors; otherwise as the group says"),
    Option(
        name="startingOffsets", parse=_place, doc='earliest, latest, group, or JSON {"orders": {"0": 17}}'
    ),
    Option(name="endingOffsets", parse=_place, doc="the same, of a batch read"),
    Option(name="startingTimestamp", parse=_time, doc="milliseconds since 1970, or ISO 8601"),
    Option(name="endingTimestamp", parse=_time, doc="the same, of a batch read"),
    Option(name="maxOffsetsPerTrigger", parse=whole(), doc="records of a batch, at most"),
    Option(name="maxBytesPerTrigger", parse=size, doc="stored bytes of a batch, at most, about"),
    Option(name="minOffsetsPerTrigger", parse=whole(), doc="records to wait for"),
    Option(name="maxTriggerDelay", parse=seconds, default=900.0, doc="how long to wait for them"),
    Option(name="minPartitions", parse=whole(), doc="tasks, about; otherwise the cores of the driver"),
    Option(name="maxRecordsPerPartition", parse=whole(), doc="records of a task, at most"),
    Option(name="failOnDataLoss", parse=flag, default=True, doc="whether to fail when records are gone"),
    Option(name="columns", parse=names, doc="the columns to read, with commas between"),
    Option(name="includeHeaders", parse=flag, default=False, doc="whether to read headers"),
    Option(name="path", parse=text, doc="not used: .load() takes none"),
    Option(
        name="pushFilters", parse=flag, default=False, doc="whether filters are pushed down in batch reads"
    ),
)

_OF_BATCHES: Final = ("endingOffsets", "endingTimestamp", "pushFilters")
_OF_STREAMS: Final = (
    "member",
    "memberName",
    "groupTimeout",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How a source reads. Times are in seconds."""

    hub: HubAddress
    subscription: Subscription
    group: str | None
    is_member: bool
    member_name: str | None
    group_timeout: float
    in_order: bool | None
    """None: as the group says; without a group a streaming read is in order, and a batch read is not."""
    start: Place | None
    """None: the group's checkpoints if there is a group; otherwise earliest in a batch, or latest."""
    end: Place | None
    records_max: int | None
    bytes_max: int | None
    records_min: int | None
    delay_max: float
    tasks: int
    task_records_max: int | None
    strict: bool
    """Whether records that are gone are an error."""
    columns: tuple[str, ...] | None
    has_headers: bool
    pushes_filters: bool


def source_options(given: Mapping[str, str], *, is_streaming: bool | None = None) -> SourceOptions:
    """What was given, checked. `is_streaming` is not known yet when Spark asks for the schema."""
    values = parsed(given, KNOWN)
    lowered = {name.lower(): text for name, text in given.items()}
    if is_streaming is not None:
        _check_kind(lowered, is_streaming)
    _check_together(lowered, values)
    if values["path"] is not None:
        raise InvalidInput("path", values["path"], 'a source has no path; name it with .option("stream", …)')
    group = values["group"]
    start = _one_of(values, "startingOffsets", "startingTimestamp")
    end = _one_of(values, "endingOffsets", "endingTimestamp")
    if start is not None and end is not None:
        _check_times(start, end)
    if is_streaming is False and group is not None and start is not None:
        _check_needed(group, start, end)
    for name, place in (("startingOffsets", start), ("endingOffsets", end)):
        if group is None and place is not None and place.kind is Kind.GROUP:
            raise InvalidInput(name, "group", 'which group? .option("group", …)')
    if lowered.get("includeheaders", "").lower() == "false" and "headers" in (values["columns"] or ()):
        raise InvalidInput("includeHeaders", "false", "columns= names headers; leave one of the two out")
    if values["columns"] is not None and values["includeHeaders"] and "headers" not in values["columns"]:
        raise InvalidInput(
            "columns", ",".join(values["columns"]), "headers are asked for, and not among them"
        )
    return SourceOptions(
        hub=address_of(values["hub"], values["leases"]),
        subscription=_subscription(values["stream"], values["streamPattern"]),
        group=None if group is None else checked_name("group", group),
        is_member=values["member"],
        member_name=None
        if values["memberName"] is None
        else checked_name("memberName", values["memberName"]),
        group_timeout=values["groupTimeout"],
        in_order=values["inOrder"],
        start=start,
        end=end,
        records_max=values["maxOffsetsPerTrigger"],
        bytes_max=values["maxBytesPerTrigger"],
        records_min=values["minOffsetsPerTrigger"],
        delay_max=values["maxTriggerDelay"],
        tasks=values["minPartitions"] or max(2, os.cpu_count() or 2),
        task_records_max=values["maxRecordsPerPartition"],
        strict=values["failOnDataLoss"],
        columns=values["columns"],
        has_headers=values["includeHeaders"] or "headers" in (values["columns"] or ()),
        pushes_filters=values["pushFilters"],
    )


def _check_times(start: Place, end: Place) -> None:
    if start.kind is end.kind is Kind.TIME and start.time_ms > end.time_ms:
        raise InvalidInput(
            "startingTimestamp", start.time_ms, f"this is later than endingTimestamp={end.time_ms}"
        )


def _check_needed(group: str, start: Place, end: Place | None) -> None:
    """Refuse a group that a batch read would not look at."""
    if Kind.GROUP not in {start.kind, end.kind if end is not None else None}:
        raise InvalidInput(
            "group",
            group,
            "a batch read only begins or ends where a group stands, and is told otherwise; leave it out, or "
            "where the read begins",
        )


def check_agreed(options: SourceOptions, columns: Sequence[str]) -> None:
    """Refuse options that say otherwise than the columns of a schema of the user's, and one without any: rows
    of no columns cannot be counted."""
    if not columns:
        raise InvalidInput("schema", "", "it has no columns; name one, or leave the schema out")
    if options.columns is not None and set(options.columns) != set(columns):
        raise InvalidInput(
            "columns",
            ",".join(options.columns),
            f"the schema that was given has {', '.join(columns)}; give one",
        )
    if options.has_headers and "headers" not in columns:
        raise InvalidInput(
            "includeHeaders", "true", "the schema that was given has no headers; add them there"
        )


def check_cuts(options: SourceOptions, ordered: Sequence[str]) -> None:
    """Refuse a bound of tasks where no shard may be cut. Of a query with a group the group says that."""
    if ordered and options.task_records_max is not None:
        raise InvalidInput(
            "maxRecordsPerPartition",
            options.task_records_max,
            f"group {options.group!r} of {ordered[0]} is in order, and a shard is read by one task, however "
            "much it holds; leave it out, or read with groups that are not in order",
        )


def _check_kind(given: Mapping[str, str], is_streaming: bool) -> None:
    refused, remedy = (
        (_OF_BATCHES, "it is for spark.read, not for a streaming query")
        if is_streaming
        else (_OF_STREAMS, "it is for spark.readStream")
    )
    for name in refused:
        if name.lower() in given:
            raise InvalidInput(name, given[name.lower()], remedy)
    if is_streaming and "maxrecordsperpartition" in given and not {"group", "inorder"} & given.keys():
        raise InvalidInput(
            "maxRecordsPerPartition",
            given["maxrecordsperpartition"],
            "a streaming query is in order, and a shard is read by one task; say inOrder=false, too",
        )


def _check_together(given: Mapping[str, str], values: Mapping[str, Any]) -> None:
    """Refuse options that would do nothing beside the others, or the contrary of another."""
    if values["group"] is None:
        for name, is_given in (("member", values["member"]), ("memberName", values["memberName"])):
            if is_given:
                raise InvalidInput(name, is_given, 'a member of which group? .option("group", …)')
        if values["leases"] is not None:
            raise InvalidInput("leases", shown_url(values["leases"]), 'of which group? .option("group", …)')
        if "grouptimeout" in given:
            raise InvalidInput("groupTimeout", given["grouptimeout"], 'of which group? .option("group", …)')
    if values["memberName"] is not None and not values["member"]:
        raise InvalidInput("memberName", values["memberName"], "it is for member=true")
    if values["maxRecordsPerPartition"] is not None and values["inOrder"]:
        raise InvalidInput(
            "maxRecordsPerPartition",
            values["maxRecordsPerPartition"],
            "with inOrder=true a shard is read by one task, however much it holds; give one of the two",
        )
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is None and "maxtriggerdelay" in given:
        raise InvalidInput(
            "maxTriggerDelay",
            given["maxtriggerdelay"],
            "nothing is waited for without minOffsetsPerTrigger; give both, or neither",
        )
    if least is not None and most is not None and least > most:
        raise InvalidInput(
            "minOffsetsPerTrigger", least, f"a batch has at most maxOffsetsPerTrigger={most}; give fewer"
        )


def _one_of(values: Mapping[str, Any], offsets: str, time: str) -> Place | None:
    if values[offsets] is not None and values[time] is not None:
        raise InvalidInput(time, values[time].time_ms, f"give this or {offsets}, not both")
    found: Place | None = values[offsets] if values[time] is None else values[time]
    return found


def _subscription(stream: str | None, pattern: str | None) -> Subscription:
    if stream is None and pattern is None:
        raise InvalidInput(
            "stream", None, 'the source needs it: .option("stream", …), a name, several, or a pattern'
        )
    if stream is not None and pattern is not None:
        raise InvalidInput("streamPattern", pattern, "give this or stream, not both")
    if stream is not None and re.fullmatch(r"[\w./, -]*", stream):
        return subscription_of(names("stream", stream), None)
    name, given = ("stream", stream) if stream is not None else ("streamPattern", pattern)
    try:
        return subscription_of(None, re.compile(str(given)))
    except re.error as error:
        raise InvalidInput(name, given, f"neither names nor a regular expression: {error}") from None
