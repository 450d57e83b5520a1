"""A store that forgot commits: what a hub does that has seen more than its store remembers."""

import sqlite3
from pathlib import Path

import shoal

STREAM, GROUP = "orders", "billing"


def set_back(path: Path, by: int) -> None:
    """The group's row as an older copy of the store would have it."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE shoal_group SET version = version - ?", (by,))
    database.close()


def noted(hub: shoal.Hub) -> list[str]:
    return [note.kind for _, note in hub.group_history(STREAM, GROUP)]


def test_a_hub_decides_nothing_on_a_version_below_one_that_it_has_seen(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with shoal.connect(f"sqlite:///{path}") as hub:
        hub.create_stream(STREAM, shards=2)
        hub.create_group(STREAM, GROUP, timeout=20)
        hub.join_group(STREAM, GROUP, "a").leave()
        set_back(path, by=1)
        with hub.join_group(STREAM, GROUP, "b") as member:
            assert "distrusted" in noted(hub)
            assert not member.leases, "nothing is granted for one timeout"


def test_a_hub_that_has_seen_nothing_yet_takes_the_store_at_its_word(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with shoal.connect(f"sqlite:///{path}") as hub:
        hub.create_stream(STREAM, shards=2)
        hub.create_group(STREAM, GROUP, timeout=20)
        hub.join_group(STREAM, GROUP, "a").leave()
    set_back(path, by=1)
    with shoal.connect(f"sqlite:///{path}") as fresh:
        fresh.join_group(STREAM, GROUP, "b").leave()
        assert "distrusted" not in noted(fresh)
