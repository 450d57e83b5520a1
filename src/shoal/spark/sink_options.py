"""What a sink can be told, and what follows from it for the columns that it is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shoal.core.errors import InvalidInput
from shoal.core.limits import ROUND_BYTES_MAX
from shoal.core.model import StreamName
from shoal.core.names import LEDGER, stream_name
from shoal.spark.hubs import HubAddress, address_of
from shoal.spark.options import Option, choice, flag, parsed, size, text

OPTIONS: Final = (
    Option(name="hub", parse=text, is_required=True, doc="the hub's address, postgresql://… or sqlite:///…"),
    Option(
        name="stream", parse=text, doc="the stream; without it every row names its own in a column 'stream'"
    ),
    Option(name="keyColumn", parse=text, doc="the column of keys; 'key' if there is one"),
    Option(
        name="nullKey",
        parse=choice("route", "refuse"),
        default="route",
        doc="a row without a key: 'route' spreads such rows over the shards, 'refuse' fails the task",
    ),
    Option(
        name="exactlyOnce",
        parse=flag,
        default=True,
        doc="false: repeated tasks and batches write again, and nothing is noted in the ledger",
    ),
    Option(
        name="maxBufferBytes",
        parse=size,
        default=8 << 20,
        doc="bytes of rows that a task gathers for one append; it holds about four times as much",
    ),
    # Spark gives sinks these of its own.
    Option(name="checkpointLocation", parse=text, doc="Spark's own"),
    Option(name="queryName", parse=text, doc="Spark's own"),
    Option(name="path", parse=text, doc="not used: .save() and .start() take none"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """The options of one sink, checked."""

    hub: HubAddress
    stream: str | None = None
    """None: every row names its own in the column `stream`."""
    key_column: str | None = None
    refuses_null_keys: bool = False
    is_exactly_once: bool = True
    buffer_bytes: int = 8 << 20


def target(name: str) -> StreamName:
    """The stream that is written under this name, however it is spelt."""
    stream = stream_name(name)
    if stream.stream == LEDGER:
        raise InvalidInput(
            "stream", name, "sinks keep their own notes there, and nothing else; name another stream"
        )
    return stream


def sink_settings(options: Mapping[str, str]) -> SinkSettings:
    """Options as Spark gives them."""
    given = parsed(options, OPTIONS, what="the sink")
    if given["path"] is not None:
        raise InvalidInput("path", given["path"], 'a sink has no path; name it with .option("stream", …)')
    if given["stream"] is not None:
        target(given["stream"])
    if given["maxBufferBytes"] > ROUND_BYTES_MAX:
        raise InvalidInput("maxBufferBytes", given["maxBufferBytes"], f"at most {ROUND_BYTES_MAX}")
    return SinkSettings(
        hub=address_of(given["hub"]),
        stream=given["stream"],
        key_column=given["keyColumn"],
        refuses_null_keys=given["nullKey"] == "refuse",
        is_exactly_once=given["exactlyOnce"],
        buffer_bytes=given["maxBufferBytes"],
    )
