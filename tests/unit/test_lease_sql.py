"""A lease table in SQL. Each state of a row has one winner, whoever writes at once.

One that forgot commits: revisions come again, and with them other rows.
"""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.lease import LeaseRow, renewed, rewound
from shoal.core.model import ShardId
from shoal.core.resharding import first_shards
from shoal.lease_port import LiveTable
from shoal.store.sql.store import SQLStore
from tests.unit.reference_cases import ours

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


@ours("S12")
def test_of_many_who_change_a_row_at_once_each_state_of_it_has_one_winner(tmp_path: Path) -> None:
    """Eight threads, each with its own way to the table, on a few rows: renewals, steals, releases, takes."""
    store = SQLStore.open(f"sqlite:///{tmp_path / 'shoal.db'}")
    shards = [ShardId(number) for number in range(5)]
    first = store.lease_table("leases")
    for shard in shards:
        assert first.create(replace(BORN, shard=shard))

    def work(number: int) -> Counter[tuple[ShardId, int]]:
        table, chance, won = (
            store.lease_table("leases"),
            random.Random(number),
            Counter[tuple[ShardId, int]](),
        )
        for turn in range(60):
            row = table.load("orders", chance.choice(shards))
            assert row is not None
            new = replace(
                row,
                revision=row.revision + 1,
                lease_id=row.lease_id + chance.randint(0, 1),
                lease_owner=chance.choice([row.lease_owner, f"t{number}"]),
                consumer_owner=chance.choice([row.consumer_owner, None, f"t{number}"]),
                checkpoint=row.checkpoint + turn % 2,
            )
            if table.swap(row, new):
                won[row.shard, row.revision] += 1
        return won

    with ThreadPoolExecutor(8) as threads:
        won = sum(threads.map(work, range(8)), Counter[tuple[ShardId, int]]())
    assert set(won.values()) == {1}
    rows = {row.shard: row for row in first.list("orders")}
    for shard in shards:
        wins = sorted(revision for of, revision in won if of == shard)
        assert wins == list(range(1, rows[shard].revision)), "every state was left once, by its winner"
    store.close()
