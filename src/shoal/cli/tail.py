"""`shoal tail`: the records of a stream, each key in its order, as lines for people or JSON for machines.

Text for people is made safe for a terminal: what does not print is escaped. The fields of a JSON line are
always stream, shard, offset, timestamp (milliseconds since 1970), key, value, headers. Bytes that are not
UTF-8 are null there, and in base64 under the field's name with `_base64` after it.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from datetime import time as day_time
from typing import Annotated, Any

import typer

from shoal import Batch, Record, connect
from shoal.cli import output
from shoal.cli.following import LineageReader
from shoal.cli.options import DEFAULT_HUB, HubUrl, StreamArgument
from shoal.cli.values import parse_start
from shoal.core.errors import OffsetExpired


def tail(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, through splits and merges, until Ctrl-C.")
    ] = False,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, a time (2026-01-31T08:00Z), or how long ago (10m). "
            "An offset without --shard is that of each shard, as far as it reaches.",
        ),
    ] = "earliest",
    shard: Annotated[int | None, typer.Option(help="Only this shard.")] = None,
    max_: Annotated[
        int | None, typer.Option("--max", "-n", min=1, metavar="COUNT", help="End after so many records.")
    ] = None,
    values: Annotated[
        bool, typer.Option("--values", help="Print only values, byte for byte, one on a line.")
    ] = False,
    skip_expired: Annotated[
        bool,
        typer.Option("--skip-expired", help="Where retention was faster, say so and go on at what is kept."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each record.")] = False,
) -> None:
    """Print a stream's records: shard and offset, time, key, value, with a tab between.

    All shards are read, parents before children, so that each key comes in its order. Without --follow it
    ends at what was there when it began.
    """
    start = parse_start(from_, datetime.now(UTC))
    if json:
        lines: Callable[[Batch], Iterable[bytes]] = _json_lines
    else:
        lines = _value_lines if values else _text_lines
    with connect(hub) as opened:
        on_expired = _tell_expired if skip_expired else None
        reader = LineageReader(opened, stream, start, shard=shard, on_expired=on_expired)
        for batch in reader.batches(follow=follow, records_max=max_):
            sys.stdout.buffer.writelines(lines(batch))
            sys.stdout.buffer.flush()
        if follow and reader.continued_in:
            heirs = ", ".join(map(str, reader.continued_in))
            output.note(f"shard {shard} is closed; the stream goes on in {heirs}")


def _tell_expired(expired: OffsetExpired) -> None:
    count = expired.first_offset - expired.offset
    output.note(f"shard {expired.shard}: {count:,} records from offset {expired.offset} on have expired")


# --- Lines for people. ------------------------------------------------------------------------------


def _text_lines(batch: Batch) -> Iterable[bytes]:
    for record in batch:
        key = "-" if record.key is None else _shown(record.key)
        time = record.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        value = _shown(_value_bytes(record.value))
        yield f"{batch.shard}:{record.offset}\t{time}\t{key}\t{value}\n".encode()


def _value_lines(batch: Batch) -> Iterable[bytes]:
    for record in batch:
        yield _value_bytes(record.value) + b"\n"


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"" if value is None else _dump(value).encode()


def _shown(data: bytes) -> str:
    return output.printable(data.decode("utf-8", "backslashreplace"))


# --- Lines for machines. ----------------------------------------------------------------------------


def _json_lines(batch: Batch) -> Iterable[bytes]:
    for record in batch:
        yield _dump(_fields(batch, record)).encode() + b"\n"


def _fields(batch: Batch, record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "stream": batch.stream,
        "shard": batch.shard,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": None,
        "value": None,
        "headers": {},
    }
    for name, data in (("key", record.key), ("value", record.value)):
        text = _text_of(data)
        fields[name] = text
        if text is None and isinstance(data, bytes):
            fields[f"{name}_base64"] = _base64(data)
    if record.headers:
        fields["headers"] = {name: _text_of(data) for name, data in record.headers.items()}
        binary = {name: _base64(data) for name, data in record.headers.items() if _text_of(data) is None}
        if binary:
            fields["headers_base64"] = binary
    return fields


def _text_of(data: Any) -> Any:
    """Bytes as text, or None if they are not UTF-8; anything else as it is."""
    if not isinstance(data, bytes):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(_without_nan(value), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What a typed column may hold and JSON may not."""
    if isinstance(value, bytes):
        text = _text_of(value)
        return {"base64": _base64(value)} if text is None else text
    if isinstance(value, datetime | date | day_time):
        return value.isoformat()
    return str(value)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity; they become their names, as Spark writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return value


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
