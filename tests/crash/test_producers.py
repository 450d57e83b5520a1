"""Strict producers with names, killed and started again, some while they still live; shards split and merged
under them; a database server that dies: everything is there once, and every key in order.

`make soak-producers` plays it with 500,000 records.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

import shoal
from shoal.testing.reading import values_by_key
from shoal.testing.server import Server
from shoal.testing.serving import ServerProcess
from tests.crash.numbered_producer import AWAY, FENCED, KEYS

NAMES: Final = ("till-1", "till-2", "till-3", "till-4")
RECORDS: Final = int(os.environ.get("SHOAL_PRODUCED", "12000"))
EACH: Final = RECORDS // len(NAMES)
DISTURBANCES: Final = int(os.environ.get("SHOAL_DISTURBANCES", "10"))
RESHARDS: Final = (4, 3, 7, 1, 5)
HUB_KILLS: Final = int(os.environ.get("SHOAL_HUB_KILLS", "3"))
MOVES: Final = int(os.environ.get("SHOAL_RESHARDS", "4"))
DEATHS: Final = 2
SERVED: Final = ("till-1", "till-2", "~anyone-1", "~anyone-2")
"""With names, and without."""
PATIENCE_S: Final = 90 + RECORDS / 500


class Producers:
    """One process for each name, or two: whoever was there first is fenced, or killed."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._former: list[subprocess.Popen[bytes]] = []
        self.counts: Counter[str] = Counter()

    def start(self, name: str) -> None:
        """Another life. If there is one already, it does not know."""
        if name in self._running:
            self._former.append(self._running[name])
        command = [sys.executable, "-m", "tests.crash.numbered_producer", self._url, name, str(EACH)]
        with (self._folder / name).open("w") as said:
            self._running[name] = subprocess.Popen(command, stderr=said)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(30)

    def are_done(self) -> bool:
        """Whether the last life of each has stored everything. One that ended before is started again."""
        codes = {name: process.poll() for name, process in self._running.items()}
        for name, code in codes.items():
            if code in {FENCED, AWAY}:  # A former one came to its senses late, or the server was away.
                self.start(name)
            else:
                assert code in {None, 0}, (self._folder / name).read_text()[-3000:]
        return all(code == 0 for code in codes.values())

    def end(self) -> None:
        for process in [*self._running.values(), *self._former]:
            process.kill()
            process.wait(30)
        self.counts["fenced"] = sum(process.returncode == FENCED for process in self._former)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_named_producers_store_everything_once_and_in_order(
    store: str,
    fresh_store_url: Callable[[], str],
    crash_seed: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    chance, url = random.Random(crash_seed), fresh_store_url()
    server = request.getfixturevalue("postgres_server") if store == "postgresql" else None
    producers = Producers(url, tmp_path)
    began_s = time.monotonic()
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=2)
        try:
            for name in NAMES:
                producers.start(name)
            _disturb(producers, hub, chance, server)
            _wait_for_all(producers, began_s)
        finally:
            producers.end()
        found = values_by_key(hub, "orders")
    assert found == _all_in_order(NAMES), f"--crash-seed={crash_seed}"
    _print(store, producers.counts, time.monotonic() - began_s)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_producers_of_a_server_that_is_killed_store_everything_once_and_in_order(
    store: str, fresh_store_url: Callable[[], str], crash_seed: int, tmp_path: Path
) -> None:
    chance, url = random.Random(crash_seed), fresh_store_url()
    began_s = time.monotonic()
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=2)
        with ServerProcess(url).start() as server:
            producers = Producers(server.url, tmp_path)
            try:
                for name in SERVED:
                    producers.start(name)
                _disturb_served(producers, hub, server, chance)
                _wait_for_all(producers, began_s)
            finally:
                producers.end()
        found = values_by_key(hub, "orders")
    assert found == _all_in_order(SERVED), f"--crash-seed={crash_seed}"
    _print(f"{store}, through a server", producers.counts, time.monotonic() - began_s)


def _wait_for_all(producers: Producers, began_s: float) -> None:
    while not producers.are_done():
        assert time.monotonic() < began_s + PATIENCE_S, "they do not come to an end"
        time.sleep(0.1)


def _all_in_order(names: Sequence[str]) -> dict[bytes | None, list[object]]:
    """What every key holds when each record is there once, in the order of sending."""
    return {
        f"{name}-{key}".encode(): [f"{name}:{n}".encode() for n in range(key, EACH, KEYS)]
        for name in names
        for key in range(KEYS)
    }


def _disturb_served(
    producers: Producers, hub: shoal.Hub, server: ServerProcess, chance: random.Random
) -> None:
    """As much as is asked for, spread over all that is sent."""
    events = ["hub killed"] * HUB_KILLS + ["reshards"] * MOVES + ["killed"] * DEATHS
    chance.shuffle(events)
    deadline_s = time.monotonic() + PATIENCE_S
    resharding, dying = iter(RESHARDS * MOVES), iter(("till-1", "till-2") * DEATHS)
    for turn, event in enumerate(events, start=1):
        while hub.stats("orders").records < RECORDS * turn // (len(events) + 2):
            producers.are_done()
            assert time.monotonic() < deadline_s, "they do not get on"
            time.sleep(0.02)
        producers.counts[event] += 1
        match event:
            case "hub killed":
                server.end(kill=True)
                server.start()
                time.sleep(chance.uniform(0.5, 2.0))
            case "reshards":
                hub.reshard("orders", next(resharding))
            case _:
                name = next(dying)
                producers.kill(name)
                producers.start(name)


def _disturb(producers: Producers, hub: shoal.Hub, chance: random.Random, server: Server | None) -> None:
    resharding = list(RESHARDS)
    for turn in range(DISTURBANCES):
        time.sleep(chance.uniform(0.1, 0.8))
        name = chance.choice(NAMES)
        match chance.randrange(4) if server is not None else chance.randrange(3):
            case 0:
                producers.kill(name)
                producers.start(name)
                producers.counts["killed"] += 1
            case 1:
                producers.start(name)
                producers.counts["superseded"] += 1
            case 2:
                hub.reshard("orders", resharding[turn % len(resharding)])
                producers.counts["reshards"] += 1
            case _:
                assert server is not None
                server.kill()
                server.start()
                producers.counts["server killed"] += 1


def _print(store: str, counts: Counter[str], took_s: float) -> None:
    told = ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))
    rows = [("store", store), ("records", f"{RECORDS:,}"), ("disturbed", told), ("seconds", f"{took_s:.0f}")]
    rows += [("lost", "0"), ("twice", "0"), ("keys out of order", f"0 of {len(NAMES) * KEYS}")]
    sys.stdout.write("\n" + "".join(f"{name:>18} | {value}\n" for name, value in rows))
