"""Streams and projects: making, describing, listing, deleting, making again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pyarrow as pa
import pytest

from shoal import Hub, StreamInfo
from shoal.core.errors import (
    ProjectNotEmpty,
    StreamExists,
    UnknownProject,
    UnknownStream,
)
from shoal.core.model import Compression, KeyHash
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import read_shard, unchanged

RING_SIZE = 2**128


class StreamContract(HubSuite):
    def test_a_new_stream_has_equal_open_empty_shards_that_cover_the_ring(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=4)
        shards = hub.describe_stream(orders).shards
        assert [shard.id for shard in shards] == [0, 1, 2, 3]
        assert [shard.begin for shard in shards] == [i * RING_SIZE // 4 for i in range(4)]
        assert [shard.end for shard in shards] == [(i + 1) * RING_SIZE // 4 for i in range(4)]
        for shard in shards:
            assert (shard.status, shard.parents, shard.first_offset, shard.next_offset) == ("open", (), 0, 0)

    def test_what_create_returns_is_what_describe_shows(self, hub: Hub, orders: str) -> None:
        made = hub.create_stream(
            orders,
            shards=3,
            retention=timedelta(days=2),
            retention_bytes=10**9,
            compression="zstd",
            hash="md5",
            schema={"amount": "int64"},
        )
        assert made == hub.describe_stream(orders)
        assert made.settings.retention_ms == 2 * 24 * 3600 * 1000
        assert made.settings.retention_bytes == 10**9
        assert (made.settings.compression, made.settings.hash) == (Compression.ZSTD, KeyHash.MD5)

    def test_a_stream_without_settings_keeps_for_ever(self, hub: Hub, orders: str) -> None:
        settings = hub.create_stream(orders).settings
        assert (settings.retention_ms, settings.retention_bytes, settings.schema) == (None, None, None)

    def test_a_stream_without_a_project_is_in_the_default_one(self, hub: Hub, project: str) -> None:
        made = hub.create_stream(project)  # The name is nobody else's, and good for a stream too.
        assert (made.project, made.name) == ("default", project)
        assert hub.describe_stream(f"default/{project}") == made
        assert "default" in hub.list_projects()
        hub.delete_stream(project)

    @pytest.mark.parametrize("shards", [1, 3, 4096])
    def test_a_stream_may_have_any_number_of_shards_up_to_4096(
        self, hub: Hub, orders: str, shards: int
    ) -> None:
        hub.create_stream(orders, shards=shards)
        found = hub.describe_stream(orders).open_shards
        assert len(found) == shards
        assert (found[0].begin, found[-1].end) == (0, RING_SIZE)
        assert all(left.end == right.begin for left, right in pairwise(found))
        hub.delete_stream(orders)

    def test_streams_are_listed_by_name_for_one_project_or_all(self, hub: Hub, project: str) -> None:
        for name in ("b", "a", "c.d_e-F"):
            hub.create_stream(f"{project}/{name}", shards=2)
        mine = hub.list_streams(project)
        assert [stream.name for stream in mine] == ["a", "b", "c.d_e-F"]
        assert all(len(stream.shards) == 2 for stream in mine)
        assert [stream for stream in hub.list_streams() if stream.project == project] == mine
        assert project in hub.list_projects()

    def test_names_that_differ_in_case_are_two_streams(self, hub: Hub, project: str) -> None:
        hub.create_stream(f"{project}/Orders", shards=1)
        hub.create_stream(f"{project}/orders", shards=2)
        assert len(hub.describe_stream(f"{project}/Orders").shards) == 1
        assert len(hub.describe_stream(f"{project}/orders").shards) == 2

    def test_the_same_stream_name_in_two_projects_is_two_streams(self, hub: Hub, project: str) -> None:
        hub.create_stream(f"{project}/orders", shards=1)
        hub.create_stream(f"{project}-b/orders", shards=1)
        hub.append(f"{project}/orders", 0, [b"here"])
        assert hub.next_offset(f"{project}-b/orders", 0) == 0

    def test_a_second_stream_of_a_name_is_refused_and_the_first_stays_as_it_was(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.append(orders, 0, [b"kept"])
        with unchanged(hub, orders), pytest.raises(StreamExists, match="orders"):
            hub.create_stream(orders, shards=7)

    def test_of_many_threads_that_create_one_stream_exactly_one_wins(
        self, hub: Hub, orders: str, project: str
    ) -> None:
        def create(_: int) -> StreamInfo | StreamExists:
            try:
                return hub.create_stream(orders, shards=2)
            except StreamExists as error:
                return error

        with ThreadPoolExecutor(8) as threads:
            outcomes = list(threads.map(create, range(8)))
        made = [outcome for outcome in outcomes if isinstance(outcome, StreamInfo)]
        assert len(made) == 1
        assert hub.list_streams(project) == made

    def test_threads_that_create_different_streams_of_a_new_project_all_succeed(
        self, hub: Hub, project: str
    ) -> None:
        with ThreadPoolExecutor(8) as threads:
            names = [f"{project}/s{i}" for i in range(8)]
            made = list(threads.map(hub.create_stream, names))
        assert [str(stream.full_name) for stream in made] == names
        assert sorted(stream.id for stream in made) == sorted({stream.id for stream in made})

    def test_a_deleted_stream_is_gone_at_once_with_all_its_calls(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"a"])
        assert len(hub.read(orders, 0, 0)) == 1
        hub.delete_stream(orders)
        for call in (
            lambda: hub.describe_stream(orders),
            lambda: hub.read(orders, 0, 0),
            lambda: hub.append(orders, 0, [b"b"]),
            lambda: hub.stats(orders),
            lambda: hub.delete_stream(orders),
            lambda: hub.split_shard(orders, 0),
            lambda: hub.offset_at(orders, 0, 0),
            lambda: hub.enforce_retention(orders),
            lambda: hub.set_retention(orders),
            lambda: hub.producer(orders),
        ):
            with pytest.raises(UnknownStream, match="create_stream"):
                call()

    def test_a_stream_made_again_under_its_name_is_new_and_empty(self, hub: Hub, orders: str) -> None:
        first = hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"old"] * 3)
        assert len(hub.read(orders, 0, 0)) == 3
        hub.delete_stream(orders)
        second = hub.create_stream(orders, shards=2, schema=pa.schema([("amount", pa.int64())]))
        assert second.id != first.id
        assert hub.stats(orders).appended == 0
        assert len(hub.read(orders, 0, 0)) == 0
        hub.append(orders, 0, [{"amount": 7}])
        assert [record.value for record in read_shard(hub, orders, 0)] == [{"amount": 7}]

    def test_a_producer_of_a_deleted_stream_does_not_write_into_the_one_made_again(
        self, hub: Hub, orders: str
    ) -> None:
        hub.create_stream(orders, shards=1)
        producer = hub.producer(orders)
        producer.send(b"old").result(10)
        hub.delete_stream(orders)
        hub.create_stream(orders, shards=1)
        assert isinstance(producer.send(b"late").exception(10), UnknownStream)
        producer.close()
        assert hub.stats(orders).appended == 0

    def test_a_project_with_streams_is_not_deleted_and_an_empty_one_is(
        self, hub: Hub, orders: str, project: str
    ) -> None:
        hub.create_stream(orders)
        with pytest.raises(ProjectNotEmpty, match="1 streams"):
            hub.delete_project(project)
        assert len(hub.list_streams(project)) == 1
        hub.delete_stream(orders)
        hub.delete_project(project)
        assert project not in hub.list_projects()
        with pytest.raises(UnknownProject, match=project):
            hub.list_streams(project)

    def test_retention_can_be_changed_and_taken_away(self, hub: Hub, orders: str) -> None:
        hub.create_stream(orders, retention=60, retention_bytes=1000)
        assert hub.set_retention(orders, retention=0.5).settings.retention_ms == 500
        assert hub.describe_stream(orders).settings.retention_bytes is None
        assert hub.set_retention(orders).settings.retention_ms is None
