"""Whoever dies, at whatever moment: what was acknowledged is there once, nothing is torn, the ring is whole.

Defends 4 and 7 of the design's section 10. SIGKILL cannot show what a power cut would: that a sync comes
before each acknowledgement is seen in tests/scenario/test_durability.py.
"""

import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import shoal
from shoal.testing.server import Server
from shoal.testing.workers import Worker
from tests.crash import victims
from tests.crash.story import PATIENCE_S, Story

ROUNDS_PER_STORY = 5
SERVER_ROUNDS = 3


def test_every_acknowledged_record_survives_the_death_of_its_writers_and_of_the_hubs_holder(
    tmp_path: Path, crash_rounds: int, crash_seed: int
) -> None:
    chance = random.Random(crash_seed)
    kills = acknowledged = played = 0
    while played < crash_rounds:
        file = tmp_path / f"story-{played}.db"
        with _seed_told(crash_seed), Story(f"sqlite:///{file}", chance.randrange(1 << 30)) as story:
            for _ in range(min(ROUNDS_PER_STORY, crash_rounds - played)):
                story.play(with_resharding=played % 2 == 0)
                played += 1
        kills += story.kills
        acknowledged += len(story.acks)
        _assert_sound(file)
    assert kills == 4 * crash_rounds
    assert acknowledged > 50 * crash_rounds, "the victims hardly wrote; the kills showed nothing"


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
@pytest.mark.timeout(120)
def test_every_acknowledged_record_survives_the_death_of_the_database_server_too(
    store: str, store_url: str, crash_seed: int, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("postgres_server" if store == "postgresql" else "mariadb_server")
    assert isinstance(server, Server)

    def kill_server() -> None:
        server.kill()
        server.start()

    with _seed_told(crash_seed), Story(store_url, crash_seed) as story:
        for number in range(SERVER_ROUNDS):
            story.play(with_resharding=number % 2 == 0, disturb=kill_server if number < 2 else None)
        server.kill()
        server.start()
        story.check()
    assert story.kills == 4 * SERVER_ROUNDS


def test_a_store_whose_making_was_cut_short_is_finished_by_the_next_who_opens_it(
    store: str, fresh_store_url: object, crash_seed: int
) -> None:
    assert callable(fresh_store_url)
    chance = random.Random(crash_seed)
    with _seed_told(crash_seed):
        for _ in range(5):
            url = fresh_store_url()
            for _ in range(2):
                with Worker(victims.connect, url) as victim:
                    victim.wait_for_reports(1, PATIENCE_S)
                    time.sleep(chance.uniform(0.0, 0.03 if store == "sqlite" else 0.2))
                    victim.kill()
            with shoal.connect(url) as hub:
                hub.create_stream("orders", shards=2)
                hub.append("orders", 0, [b"first"])
                assert [record.value for record in hub.read("orders", 0, 0)] == [b"first"]
                for stream in hub.list_streams():
                    assert len(stream.shards) == 2, f"{stream.name} was made by halves"


def _assert_sound(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


class _seed_told:  # noqa: N801 - reads as a statement
    """Adds the seed to whatever goes wrong inside."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._began_s = time.monotonic()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(f"repeat with: pytest tests/crash --crash-seed={self._seed}")
