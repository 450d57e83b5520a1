"""A store asked directly about groups: what it refuses of those who decided on what has changed since."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from sqlalchemy import select

import shoal
from shoal import Hub
from shoal.hub.local import LocalHub
from shoal.store.sql.database import Database
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.migration import migrate
from shoal.store.sql.store import SQLStore
from shoal.store.sql.tables import EPOCHS, SCHEMA_VERSION, sequences

STREAM = "orders"


@pytest.fixture
def sql_store(store_url: str) -> Iterator[SQLStore]:
    store = SQLStore.open(store_url)
    yield store
    store.close()


@pytest.fixture
def hub(sql_store: SQLStore) -> Hub:
    """A hub on the store, which watches no group unless someone joins."""
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    hub.create_stream(STREAM, shards=2)
    return hub


# --- Epochs. ---


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION - 1])
def test_the_sequence_of_epochs_is_there_before_anyone_wants_one(store_url: str, version: int) -> None:
    database = Database(dialect_for(store_url))
    if version:
        migrate(database, durable=True, upto=version)
    for _ in range(2):
        shoal.connect(store_url).close()
        with database.read() as connection:
            assert [tuple(row) for row in connection.execute(select(sequences))] == [(EPOCHS, 0)]
    database.close()


def test_the_first_epochs_ever_can_be_given_in_several_groups_at_once(
    fresh_store_url: Callable[[], str],
) -> None:
    for _ in range(2):
        url = fresh_store_url()
        with ExitStack() as stack:
            hubs = [stack.enter_context(shoal.connect(url)) for _ in range(4)]
            hubs[0].create_stream(STREAM, shards=2)
            for place in range(len(hubs)):
                hubs[0].create_group(STREAM, f"g{place}")
            together = threading.Barrier(len(hubs))

            def join(place: int) -> set[int | None]:
                together.wait()  # noqa: B023 - of this round
                with hubs[place].join_group(STREAM, f"g{place}", "anna"):  # noqa: B023
                    return {shard.epoch for shard in hubs[place].describe_group(STREAM, f"g{place}").shards}  # noqa: B023

            with ThreadPoolExecutor(len(hubs)) as threads:
                assert list(threads.map(join, range(len(hubs)))) == [{1, 2}] * len(hubs)
            # A group that is made later begins above all of them.
            hubs[0].create_group(STREAM, "later")
            with hubs[0].join_group(STREAM, "later", "anna"):
                epochs = {shard.epoch for shard in hubs[0].describe_group(STREAM, "later").shards}
            assert epochs == {3, 4}
