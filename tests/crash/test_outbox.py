"""Exactly what the application committed arrives, in order per key, whoever is killed, and when; also for a
stream that is not there before half of the kills.

`make soak-outbox` plays it with 100,000 payments.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine, text

import shoal
from shoal.outbox.journal import Journal
from shoal.testing.reading import values_by_key
from tests.crash.outbox_application import RECEIPTS, prepare
from tests.scenario.programs import PROGRAM

PAYMENTS: Final = int(os.environ.get("SHOAL_OUTBOX_PAYMENTS", "1200"))
KILLS: Final = int(os.environ.get("SHOAL_OUTBOX_KILLS", "9"))
PATIENCE_S: Final = 60 + PAYMENTS * 0.02
LEASE: Final = "500ms"


class Story:
    """An application and two relays as processes: whoever is killed is started again."""

    def __init__(self, hub_url: str, database: str) -> None:
        driver = database.replace("postgresql://", "postgresql+psycopg://")
        self.application = driver.replace("mysql://", "mysql+pymysql://")
        self._commands = {
            "application": [
                sys.executable, "-m", "tests.crash.outbox_application", self.application, str(PAYMENTS),
            ],
            **{
                name: [
                    PROGRAM, "outbox", "relay", "--database", database, "--hub", hub_url,
                    "--lease", LEASE, "--poll", "10ms",
                ]
                for name in ("relay-a", "relay-b")
            },
        }  # fmt: skip
        self.names = list(self._commands)
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        self.running[name] = subprocess.Popen(self._commands[name])

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.kill()
        process.wait(30)

    def kill_all(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def has_ended(self) -> bool:
        code = self.running["application"].poll()
        assert code in {None, 0}
        return code == 0


def test_exactly_what_was_committed_arrives_in_order_whoever_is_killed(
    fresh_store_url: Callable[[], str], tmp_path: Path, crash_seed: int
) -> None:
    chance = random.Random(crash_seed)
    hub_url, database = f"sqlite:///{tmp_path / 'hub.db'}", fresh_store_url()
    story = Story(hub_url, database)
    engine = create_engine(story.application)
    prepare(engine)
    with shoal.connect(hub_url) as hub:
        hub.create_stream("payments", shards=3)
        kills = _play(story, hub, chance, until=lambda: _waiting(database) == 0)
        with engine.connect() as connection:
            ledger = connection.execute(text("SELECT number, who FROM ledger ORDER BY number")).all()
            balances = connection.execute(text("SELECT who, amount FROM balance")).all()
        engine.dispose()
        committed: dict[bytes | None, list[bytes]] = {}
        for number, who in ledger:
            committed.setdefault(b"%d" % who, []).append(b"%d" % number)
        assert len(ledger) == PAYMENTS - len(range(0, PAYMENTS, 3))
        assert {b"%d" % who: amount for who, amount in balances if amount} == {
            who: len(numbers) for who, numbers in committed.items()
        }
        assert values_by_key(hub, "payments") == committed, f"--crash-seed={crash_seed}"
        receipts = {
            who: kept
            for who, numbers in committed.items()
            if (kept := [number for number in numbers if int(number) % RECEIPTS == 1])
        }
        assert values_by_key(hub, "receipts") == receipts, f"--crash-seed={crash_seed}"
    sys.stdout.write(
        f"{len(ledger)} of {PAYMENTS} payments committed and relayed, once; killed: {dict(kills)}\n"
    )


def _play(story: Story, hub: shoal.Hub, chance: random.Random, until: Callable[[], bool]) -> Counter[str]:
    """Kill and start again, until the application has ended and nothing waits any more."""
    kills: Counter[str] = Counter()
    deadline = time.monotonic() + PATIENCE_S
    try:
        for name in story.names:
            story.start(name)
        while sum(kills.values()) < KILLS:
            time.sleep(chance.uniform(0.1, 1.2) * (1 + PAYMENTS / 20_000))
            name = chance.choice(story.names) if kills else "application"  # While it surely has work.
            if name == "application" and story.has_ended():
                name = "relay-a"
            if chance.random() < 0.2:
                hub.reshard("payments", chance.choice((1, 2, 3, 4)))
            story.kill(name)
            kills[name] += 1
            story.start(name)
            if sum(kills.values()) == KILLS // 2:
                # Until now its records are held up, through whatever relay; the others go on.
                while not hub.stats("payments").appended:
                    assert time.monotonic() < deadline, "a stream that is not there holds up the others"
                    time.sleep(0.1)
                hub.create_stream("receipts", shards=2)
        while not (story.has_ended() and until()):
            assert time.monotonic() < deadline, "it does not come to an end"
            time.sleep(0.1)
    finally:
        story.kill_all()
    assert kills["application"]
    return kills


def _waiting(database: str) -> int:
    journal = Journal(database, shoal.Outbox())
    try:
        return journal.status().waiting
    finally:
        journal.close()
