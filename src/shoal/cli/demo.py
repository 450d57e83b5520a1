"""`shoal demo`: the story so far, on an embedded hub and a server.

The story is told by `_Story`, a chapter at a time, on a `Page`. What a chapter does is in a room of its own
(`traffic`, `crew`, `deploy`, `queueing`, `invoicing`, `outage`, `speed`), and checks itself: what was sent is
compared with what is read. A check that fails makes the command fail.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from shoal import Hub, StreamInfo, connect
from shoal.cli import output
from shoal.cli.crew import Crew
from shoal.cli.deploy import deploy
from shoal.cli.following import read_all
from shoal.cli.invoicing import PAYMENTS, invoice, pay, remind
from shoal.cli.options import AsJson
from shoal.cli.outage import ServeProcess, serving, share, survive, why_not
from shoal.cli.page import Page
from shoal.cli.queueing import CONSUMERS, queue_up
from shoal.cli.speed import measure
from shoal.cli.traffic import Traffic, Verdict, verify
from shoal.core.errors import UnknownStream
from shoal.core.ring import place

_PROJECT: Final = "demo"
_STREAM: Final = f"{_PROJECT}/orders"
_FAST_STREAM: Final = f"{_PROJECT}/speed"
_WORK_STREAM: Final = f"{_PROJECT}/charges"
_INVOICE_STREAM: Final = f"{_PROJECT}/invoices"
_PAID_STREAM: Final = f"{_PROJECT}/payments"
_WIDTH: Final = 100
_RING_WIDTH: Final = 72
_PAUSE_S: Final = 0.2
_CALM_S: Final = 0.35
"""How long traffic runs between two changes, so that records lie on both sides of each."""
_TIMEOUT_S: Final = 2.0


def demo(
    *,
    hub: Annotated[
        str | None,
        typer.Option(
            "--hub",
            metavar="URL",
            help="Play on this hub, in streams of a project demo, which are removed again. Without it, on "
            "one in a temporary folder; SHOAL_HUB is not used here.",
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause between the chapters.")] = False,
    json: AsJson = False,
) -> None:
    """Play the story so far: splits under load, groups, workers, transactions, an outbox, a killed server."""
    screen = output.screen(piped_width=_WIDTH)
    screen.quiet = json
    pause_s = _PAUSE_S if screen.is_terminal and not fast and not json else 0.0
    with _opened(hub) as (opened, url):
        story = _Story(opened, url, screen, pause_s)
        try:
            story.tell()
        finally:
            story.clean_up()
    is_good = story.verdict.is_good and story.is_good
    if json:
        told = story.verdict.as_json() | {"ok": is_good, "send_batch_records_per_s": round(story.rate)}
        output.print_json(told)
    if not is_good:
        raise typer.Exit(1)


class _Story:
    """Twelve chapters on one hub."""

    def __init__(self, hub: Hub, url: str, screen: Console, pause_s: float) -> None:
        self._hub = hub
        self._url = url
        self._page = Page(screen, pause_s)
        self._projects = hub.list_projects()
        self._made: list[str] = []
        self.verdict = Verdict()
        self.is_good = True
        """All other checks."""
        self.rate = 0.0
        self._through = "split, merge, reshard, deploy"

    def tell(self) -> None:
        self._page.frame("[bold]Shoal[/]  a sharded log that keeps every key in order", "cyan")
        self._create()
        self._send_by_key()
        with self._hub.producer(_STREAM) as producer, Traffic(producer) as traffic:
            self._split_under_load(traffic)
            self._merge_and_reshard(traffic)
        self._page.say(
            f"The traffic ends: {traffic.count:,} records of {len(traffic.sent)} customers were sent."
        )
        self._read_and_verify(traffic)
        self._share_in_a_group()
        self._deploy_workers()
        self._queue_up()
        self._produce_once()
        self._serve()
        self._show_arrow()
        self._show_speed()
        self._conclude()

    def clean_up(self) -> None:
        """Leave a hub as it was: what was there before stays, streams of these names too."""
        for stream in self._made:
            with suppress(UnknownStream):  # It was interrupted before it had come to that.
                self._hub.delete_stream(stream)
        if self._made and _PROJECT not in self._projects:
            self._hub.delete_project(_PROJECT)

    # --- The chapters. ---

    def _create(self) -> None:
        self._page.begin("A stream of four shards")
        self._page.say("A stream is cut into shards; each owns a part of a ring of hashes.")
        self._page.code(f'hub.create_stream("{_STREAM}", shards=4)')
        self._show_ring(self._make(_STREAM))

    def _send_by_key(self) -> None:
        self._page.begin("A key lives in one shard")
        self._page.say("The hash of a record's key is its place on the ring, and so its shard.")
        self._page.code('producer.send("paid", key="ada").result()   # durable when it returns')
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
        self._page.show(table)

    def _split_under_load(self, traffic: Traffic) -> None:
        self._page.begin("A hot shard is split while a producer is sending")
        traffic.run_for(_CALM_S)
        before = self._kept()
        hot = traffic.heat(self._hub.describe_stream(_STREAM))
        traffic.run_for(_CALM_S)
        grown = Counter(self._kept()) - Counter(before)
        self._page.say(
            f"Some customers are busy: of {grown.total():,} new records, {grown[hot]:,} are in shard {hot}."
        )
        self._page.code(f'hub.split_shard("{_STREAM}", {hot})')
        left, right = self._hub.split_shard(_STREAM, hot)
        traffic.run_for(_CALM_S)
        info = self._hub.describe_stream(_STREAM)
        self._show_ring(info)
        taken = [info.shards[child.id].next_offset for child in (left, right)]
        self._page.say(
            f"Shard {hot} is closed at offset {info.shards[hot].next_offset:,}. Its keys go on in "
            f"shards {left.id} and {right.id}, with {taken[0]:,} and {taken[1]:,} records yet."
        )

    def _merge_and_reshard(self, traffic: Traffic) -> None:
        self._page.begin("Two quiet neighbours are merged, then the whole ring is cut anew")
        first, second = self._hub.describe_stream(_STREAM).open_shards[-2:]
        self._page.code(f'hub.merge_shards("{_STREAM}", {first.id}, {second.id})')
        self._hub.merge_shards(_STREAM, first.id, second.id)
        traffic.run_for(_CALM_S)
        self._show_ring(self._hub.describe_stream(_STREAM))
        self._page.code(f'hub.reshard("{_STREAM}", 6)')
        info = self._hub.reshard(_STREAM, 6)
        traffic.run_for(_CALM_S)
        self._show_ring(info)

    def _read_and_verify(self, traffic: Traffic) -> None:
        self._page.begin("Everything is read along the lineage, and checked")
        self._page.say("Children are read after their parents; so each key comes in the order it was sent.")
        info = self._hub.describe_stream(_STREAM)
        self._page.show(output.shard_table(info, self._hub.stats(_STREAM)))
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
        self._page.say(f"The busiest customer, {followed}, lived in shards {' → '.join(map(str, trail))}.")
        self.verdict = verify(traffic.sent, read)
        table = output.plain_table("check", ">count", "")
        for name, count, is_fault in self.verdict.lines():
            mark = (
                Text("failed", "bold red") if is_fault and count else Text("✓" if is_fault else "", "green")
            )
            table.add_row(name, f"{count:,}", mark)
        self._page.show(table)

    def _share_in_a_group(self) -> None:
        self._page.begin("Consumers share the stream: one owner per shard, whatever happens")
        self._page.code(f'hub.create_group("{_STREAM}", "billing", timeout={_TIMEOUT_S:g}, start="latest")')
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
            self._page.show(table)
        finally:
            crew.close()
        self._page.say(
            "Shards move only after their owner let go; each time under a new epoch that fences the old."
        )

    def _deploy_workers(self) -> None:
        self._page.begin("Workers are deployed anew while records come")
        self._make(_WORK_STREAM)
        self._page.code(f'shoal.Worker(hub, "{_WORK_STREAM}", "billing", process).start()')
        self._made += [f"{_WORK_STREAM}.billing.{what}" for what in ("retry", "dead")]
        done = deploy(self._hub, _WORK_STREAM, "billing")
        self._page.say(
            f"Three workers were replaced one by one: {done.records:,} records processed, "
            f"{done.repeated} repeated, {done.missing} missing; a stop took {done.longest_ms:.0f} ms at most."
        )
        self._page.say(
            f"{done.dead} record failed in every attempt and lay among the dead letters, until the cause was "
            f"mended; {done.replayed} replayed. Its neighbours did not wait for it."
        )
        self.is_good = self.is_good and done.repeated == done.missing == 0 and done.dead == done.replayed == 1

    def _queue_up(self) -> None:
        self._page.begin("A work queue on the same stream, and screens that see everything")
        self._page.code(f'hub.create_group("{_WORK_STREAM}", "jobs", delivery="shared")')
        self._page.code(
            "received = consumer.receive(100); consumer.ack(received)   # or release, reject, extend"
        )
        self._made.append(f"{_WORK_STREAM}.jobs.dead")
        done = queue_up(self._hub, _WORK_STREAM, "jobs")
        self._page.say(
            f"{CONSUMERS} consumers shared 4 shards record by record: of {done.records:,} records "
            f"{done.acknowledged:,} were acknowledged once, {done.dead} was rejected into the dead stream. "
            f"One consumer was never heard of again: its {done.again} records came to others."
        )
        self._page.code(f'hub.create_group("{_WORK_STREAM}", "jobs-screens", delivery="broadcast")')
        shown = " and ".join(f"{count:,}" for count in done.shown)
        self._page.say(
            f"Two screens saw {shown} records: each all of them, and each went on where it was after it had "
            "been switched off."
        )
        self.is_good = self.is_good and done.is_good

    def _produce_once(self) -> None:
        self._page.begin("From stream to stream, and from a database to a stream, exactly once")
        self._make(_INVOICE_STREAM)
        self._page.code("with producer.transaction() as transaction:   # all of it, or nothing")
        self._page.code("    transaction.send(invoice, key=record.key); transaction.checkpoint(checkpointer)")
        done = invoice(self._hub, _WORK_STREAM, _INVOICE_STREAM, "clerks")
        self._page.say(
            f"Two workers made {done.invoices:,} invoices of {done.charges:,} charges: {done.twice} twice, "
            f"{done.missing} missing. {done.broken} transactions broke in the middle and left nothing. "
            "A producer came back after another had taken its name, and was refused."
        )
        self._make(_PAID_STREAM)
        self._page.code("with connection:   # the application's own database, and its own transaction")
        self._page.code(
            '    connection.execute("INSERT …"); outbox.add(connection, stream, value, key=customer)'
        )
        paid = pay(self._hub, _PAID_STREAM)
        self._page.say(
            f"Of {PAYMENTS} payments {paid.rolled_back} were rolled back: {paid.rows} rows in the database, "
            f"{paid.arrived} records in the stream, the same ones, in order."
        )
        self._page.code('producer.send("remind", key="ada", deliver_at=in_a_moment)')
        reminded = remind(self._hub, _PAID_STREAM)
        self._page.say(
            f"{reminded.waited} record waited, durable at once; it came when it was due, not before."
        )
        self.is_good = self.is_good and done.is_good and paid.is_good and reminded.is_good

    def _serve(self) -> None:
        self._page.begin("A server for other machines, killed while producers send")
        if (reason := why_not(self._hub)) is not None:
            self._page.say(reason)
            return
        with serving(self._url) as server:
            self._show_server(server)

    def _show_server(self, server: ServeProcess) -> None:
        self._page.code(f"shoal serve --listen {server.url.removeprefix('http://')}", prompt="$")
        self._page.code(f'there = shoal.connect("{server.url}")   # a hub like any other')
        with connect(server.url) as there:
            shared = share(self._hub, there, _WORK_STREAM, "mixed")
        self._page.say(
            f"A worker beside the store and one behind the server were one group, {shared.shards[0]} shards "
            f"and {shared.shards[1]}: {shared.once:,} records were sent through the server, each was "
            "processed once."
        )
        self._page.code('there.producer(stream, strategy="strict")   # unless told otherwise, all with a key')
        self._page.code('there.producer(stream, strategy="best_tried", max_attempts=1, outbox=outbox)')
        done = survive(self._hub, server, _PAID_STREAM)
        table = output.plain_table("what happens", "strict", "best tried")
        for line in done.lines():
            table.add_row(*line)
        self._page.show(table)
        self._page.say(
            f"{done.twice} records twice, {done.out_of_order} keys of the strict one out of order."
        )
        self._through += ", outage"
        self.is_good = self.is_good and shared.is_good and done.is_good

    def _show_arrow(self) -> None:
        self._page.begin("A batch is Arrow columns")
        shard = max(self._hub.describe_stream(_STREAM).open_shards, key=lambda one: one.next_offset)
        self._page.code(f'hub.read("{_STREAM}", {shard.id}, {shard.first_offset}, max_records=3).to_arrow()')
        batch = self._hub.read(_STREAM, shard.id, shard.first_offset, max_records=3).to_arrow()
        table = output.plain_table(*(f"{field.name}\n{field.type}" for field in batch.schema))
        for row in batch.to_pylist():
            table.add_row(*(Text(str(cell)) for cell in row.values()))
        self._page.show(table)

    def _show_speed(self) -> None:
        self._page.begin("How fast: whole tables with send_batch")
        self._page.say(
            "150-byte records, 100,000 keys, 4 shards; every batch is on disk before it is acknowledged."
        )
        self._page.code('producer.send_batch(table, key_column="key")')
        self._make(_FAST_STREAM)
        done = measure(self._hub, _FAST_STREAM)
        self.rate = done.sent_per_s
        shown = output.plain_table("what", ">records", ">a second", ">bytes a second")
        for what, count, rate in (
            ("sent, durable", done.sent, done.sent_per_s),
            ("read as Arrow", done.read, done.read_per_s),
        ):
            shown.add_row(what, f"{count:,}", f"{rate:,.0f}", output.bytes_text(rate * 150))
        self._page.show(shown)

    def _conclude(self) -> None:
        is_good = self.verdict.is_good and self.is_good
        if is_good:
            text = f"[bold green]Nothing lost, nothing twice, every key in order[/] through {self._through}"
        else:
            text = "[bold red]The check failed: this is a bug in Shoal.[/] Please report it with this output."
        self._page.frame(text, "green" if is_good else "red")
        self._page.say(
            "Next: shoal stream create orders; echo hello | shoal produce orders; shoal tail orders"
        )

    def _show_ring(self, info: StreamInfo) -> None:
        self._page.show(output.ring_line(info.shards, _RING_WIDTH))

    def _make(self, stream: str) -> StreamInfo:
        made = self._hub.create_stream(stream, shards=4)
        self._made.append(stream)
        return made

    def _kept(self) -> dict[int, int]:
        return {shard.id: shard.next_offset for shard in self._hub.describe_stream(_STREAM).shards}


@contextmanager
def _opened(url: str | None) -> Iterator[tuple[Hub, str]]:
    """A hub, and its URL."""
    with ExitStack() as stack:
        if url is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shoal-demo-"))
            url = f"sqlite:///{Path(folder) / 'shoal.db'}"
        yield stack.enter_context(connect(url)), url
