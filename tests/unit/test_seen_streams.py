"""What a hub remembers of streams, and for how long."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal import Hub
from shoal.core.errors import UnknownProject, UnknownStream
from shoal.core.names import stream_name
from shoal.hub.seen_streams import SeenStreams
from shoal.store.sql.store import SQLStore


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shoal.db'}"


@pytest.fixture
def store(url: str) -> Iterator[SQLStore]:
    store = SQLStore.open(url)
    yield store
    store.close()


@pytest.fixture
def others(url: str) -> Iterator[Hub]:
    """The hub of another process."""
    with shoal.connect(url) as hub:
        yield hub


@pytest.mark.parametrize("with_project", [False, True], ids=["alone", "with its project"])
def test_a_stream_that_others_have_deleted_is_forgotten_by_who_looks_for_it(
    store: SQLStore, others: Hub, *, with_project: bool
) -> None:
    seen, name = SeenStreams(store), stream_name("shop/orders")
    others.create_stream("shop/orders", shards=1)
    stream = seen.describe(name)
    others.delete_stream("shop/orders")
    if with_project:
        others.delete_project("shop")
    assert seen.seen(name, stream.id, [0]) is stream
    with pytest.raises(UnknownProject if with_project else UnknownStream):
        seen.describe(name)
    assert seen.seen(name, stream.id, [0]) is None


def test_so_many_shards_are_remembered_and_of_more_streams_those_that_were_loaded_first_go(
    store: SQLStore, others: Hub
) -> None:
    seen = SeenStreams(store, shards_kept=10)
    names = [stream_name(f"day-{number}") for number in range(6)]
    streams = [others.create_stream(str(name), shards=2) for name in names]

    def kept() -> list[int]:
        pairs = enumerate(zip(names, streams, strict=True))
        return [number for number, (name, stream) in pairs if seen.seen(name, stream.id, [0])]

    for name in names[:5]:
        for _ in range(3):  # To look again takes no more room.
            seen.describe(name)
    assert kept() == [0, 1, 2, 3, 4]
    seen.describe(names[5])
    assert kept() == [1, 2, 3, 4, 5]
    seen.forget(names[4])
    seen.describe(names[0])
    assert kept() == [0, 1, 2, 3, 5]
    others.split_shard("day-3", 0)
    seen.describe(names[3])  # It has two shards more.
    assert kept() == [0, 2, 3, 5]


def test_a_stream_of_more_shards_than_are_remembered_is_remembered_alone(
    store: SQLStore, others: Hub
) -> None:
    seen = SeenStreams(store, shards_kept=3)
    small, large = (others.create_stream(name, shards=n) for name, n in (("small", 1), ("large", 8)))
    seen.describe(small.full_name)
    seen.describe(large.full_name)
    assert seen.seen(large.full_name, large.id, range(8)) == large
    assert seen.seen(small.full_name, small.id, [0]) is None
    seen.describe(small.full_name)
    assert seen.seen(large.full_name, large.id, range(8)) is None
