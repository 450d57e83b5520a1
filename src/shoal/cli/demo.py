"""`shoal demo`: a first small story on an embedded hub. Streams, keys, a split under load, and order kept.

The story is told by `_Story`, a chapter at a time; traffic runs beside it (`traffic.py`) and what was sent is
compared with what is read in the end (`verify`). A check that fails makes the command fail.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from shoal import Hub, StreamInfo, connect
from shoal.cli import output
from shoal.cli.crew import Crew
from shoal.cli.deploy import deploy
from shoal.cli.following import read_all
from shoal.cli.options import AsJson
from shoal.cli.queueing import CONSUMERS, queue_up
from shoal.cli.traffic import Traffic, Verdict, verify
from shoal.core.ring import place

_PROJECT: Final = "demo"
_STREAM: Final = f"{_PROJECT}/orders"
_FAST_STREAM: Final = f"{_PROJECT}/speed"
_WORK_STREAM: Final = f"{_PROJECT}/charges"
_WIDTH: Final = 100
_RING_WIDTH: Final = 72
_PAUSE_S: Final = 0.35
_CALM_S: Final = 0.35
"""How long traffic runs between two changes, so that records lie on both sides of each."""
_TIMEOUT_S: Final = 2.0
_BATCH_RECORDS: Final = 100_000
_BATCHES: Final = 10


def demo(
    *,
    hub: Annotated[
        str | None,
        typer.Option(
            "--hub",
            metavar="URL",
            help="Play on this hub, in streams demo/orders, demo/charges and demo/speed, which are removed "
            "again. Without it, on one in a temporary folder; SHOAL_HUB is not used here.",
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause between the chapters.")] = False,
    json: AsJson = False,
) -> None:
    """Play a first small story: a stream, keys, splits and merges under load, and every key in order."""
    screen = output.screen(piped_width=_WIDTH)
    screen.quiet = json
    pause_s = _PAUSE_S if screen.is_terminal and not fast and not json else 0.0
    with _opened(hub) as opened:
        story = _Story(opened, screen, pause_s)
        try:
            story.tell()
        finally:
            story.clean_up()
    if json:
        output.print_json(story.verdict.as_json() | {"send_batch_records_per_s": round(story.rate)})
    if not story.verdict.is_good or not story.is_good:
        raise typer.Exit(1)


class _Story:
    """Ten chapters on one hub."""

    def __init__(self, hub: Hub, screen: Console, pause_s: float) -> None:
        self._hub = hub
        self._screen = screen
        self._pause_s = pause_s
        self._chapter = 0
        self._projects = hub.list_projects()
        self._made: list[str] = []
        self.verdict = Verdict()
        self.is_good = True
        """All other checks."""
        self.rate = 0.0

    def tell(self) -> None:
        self._screen.print(
            Panel.fit("[bold]Shoal[/]  a sharded log that keeps every key in order", border_style="cyan")
        )
        self._create()
        self._send_by_key()
        with self._hub.producer(_STREAM) as producer, Traffic(producer) as traffic:
            self._split_under_load(traffic)
            self._merge_and_reshard(traffic)
        self._say(f"The traffic ends: {traffic.count:,} records of {len(traffic.sent)} customers were sent.")
        self._read_and_verify(traffic)
        self._share_in_a_group()
        self._deploy_workers()
        self._queue_up()
        self._show_arrow()
        self._show_speed()
        self._conclude()

    def clean_up(self) -> None:
        """Leave a hub as it was: what was there before stays, streams of these names too."""
        for stream in self._made:
            self._hub.delete_stream(stream)
        if self._made and _PROJECT not in self._projects:
            self._hub.delete_project(_PROJECT)

    # --- The chapters. ---

    def _create(self) -> None:
        self._begin("A stream of four shards")
        self._say("A stream is cut into shards; each owns a part of a ring of hashes.")
        self._code(f'hub.create_stream("{_STREAM}", shards=4)')
        self._show_ring(self._make(_STREAM))

    def _send_by_key(self) -> None:
        self._begin("A key lives in one shard")
        self._say("The hash of a record's key is its place on the ring, and so its shard.")
        self._code('producer.send("paid", key="ada").result()   # durable when it returns')
        table = output.plain_table("key", "place", ">shard", "offsets")
        with self._hub.producer(_STREAM) as producer:
            names = ("ada", "grace", "edsger", "barbara", "donald", "frances")
            futures = {
                name: [producer.send(f"order {n} of {name}", key=name) for n in range(3)] for name in names
            }
            for name, sent in futures.items():
                found = [future.result() for future in sent]
                shards = ", ".join(str(shard) for shard in sorted({at.shard for at in found}))
                offsets = ", ".join(str(at.offset) for at in found)
                table.add_row(name, output.place_text(place(name.encode())), shards, offsets)
        self._show(table)

    def _split_under_load(self, traffic: Traffic) -> None:
        self._begin("A hot shard is split while a producer is sending")
        traffic.run_for(_CALM_S)
        before = self._kept()
        hot = traffic.heat(self._hub.describe_stream(_STREAM))
        traffic.run_for(_CALM_S)
        grown = Counter(self._kept()) - Counter(before)
        self._say(
            f"Some customers are busy: of {grown.total():,} new records, {grown[hot]:,} are in shard {hot}."
        )
        self._code(f'hub.split_shard("{_STREAM}", {hot})')
        left, right = self._hub.split_shard(_STREAM, hot)
        traffic.run_for(_CALM_S)
        info = self._hub.describe_stream(_STREAM)
        self._show_ring(info)
        taken = [info.shards[child.id].next_offset for child in (left, right)]
        self._say(
            f"Shard {hot} is closed at offset {info.shards[hot].next_offset:,}. Its keys go on in "
            f"shards {left.id} and {right.id}, with {taken[0]:,} and {taken[1]:,} records yet."
        )

    def _merge_and_reshard(self, traffic: Traffic) -> None:
        self._begin("Two quiet neighbours are merged, then the whole ring is cut anew")
        first, second = self._hub.describe_stream(_STREAM).open_shards[-2:]
        self._code(f'hub.merge_shards("{_STREAM}", {first.id}, {second.id})')
        self._hub.merge_shards(_STREAM, first.id, second.id)
        traffic.run_for(_CALM_S)
        self._show_ring(self._hub.describe_stream(_STREAM))
        self._code(f'hub.reshard("{_STREAM}", 6)')
        info = self._hub.reshard(_STREAM, 6)
        traffic.run_for(_CALM_S)
        self._show_ring(info)

    def _read_and_verify(self, traffic: Traffic) -> None:
        self._begin("Everything is read along the lineage, and checked")
        self._say("Children are read after their parents; so each key comes in the order it was sent.")
        info = self._hub.describe_stream(_STREAM)
        self._show(output.shard_table(info, self._hub.stats(_STREAM)))
        read: list[tuple[str, int]] = []
        trail: list[int] = []
        followed = traffic.busiest
        for batch in read_all(self._hub, _STREAM):
            for record in batch:
                key = (record.key or b"").decode()
                if key in traffic.sent:
                    read.append((key, int(record.value)))
                if key == followed and batch.shard not in trail:
                    trail.append(batch.shard)
        self._say(f"The busiest customer, {followed}, lived in shards {' → '.join(map(str, trail))}.")
        self.verdict = verify(traffic.sent, read)
        table = output.plain_table("check", ">count", "")
        for name, count, is_fault in self.verdict.lines():
            mark = (
                Text("failed", "bold red") if is_fault and count else Text("✓" if is_fault else "", "green")
            )
            table.add_row(name, f"{count:,}", mark)
        self._show(table)

    def _share_in_a_group(self) -> None:
        self._begin("Consumers share the stream: one owner per shard, whatever happens")
        self._code(f'hub.create_group("{_STREAM}", "billing", timeout={_TIMEOUT_S:g}, start="latest")')
        self._hub.create_group(_STREAM, "billing", timeout=_TIMEOUT_S, start="latest")
        crew = Crew(self._hub, _STREAM, "billing")
        names = ["ada", "bob", "cyn"]
        table = output.plain_table(
            "what happens", *(f">{name}" for name in [*names, "dan"]), "until all know"
        )

        def tell(what: str, took_s: float) -> None:
            info = self._hub.describe_group(_STREAM, "billing")
            held = {member.name: str(member.shards) for member in info.members}
            table.add_row(what, *(held.get(name, "-") for name in [*names, "dan"]), f"{took_s * 1000:.0f} ms")

        try:
            for name in names:
                crew.join(name)
            tell("ada, bob and cyn join", crew.settle())
            crew.join("dan")
            tell("dan joins", crew.settle())
            split = self._hub.describe_stream(_STREAM).open_shards[0].id
            self._hub.split_shard(_STREAM, split)
            tell(f"shard {split} is split", crew.settle())
            crew.leave("bob")
            tell("bob leaves", crew.settle())
            crew.fall_silent("cyn")
            tell(f"cyn crashes (timeout {_TIMEOUT_S:g} s)", crew.settle())
            self._show(table)
        finally:
            crew.close()
        self._say(
            "Shards move only after their owner let go; each time under a new epoch that fences the old."
        )

    def _deploy_workers(self) -> None:
        self._begin("Workers are deployed anew while records come")
        self._make(_WORK_STREAM)
        self._code(f'shoal.Worker(hub, "{_WORK_STREAM}", "billing", process).start()')
        done = deploy(self._hub, _WORK_STREAM, "billing")
        self._made += [f"{_WORK_STREAM}.billing.{what}" for what in ("retry", "dead")]
        self._say(
            f"Three workers were replaced one by one: {done.records:,} records processed, "
            f"{done.repeated} repeated, {done.missing} missing; a stop took {done.longest_ms:.0f} ms at most."
        )
        self._say(
            f"{done.dead} record failed in every attempt and lay among the dead letters, until the cause was "
            f"mended; {done.replayed} replayed. Its neighbours did not wait for it."
        )
        self.is_good = self.is_good and done.repeated == done.missing == 0 and done.dead == done.replayed == 1

    def _queue_up(self) -> None:
        self._begin("A work queue on the same stream, and screens that see everything")
        self._code(f'hub.create_group("{_WORK_STREAM}", "jobs", delivery="shared")')
        self._code("received = consumer.receive(100); consumer.ack(received)   # or release, reject, extend")
        self._made.append(f"{_WORK_STREAM}.jobs.dead")
        done = queue_up(self._hub, _WORK_STREAM, "jobs")
        self._say(
            f"{CONSUMERS} consumers shared 4 shards record by record: of {done.records:,} records "
            f"{done.acknowledged:,} were acknowledged once, {done.dead} was rejected into the dead stream. "
            f"One consumer was never heard of again: its {done.again} records came to others."
        )
        self._code(f'hub.create_group("{_WORK_STREAM}", "jobs-screens", delivery="broadcast")')
        shown = " and ".join(f"{count:,}" for count in done.shown)
        self._say(
            f"Two screens saw {shown} records: each all of them, and each went on where it was after it had "
            "been switched off."
        )
        self.is_good = self.is_good and done.is_good

    def _show_arrow(self) -> None:
        self._begin("A batch is Arrow columns")
        shard = max(self._hub.describe_stream(_STREAM).open_shards, key=lambda one: one.next_offset)
        self._code(f'hub.read("{_STREAM}", {shard.id}, {shard.first_offset}, max_records=3).to_arrow()')
        batch = self._hub.read(_STREAM, shard.id, shard.first_offset, max_records=3).to_arrow()
        table = output.plain_table(*(f"{field.name}\n{field.type}" for field in batch.schema))
        for row in batch.to_pylist():
            table.add_row(*(Text(str(cell)) for cell in row.values()))
        self._show(table)

    def _show_speed(self) -> None:
        self._begin("How fast: whole tables with send_batch")
        self._say(
            "150-byte records, 100,000 keys, 4 shards; every batch is on disk before it is acknowledged."
        )
        self._code('producer.send_batch(table, key_column="key")')
        self._make(_FAST_STREAM)
        table = _columns()
        with self._hub.producer(_FAST_STREAM) as producer:
            producer.send_batch(table).result()
            began_s = time.perf_counter()
            futures = [producer.send_batch(table) for _ in range(_BATCHES)]
            for future in futures:
                future.result()
            took_s = time.perf_counter() - began_s
        self.rate = _BATCHES * _BATCH_RECORDS / took_s
        began_s = time.perf_counter()
        rows = sum(batch.to_arrow().num_rows for batch in read_all(self._hub, _FAST_STREAM))
        read_rate = rows / (time.perf_counter() - began_s)
        shown = output.plain_table("what", ">records", ">a second", ">bytes a second")
        for what, count, rate in (
            ("sent, durable", _BATCHES * _BATCH_RECORDS, self.rate),
            ("read as Arrow", rows, read_rate),
        ):
            shown.add_row(what, f"{count:,}", f"{rate:,.0f}", output.bytes_text(rate * 150))
        self._show(shown)

    def _conclude(self) -> None:
        is_good = self.verdict.is_good and self.is_good
        if is_good:
            text = (
                "[bold green]Nothing lost, nothing twice, every key in order[/] "
                "through split, merge, reshard, deploy"
            )
        else:
            text = "[bold red]The check failed: this is a bug in Shoal.[/] Please report it with this output."
        self._screen.print(Panel.fit(text, border_style="green" if is_good else "red"))
        self._say("Next: shoal stream create orders; echo hello | shoal produce orders; shoal tail orders")

    # --- How it is told. ---

    def _begin(self, title: str) -> None:
        self._chapter += 1
        self._screen.print()
        self._screen.rule(f"[bold]{self._chapter}. {title}[/]", align="left", style="cyan")
        time.sleep(self._pause_s)

    def _say(self, text: str) -> None:
        self._screen.print(Text(text))
        time.sleep(self._pause_s / 2)

    def _code(self, text: str) -> None:
        self._screen.print(Padding.indent(Text(f">>> {text}", style="bold cyan"), 2))
        time.sleep(self._pause_s / 2)

    def _show(self, thing: RenderableType) -> None:
        self._screen.print(Padding.indent(thing, 2))
        time.sleep(self._pause_s)

    def _show_ring(self, info: StreamInfo) -> None:
        self._show(output.ring_line(info.shards, _RING_WIDTH))

    def _make(self, stream: str) -> StreamInfo:
        made = self._hub.create_stream(stream, shards=4)
        self._made.append(stream)
        return made

    def _kept(self) -> dict[int, int]:
        return {shard.id: shard.next_offset for shard in self._hub.describe_stream(_STREAM).shards}


@contextmanager
def _opened(url: str | None) -> Iterator[Hub]:
    if url is not None:
        with connect(url) as hub:
            yield hub
        return
    with (
        tempfile.TemporaryDirectory(prefix="shoal-demo-") as folder,
        connect(f"sqlite:///{Path(folder) / 'shoal.db'}") as hub,
    ):
        yield hub


def _columns() -> pa.Table:
    numbers = np.random.default_rng(1).permutation(_BATCH_RECORDS)
    keys = [f"customer-{n:06}" for n in numbers.tolist()]
    values = [f'{{"order": {n}, "note": "{"x" * 100}"}}'.ljust(135) for n in numbers.tolist()]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
