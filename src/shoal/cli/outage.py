"""The demo's chapter on the server: `shoal serve` in a process of its own, one group on both sides of it, and
a kill -9 while a strict and a best-tried producer send."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from shoal import (
    Batch,
    Checkpointer,
    Hub,
    Outbox,
    OutboxFallback,
    OutboxRelay,
    Producer,
    SendFuture,
    Worker,
    connect,
)
from shoal.cli.following import read_all
from shoal.cli.hushing import hushed
from shoal.cli.patience import PATIENCE_S, until
from shoal.core.errors import MissingPackage, ShoalError, StoreUnavailable
from shoal.hub.local import LocalHub

RECORDS: Final = 100
SHARED: Final = 1_000
_CUSTOMERS: Final = 7
_SERVES: Final = re.compile(r"serves .* at (http://\S+); ")


def why_not(hub: Hub) -> str | None:
    """Why this chapter cannot be told here, if it cannot."""
    if not isinstance(hub.service, LocalHub):
        return "This hub is a server: all that was shown went through it. It is not killed here."
    if hub.service.access.has_users():
        return "This chapter is left out: users are defined here, so a server would ask for keys."
    try:
        import shoal.server.starting  # noqa: F401, PLC0415 - an optional package
    except ModuleNotFoundError as error:
        missing = MissingPackage(part="shoal serve", package=error.name or "uvicorn", extra="server")
        return f"This chapter is left out: {missing}."
    return None


class ServeProcess:
    """`shoal serve` on this machine, at a port that is free, and at the same one again after a kill."""

    def __init__(self, store: str, folder: Path) -> None:
        self.url = "http://127.0.0.1:0"
        # A URL may hold a password, which a list of processes would show.
        self._environment = os.environ | {"SHOAL_STORE": store}
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, and wait until it says where it is."""
        program = [sys.executable, "-P", "-c", "from shoal.cli import main; main()"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*program, "serve", "--listen", self.url.removeprefix("http://")],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        process = self._process
        until(lambda: _SERVES.search(self._log.read_text()) is not None or process.poll() is not None)
        found = _SERVES.search(self._log.read_text())
        if found is None:
            raise StoreUnavailable(f"shoal serve did not start: {self._log.read_text().strip()}")
        self.url = found[1]
        return self

    def kill(self) -> None:
        """With SIGKILL: it finishes nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """In order, however far it has come."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def serving(store: str) -> Iterator[ServeProcess]:
    """A server of this store, for a while."""
    with tempfile.TemporaryDirectory(prefix="shoal-demo-server-") as folder:
        server = ServeProcess(store, Path(folder))
        try:
            yield server.start()
        finally:
            server.stop()


@dataclass(frozen=True, slots=True)
class Shared:
    """What two members of a group did, of whom one was connected through the server."""

    shards: tuple[int, int]
    """Here, and through the server."""
    once: int
    """Records that were processed once."""

    @property
    def is_good(self) -> bool:
        return self.shards == (2, 2) and self.once == SHARED


def share(here: Hub, there: Hub, stream: str, group: str) -> Shared:
    """A worker on each of both, in one group, and records sent through the server."""
    here.create_group(stream, group, start="latest")
    seen: Counter[bytes] = Counter()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.update(record.value for record in batch)
        checkpointer.save()

    with (
        Worker(here, stream, group, process, name="here") as near,
        Worker(there, stream, group, process, name="there") as far,
    ):
        until(lambda: len(near.shards) == len(far.shards) == 2)
        shards = (len(near.shards), len(far.shards))
        with there.producer(stream) as producer:
            for number in range(SHARED):
                producer.send(b"shared %d" % number, key=f"customer-{number % 50}")
        until(lambda: seen.total() >= SHARED)
    return Shared(shards=shards, once=sum(count == 1 for count in seen.values()))


@dataclass(frozen=True, slots=True)
class Survived:
    """What became of the records of two producers, one of them strict, the other best tried."""

    waiting: int
    """Strict ones, while the server was gone."""
    aside: int
    """Best-tried ones, in the outbox by then."""
    strict: int
    """In the stream in the end."""
    best_tried: int
    twice: int
    out_of_order: int
    """Keys of the strict producer."""

    @property
    def is_good(self) -> bool:
        is_kept = self.strict == self.best_tried == 2 * RECORDS and self.twice == self.out_of_order == 0
        return is_kept and self.waiting == self.aside == RECORDS

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """What happened, and where it left the records of each."""
        yield f"each sends {RECORDS} records", f"{RECORDS} stored", f"{RECORDS} stored"
        yield f"kill -9, {RECORDS} more each", f"{self.waiting} wait in line", f"{self.aside} in the outbox"
        yield "a server again, and a relay", f"{self.strict} stored", f"{self.best_tried} stored"


def survive(hub: Hub, server: ServeProcess, stream: str) -> Survived:
    """Producers send through a server that is killed, and started again when one of them has given up."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-demo-shop-") as folder,
        closing(sqlite3.connect(Path(folder) / "shop.db")) as connection,
        hushed("shoal.producer"),  # Every failed attempt is logged; here they are part of the story.
        connect(server.url) as through,
    ):
        Outbox().create(connection)
        connection.commit()
        database = f"sqlite:///{folder}/shop.db"
        with (
            closing(OutboxFallback(database)) as outbox,
            _sending(through.producer(stream, strategy="strict")) as strict,
            _sending(through.producer(stream, strategy="best_tried", max_attempts=1, outbox=outbox)) as tried,
        ):

            def send(first: int) -> tuple[list[SendFuture], list[SendFuture]]:
                numbers = range(first, first + RECORDS)
                return (
                    [strict.send(b"strict %d" % n, key=f"customer-{n % _CUSTOMERS}") for n in numbers],
                    [tried.send(b"tried %d" % n) for n in numbers],
                )

            for futures in send(0):
                for future in futures:
                    future.result(PATIENCE_S)
            server.kill()
            kept, loose = send(RECORDS)
            for future in loose:
                future.result(PATIENCE_S)
            waiting, aside = sum(not future.done() for future in kept), sum(one.is_aside for one in loose)
            server.start()
            for future in kept:
                future.result(PATIENCE_S)
        with OutboxRelay(hub, database) as relay:
            relay.run(until_empty=True)
    return _survived(hub, stream, waiting, aside)


@contextmanager
def _sending(producer: Producer) -> Iterator[Producer]:
    """Until it has sent everything; but whoever is interrupted does not wait for a server that is gone."""
    try:
        yield producer
        producer.close()
    finally:
        with suppress(ShoalError, TimeoutError):
            producer.close(timeout=0.0)


def _survived(hub: Hub, stream: str, waiting: int, aside: int) -> Survived:
    strict: list[tuple[bytes, int]] = []
    tried: list[int] = []
    for batch in read_all(hub, stream):
        for record in batch:
            kind, _, number = record.value.partition(b" ")
            if kind == b"strict":
                strict.append((record.key or b"", int(number)))
            elif kind == b"tried":
                tried.append(int(number))
    keys = {key for key, _ in strict}
    return Survived(
        waiting=waiting,
        aside=aside,
        strict=len(set(strict)),
        best_tried=len(set(tried)),
        twice=len(strict) - len(set(strict)) + len(tried) - len(set(tried)),
        out_of_order=sum((own := [n for of, n in strict if of == key]) != sorted(own) for key in keys),
    )
