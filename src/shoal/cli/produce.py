"""`shoal produce`: lines or JSON objects from standard input or a file, sent in blocks, in bounded memory.

A line ends with a newline and is otherwise kept byte for byte. A line that cannot be sent ends the command
with its number; the lines before it are sent, none after it. A slow source is waited for only until it has
something: what is there goes out at once.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import date, datetime
from datetime import time as day_time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeVar

import pyarrow as pa
import typer

from shoal import BatchFuture, Producer, connect
from shoal.cli import output
from shoal.cli.options import DEFAULT_HUB, HubUrl, StreamArgument
from shoal.cli.progress import Progress
from shoal.core.errors import InvalidInput
from shoal.wire.fitting import check_size, check_value
from shoal.wire.layout import Layout

_BLOCK_BYTES: Final = 4_000_000
"""Large enough that a block fills a batch of every shard, small enough that memory stays flat."""
_READ_BYTES: Final = 1 << 20
_GATHER_S: Final = 0.02
"""How long a block waits for more of a source that pauses."""
_UNCONFIRMED_MAX: Final = 6
"""Blocks on their way before the oldest is waited for: a store that refuses ends the command soon."""


class Form(StrEnum):
    """What a line of the input is."""

    LINES = "lines"
    JSON = "json"


def produce(
    stream: StreamArgument,
    *,
    hub: HubUrl = DEFAULT_HUB,
    file: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, readable=True, allow_dash=True, help="Read this, not standard input."
        ),
    ] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            help="What the input is. Without it: json with --json or --key-field or for a stream with typed "
            "columns, otherwise lines.",
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="The key is this field of each JSON object: customer, or customer.id."
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help=r"The key is what comes before this in each line; \t is a tab."),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the stream, with two shards, if it is not there.")
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="The input is JSON objects (see --format), and the summary is JSON."),
    ] = False,
) -> None:
    """Send each line of the input as a record, durably; then say how many.

    Lines go in as bytes. JSON objects, one on a line, go in as they are written, or as typed columns if the
    stream has them. Records of one key stay in order.
    """
    with connect(hub) as opened:
        found = opened.ensure_stream(stream) if create else opened.describe_stream(stream)
        layout = Layout(found.settings.schema)
        if form is None:
            form = Form.JSON if json or key_field or layout.is_typed else Form.LINES
        prepare = _preparer(form, layout, key_field, key_separator)
        began_s = time.monotonic()
        path = None if file is None or str(file) == "-" else file
        with (
            path.open("rb") if path else nullcontext(sys.stdin.buffer) as source,
            opened.producer(stream) as producer,
            Progress(source) as progress,
        ):
            records, size = _pump(producer, lines(source), prepare, progress)
        took_s = time.monotonic() - began_s
    if json:
        output.print_json({"stream": stream, "records": records, "bytes": size, "seconds": round(took_s, 3)})
    else:
        rate = f"{records / took_s:,.0f} records/s"
        typer.echo(f"sent {records:,} records, {output.bytes_text(size)}, in {took_s:.2f} s ({rate})")


def lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a source, a block at a time."""
    rest = b""
    for block in _blocks(source):
        *whole, rest = (rest + block).split(b"\n")
        check_size(len(rest))
        if whole:
            yield whole
    if rest:
        yield [rest]


class BadLine(Exception):
    """A line that cannot be sent. It leaves this room as InvalidInput, with the line's number."""

    def __init__(self, index: int, why: object) -> None:
        super().__init__(str(why))
        self.index = index


Prepare = Callable[[list[bytes]], pa.Table]
"""Lines as a table for `send_batch`, which may be empty, or BadLine."""


def _pump(
    producer: Producer, blocks: Iterator[list[bytes]], prepare: Prepare, progress: Progress
) -> tuple[int, int]:
    """Send block after block. Returns the records and bytes that are stored."""
    records = size = before = 0
    unconfirmed: deque[BatchFuture] = deque()
    for block in blocks:
        try:
            table = prepare(block)
        except BadLine as bad:
            _send(producer, prepare(block[: bad.index]))
            producer.flush()
            number = before + bad.index + 1
            told = f"{bad}; the lines before it are sent" if number > 1 else f"{bad}; nothing was sent"
            raise InvalidInput(f"line {number}", _excerpt(block[bad.index]), told) from bad
        unconfirmed += _send(producer, table)
        before += len(block)
        records += table.num_rows
        block_bytes = sum(map(len, block))
        size += block_bytes
        progress.advance(block_bytes + len(block), records)
        if len(unconfirmed) > _UNCONFIRMED_MAX:
            unconfirmed.popleft().result()
    producer.flush()
    return records, size


def _send(producer: Producer, table: pa.Table) -> list[BatchFuture]:
    return [producer.send_batch(table)] if table.num_rows else []


# --- Lines as columns. ------------------------------------------------------------------------------


def _preparer(form: Form, layout: Layout, key_field: str | None, key_separator: str | None) -> Prepare:
    if form is Form.JSON:
        if key_separator is not None:
            raise typer.BadParameter(
                "is for lines; the key of a JSON object is --key-field", param_hint="--key-separator"
            )
        path = None if key_field is None else key_field.split(".")
        return lambda block: _prepare_objects(block, layout, path)
    if key_field is not None:
        raise typer.BadParameter(
            "is for JSON; the key of a line is before --key-separator", param_hint="--key-field"
        )
    if key_separator == "":
        raise typer.BadParameter("is empty", param_hint="--key-separator")
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    return lambda block: _prepare_lines(block, separator)


def _prepare_lines(block: list[bytes], separator: bytes | None) -> pa.Table:
    for index, line in enumerate(block):
        _checked(index, check_size, len(line))
    if separator is None:
        return pa.table({"value": pa.array(block, pa.binary())})
    keys, values = [], []
    for index, line in enumerate(block):
        key, found, value = line.partition(separator)
        if not found:
            raise BadLine(index, f"there is no key separator {separator.decode()!r} in it")
        keys.append(key)
        values.append(value)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def _prepare_objects(block: list[bytes], layout: Layout, path: list[str] | None) -> pa.Table:
    """Objects as they are written, or as typed columns; blank lines are none."""
    values: list[Any] = []
    keys: list[bytes | None] = []
    timed = [field for field in layout.columns if pa.types.is_temporal(field.type)]
    for index, line in enumerate(block):
        if not line.strip():
            continue
        found = _parse(index, line)
        key = None if path is None else _key(index, found, path)
        if timed:
            _read_times(index, found, timed)
        value, size = _checked(
            index, lambda each: check_value(layout, each), found if layout.is_typed else line
        )
        _checked(index, check_size, size + len(key or b""))
        values.append(value)
        keys.append(key)
    if layout.is_typed:
        rows = pa.array(values, pa.struct(list(layout.columns)))
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(rows)])
    else:
        table = pa.table({"value": pa.array(values, pa.binary())})
    return table.append_column("key", pa.array(keys, pa.binary()))


def _parse(index: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(index, f"not a JSON object ({error})") from error
    if not isinstance(found, dict):
        raise BadLine(index, "JSON, but not an object")
    return found


def _key(index: int, found: dict[str, Any], path: list[str]) -> bytes:
    """The key at a path. A record without one would lose its order unnoticed, so it is refused."""
    value: Any = found
    for name in path:
        if not isinstance(value, dict) or value.get(name) is None:
            raise BadLine(index, f"there is no key field {'.'.join(path)!r} in it")
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadLine(
            index, f"the key field {'.'.join(path)!r} is {json.dumps(value)[:40]}, not text or an integer"
        )
    return str(value).encode("utf-8", "surrogatepass")


def _read_times(index: int, found: dict[str, Any], timed: list[pa.Field]) -> None:
    """JSON has no times; their ISO form, which `shoal tail` prints, is taken for columns that are times."""
    for field in timed:
        text = found.get(field.name)
        if isinstance(text, str):
            kind = next(kind for is_kind, kind in _TIMES if is_kind(field.type))
            try:
                found[field.name] = kind.fromisoformat(text)
            except ValueError as error:
                raise BadLine(index, f"{field.name}: {error}") from error


_TIMES: Final[tuple[tuple[Callable[[pa.DataType], bool], type[date] | type[day_time]], ...]] = (
    (pa.types.is_date, date),
    (pa.types.is_time, day_time),
    (pa.types.is_temporal, datetime),
)

Given = TypeVar("Given")
Answer = TypeVar("Answer")


def _checked(index: int, check: Callable[[Given], Answer], given: Given) -> Answer:
    try:
        return check(given)
    except InvalidInput as error:
        raise BadLine(index, error) from error


def _excerpt(line: bytes) -> str:
    text = line[:80].decode("utf-8", "backslashreplace")
    return text if len(line) <= 80 else f"{text}…"


# --- Reading. ---------------------------------------------------------------------------------------


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    """What a source has, up to a block at a time."""
    try:
        descriptor = source.fileno()
    except OSError:  # Not a file of the system: all of it is here already.
        while block := source.read(_BLOCK_BYTES):
            yield block
        return
    is_ended = False
    while not is_ended:
        parts: list[bytes] = []
        gathered = 0
        while gathered < _BLOCK_BYTES and (not parts or select.select([descriptor], [], [], _GATHER_S)[0]):
            part = os.read(descriptor, _READ_BYTES)
            if not part:
                is_ended = True
                break
            parts.append(part)
            gathered += len(part)
        if parts:
            yield b"".join(parts)
