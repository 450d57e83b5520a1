"""A lease table in SQL that forgot commits: revisions come again, and with them other rows."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.lease import LeaseRow, renewed, rewound
from shoal.core.model import ShardId
from shoal.core.resharding import first_shards
from shoal.lease_port import LiveTable
from shoal.store.sql.store import SQLStore

(SHARD,) = first_shards(1, 0)
BORN = LeaseRow(
    group="orders", shard=ShardId(0), born=1, revision=1, lease_id=1, timeout_ms=1000, interval_ms=250
)
TAKEN = replace(
    BORN, revision=2, lease_id=2, lease_owner="a", consumer_owner="a", epoch=2, owner_epoch=2, checkpoint=7
)
RESET = rewound(BORN, SHARD, 0, 3)
"""After the take was forgotten: another state with the same revision."""


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[tuple[LiveTable, LiveTable]]:
    """Two processes' ways to one table; the first has seen the take, and then it was forgotten."""
    store = SQLStore.open(f"sqlite:///{tmp_path / 'shoal.db'}")
    first, second = store.lease_table("leases"), store.lease_table("leases")
    assert first.create(TAKEN)
    assert first.list("orders") == [TAKEN]
    assert second.delete(TAKEN)
    assert second.create(RESET)
    yield first, second
    store.close()


def test_an_owner_that_was_forgotten_does_not_undo_a_forced_checkpoint(
    tables: tuple[LiveTable, LiveTable],
) -> None:
    first, second = tables
    assert not first.swap(TAKEN, renewed(TAKEN, 1000, 250))
    assert second.load("orders", ShardId(0)) == RESET


def test_a_look_shows_what_is_there_and_not_what_was_there_under_that_revision(
    tables: tuple[LiveTable, LiveTable],
) -> None:
    first, _ = tables
    assert first.list("orders") == [RESET]
