"""Bad input gets an error that names the field, the value and the remedy, and changes nothing.

Each test takes a picture of the stream before and after. What a schema refuses is in `appending.py`, what a
table must look like in `sending.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from shoal import Hub, ProducerStamp, Record
from shoal.core.errors import (
    EmptyBatch,
    InvalidInput,
    InvalidKey,
    InvalidName,
    InvalidTimestamp,
    ShardChangeRefused,
    TooLarge,
    UnknownProject,
    UnknownShard,
    UnknownStream,
)
from shoal.testing.contract.suite import HubSuite
from shoal.testing.reading import unchanged

RING_SIZE = 2**128
BAD_NAMES = [
    "",
    " ",
    "a b",
    "ä",
    "a\n",
    "a*b",
    "x" * 129,
    "a/b/c",
    "/a",
    "a/",
    "a\x00",
    5,
    None,
    b"orders",
    True,
]
NAMED_CALLS: dict[str, Callable[[Hub, Any], object]] = {
    "create_stream": lambda hub, name: hub.create_stream(name),
    "describe_stream": lambda hub, name: hub.describe_stream(name),
    "delete_stream": lambda hub, name: hub.delete_stream(name),
    "split_shard": lambda hub, name: hub.split_shard(name, 0),
    "merge_shards": lambda hub, name: hub.merge_shards(name, 0),
    "reshard": lambda hub, name: hub.reshard(name, 2),
    "append": lambda hub, name: hub.append(name, 0, [b"x"]),
    "read": lambda hub, name: hub.read(name, 0, 0),
    "offset_at": lambda hub, name: hub.offset_at(name, 0, 0),
    "first_offset": lambda hub, name: hub.first_offset(name, 0),
    "next_offset": lambda hub, name: hub.next_offset(name, 0),
    "stats": lambda hub, name: hub.stats(name),
    "set_retention": lambda hub, name: hub.set_retention(name),
    "producer": lambda hub, name: hub.producer(name),
}
SHARD_CALLS: dict[str, Callable[[Hub, str, Any], object]] = {
    "split_shard": lambda hub, name, shard: hub.split_shard(name, shard),
    "merge_shards": lambda hub, name, shard: hub.merge_shards(name, shard),
    "merge_shards_with": lambda hub, name, shard: hub.merge_shards(name, 0, shard),
    "append": lambda hub, name, shard: hub.append(name, shard, [b"x"]),
    "read": lambda hub, name, shard: hub.read(name, shard, 0),
    "offset_at": lambda hub, name, shard: hub.offset_at(name, shard, 0),
    "first_offset": lambda hub, name, shard: hub.first_offset(name, shard),
    "next_offset": lambda hub, name, shard: hub.next_offset(name, shard),
}


class Clueless(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _when: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


class RefusalContract(HubSuite):
    @pytest.fixture
    def kept(self, hub: Hub, orders: str) -> str:
        """A stream of four shards with a record in it."""
        hub.create_stream(orders, shards=4)
        hub.append(orders, 0, [Record(0, 1000, b"k", b"kept")])
        return orders

    def test_a_bad_name_is_refused_by_every_call_and_makes_nothing(self, hub: Hub, kept: str) -> None:
        streams = len(hub.list_streams())
        with unchanged(hub, kept):
            for name, call in product(BAD_NAMES, NAMED_CALLS.values()):
                with pytest.raises(InvalidName, match=r"(A-Z a-z 0-9|named by a str)") as caught:
                    call(hub, name)
                assert caught.value.field in {"stream", "project"}
                assert repr(caught.value.value)[:50] in str(caught.value)
        assert len(hub.list_streams()) == streams

    def test_a_bad_project_name_is_refused(self, hub: Hub) -> None:
        cases: list[Any] = ["", "a b", "a/b", "x" * 129, 5]
        for name in cases:
            for call in (hub.list_streams, hub.delete_project):
                with pytest.raises(InvalidName, match="project="):
                    call(name)

    def test_a_name_of_128_characters_is_good_for_every_call(self, hub: Hub, project: str) -> None:
        name = f"{project:x<128}/{'y' * 128}"
        hub.create_stream(name, shards=1)
        hub.append(name, 0, [b"x"])
        assert hub.stats(name).records == 1
        hub.delete_stream(name)

    @pytest.mark.parametrize("call", [call for call in NAMED_CALLS if call != "create_stream"])
    def test_an_unknown_stream_or_project_is_named(
        self, hub: Hub, kept: str, project: str, call: str
    ) -> None:
        with unchanged(hub, kept):
            with pytest.raises(UnknownStream, match=rf"{project}/nobody.*create_stream"):
                NAMED_CALLS[call](hub, f"{project}/nobody")
            with pytest.raises(UnknownProject, match=f"{project}-nowhere"):
                NAMED_CALLS[call](hub, f"{project}-nowhere/orders")
        assert f"{project}-nowhere" not in hub.list_projects()

    def test_an_unknown_project_is_not_deleted(self, hub: Hub, project: str) -> None:
        with pytest.raises(UnknownProject, match=project):
            hub.delete_project(project)

    def test_an_unknown_shard_is_named_with_those_there_are(self, hub: Hub, kept: str) -> None:
        with unchanged(hub, kept):
            for shard, call in product((4, -1, 2**70, "0", 1.0, True), SHARD_CALLS.values()):
                with pytest.raises(UnknownShard, match="has shards 0 to 3") as caught:
                    call(hub, kept, shard)
                assert caught.value.shard == shard

    def test_a_number_of_shards_out_of_range_is_refused(self, hub: Hub, kept: str, project: str) -> None:
        bad: list[Any] = [0, -1, 4097, 10**9, 1.5, "4", None, True]
        with unchanged(hub, kept):
            for shards in bad:
                with pytest.raises(InvalidInput, match=r"shards=.*1 to 4096"):
                    hub.reshard(kept, shards)
                with pytest.raises(InvalidInput, match=r"shards=.*1 to 4096"):
                    hub.create_stream(f"{project}/other", shards=shards)
        assert len(hub.list_streams(project)) == 1

    def test_a_bad_retention_is_refused(self, hub: Hub, kept: str, project: str) -> None:
        cases: list[tuple[str, Any]] = [
            ("retention", 0),
            ("retention", -5),
            ("retention", "1 day"),
            ("retention", True),
            ("retention", math.nan),
            ("retention", math.inf),
            ("retention", 1e30),
            ("retention", timedelta(seconds=-1)),
            ("retention_bytes", 0),
            ("retention_bytes", 1.5),
            ("retention_bytes", True),
            ("retention_bytes", 2**70),
        ]
        with unchanged(hub, kept):
            for field, value in cases:
                with pytest.raises(InvalidInput, match=f"{field}="):
                    hub.set_retention(kept, **{field: value})
                with pytest.raises(InvalidInput, match=f"{field}="):
                    hub.create_stream(f"{project}/other", **{field: value})
        assert len(hub.list_streams(project)) == 1

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"hash": "crc"}, "hash='crc'.*xxh64"),
            ({"compression": "gzip"}, "compression='gzip'.*lz4"),
            ({"schema": {}}, "schema=.*at least one column"),
            ({"schema": {"a": "nonsense"}}, "schema='a: nonsense'"),
            ({"schema": {"key": "string"}}, "schema='key'"),
            ({"schema": {"offset": "int64"}}, "schema='offset'"),
            ({"schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, "schema='a'"),
            ({"schema": {"a": pa.dictionary(pa.int8(), pa.string())}}, "plain Arrow type"),
            ({"schema": {"a": pa.list_(pa.dense_union([pa.field("x", pa.int8())]))}}, "plain Arrow type"),
            ({"schema": {"a": pa.string_view()}}, "plain Arrow type"),
            ({"schema": {"a": pa.list_view(pa.int64())}}, "plain Arrow type"),
            ({"schema": {"a": pa.binary(4_000_001)}}, "over the limit of 4000000"),
            ({"schema": ["a", "b"]}, "schema="),
        ],
    )
    def test_bad_settings_make_no_stream(self, hub: Hub, project: str, settings: Any, text: str) -> None:
        with pytest.raises(InvalidInput, match=text):
            hub.create_stream(f"{project}/other", **settings)
        assert project not in hub.list_projects()

    def test_a_closed_shard_is_neither_split_nor_merged(self, hub: Hub, kept: str) -> None:
        hub.split_shard(kept, 1)
        with unchanged(hub, kept):
            for call in (
                lambda: hub.split_shard(kept, 1),
                lambda: hub.merge_shards(kept, 1, 2),
                lambda: hub.merge_shards(kept, 0, 1),
            ):
                with pytest.raises(ShardChangeRefused, match=r"shard=1: .*is closed; only open shards"):
                    call()

    def test_a_split_outside_a_shard_or_on_its_edge_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [0, RING_SIZE // 4, RING_SIZE // 2, 1, RING_SIZE - 1, f"{RING_SIZE // 2:x}"]
        for at in cases:
            with unchanged(hub, kept), pytest.raises(ShardChangeRefused, match=r"at=.*on its edge") as caught:
                hub.split_shard(kept, 1, at=at)
            assert hex(RING_SIZE // 4) in str(caught.value)

    def test_a_split_at_what_is_no_hash_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [-1, RING_SIZE, "zz", "", "1" * 40, " 1", "0x_1", 1.5, True]
        for at in cases:
            with unchanged(hub, kept), pytest.raises(InvalidInput, match="hexadecimal"):
                hub.split_shard(kept, 1, at=at)

    @pytest.mark.parametrize(("left", "right"), [(0, 2), (0, 3), (3, 0), (1, 1)])
    def test_shards_that_are_not_neighbours_are_not_merged(
        self, hub: Hub, kept: str, left: int, right: int
    ) -> None:
        with unchanged(hub, kept), pytest.raises(ShardChangeRefused, match="only neighbours"):
            hub.merge_shards(kept, left, right)

    def test_the_last_shard_on_the_ring_has_no_right_neighbour(self, hub: Hub, kept: str) -> None:
        with unchanged(hub, kept), pytest.raises(ShardChangeRefused, match=r"shard=3.*no right neighbour"):
            hub.merge_shards(kept, 3)

    def test_an_empty_batch_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [[], pa.table({"value": pa.array([], pa.binary())})]
        for records in cases:
            with unchanged(hub, kept), pytest.raises(EmptyBatch, match=r"0 records.*at least one"):
                hub.append(kept, 0, records)

    def test_what_is_no_list_of_records_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [b"bytes", "text", {"a": 1}, 5, None, (b"x" for _ in range(1))]
        for records in cases:
            with unchanged(hub, kept), pytest.raises(InvalidInput, match=r"records=.*list of records"):
                hub.append(kept, 0, records)

    def test_a_key_that_is_neither_bytes_nor_text_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [5, 1.5, ["a"], {"a": 1}, True, "\ud800"]
        for key in cases:
            with hub.producer(kept) as producer, unchanged(hub, kept):
                with pytest.raises(InvalidKey, match="key="):
                    hub.append(kept, 0, [b"good", Record(0, 0, key, b"x")])
                with pytest.raises(InvalidKey, match="key="):
                    producer.send(b"x", key=key)
                producer.flush()

    def test_text_that_is_no_unicode_is_refused(self, hub: Hub, kept: str) -> None:
        with hub.producer(kept) as producer, unchanged(hub, kept):
            for call in (
                lambda: hub.append(kept, 0, ["\ud800"]),
                lambda: producer.send("\ud800"),
                lambda: producer.send(b"x", headers={"h": "\ud800"}),
                lambda: producer.send(b"x", headers={"\ud800": b"x"}),
            ):
                with pytest.raises(InvalidInput):
                    call()
            producer.flush()

    def test_a_timestamp_out_of_range_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [
            -1,
            253_402_300_800_000,
            2**70,
            1.5,
            "now",
            True,
            datetime(2024, 1, 1),  # noqa: DTZ001 - a naive one is what is refused
            datetime(1969, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1, tzinfo=Clueless()),
        ]
        for timestamp in cases:
            with hub.producer(kept) as producer, unchanged(hub, kept):
                with pytest.raises(InvalidTimestamp, match="timestamp="):
                    hub.append(kept, 0, [b"good", Record(0, timestamp, None, b"x")])
                with pytest.raises(InvalidTimestamp, match="timestamp="):
                    producer.send(b"x", timestamp=timestamp)
                with pytest.raises(InvalidTimestamp, match="timestamp="):
                    hub.offset_at(kept, 0, timestamp)
                producer.flush()

    def test_a_column_of_timestamps_with_one_out_of_range_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [
            pa.array([0, -1]),
            pa.array([0, 253_402_300_800_000]),
            pa.array([0, 2**62]),
            pa.array([0, 2**64 - 1], pa.uint64()),
            pa.array([0, -1], pa.timestamp("us", "UTC")),
            pa.array([0, 2**62], pa.timestamp("s", "UTC")),
            pa.array([0, 2**62], pa.timestamp("s")),
            pa.array([0, 2**58 + 1], pa.timestamp("ms", "UTC")),
            pa.array([0, 253_402_300_800], pa.timestamp("s")),
        ]
        for column in cases:
            table = pa.table({"value": [b"x", b"y"], "timestamp": column})
            with unchanged(hub, kept), pytest.raises(InvalidTimestamp, match=r"timestamp=.*9999"):
                hub.append(kept, 0, table)

    def test_bad_headers_are_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [{"h": 5}, {5: b"x"}, {f"h{i}": b"" for i in range(65)}, "h=1", [("h", b"x")]]
        for headers in cases:
            with hub.producer(kept) as producer, unchanged(hub, kept):
                with pytest.raises(InvalidInput, match="headers="):
                    hub.append(kept, 0, [b"good", Record(0, 0, None, b"x", headers)])
                with pytest.raises(InvalidInput, match="headers="):
                    producer.send(b"x", headers=headers)
                producer.flush()

    def test_a_record_over_the_limit_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [
            Record(0, 0, None, b"x" * 4_000_001),
            Record(0, 0, b"k" * 2_000_001, b"x" * 2_000_000),
            Record(0, 0, None, b"x", {"h": b"x" * 4_000_001}),
        ]
        for record in cases:
            with unchanged(hub, kept), pytest.raises(TooLarge, match=r"record=.*of 4000000 bytes") as caught:
                hub.append(kept, 0, [b"good", record])
            assert caught.value.size > caught.value.limit == 4_000_000

    def test_a_batch_over_the_limit_is_refused(self, hub: Hub, kept: str) -> None:
        with unchanged(hub, kept):
            with pytest.raises(TooLarge, match=r"batch=.*limit of 8000000 bytes.*a producer does this"):
                hub.append(kept, 0, [b"x" * 3_000_000] * 3)
            with pytest.raises(TooLarge, match="limit of 8000000 bytes"):
                hub.append(kept, 0, pa.table({"value": [b"x" * 3_000_000] * 3}))

    def test_a_record_at_the_limit_is_stored(self, hub: Hub, kept: str) -> None:
        hub.append(kept, 1, [b"x" * 4_000_000])
        with hub.producer(kept) as producer:
            at = producer.send(b"y" * 3_999_999, key=b"k").result(30)
        assert len(next(iter(hub.read(kept, 1, 0))).value) == 4_000_000
        assert len(next(iter(hub.read(kept, at.shard, at.offset))).value) == 3_999_999

    def test_bad_read_limits_are_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [
            {"max_records": 0},
            {"max_records": 1.5},
            {"max_bytes": -1},
            {"wait": -1},
            {"wait": 4000},
            {"wait": "x"},
        ]
        for limits in cases:
            (field,) = limits
            with unchanged(hub, kept), pytest.raises(InvalidInput, match=f"{field}="):
                hub.read(kept, 0, 0, **limits)

    def test_an_offset_that_is_no_int_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = ["0", 1.0, None, True]
        for offset in cases:
            with unchanged(hub, kept), pytest.raises(InvalidInput, match=r"offset=.*an int"):
                hub.read(kept, 0, offset)

    def test_a_bad_hash_key_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [-1, RING_SIZE, "zz", "", "0x_1", 1.5, True, b"00"]
        for hash_key in cases:
            with hub.producer(kept) as producer, unchanged(hub, kept):
                with pytest.raises(InvalidInput, match=r"hash_key=.*hexadecimal"):
                    producer.send(b"x", hash_key=hash_key)
                producer.flush()

    def test_a_stamp_that_cannot_be_kept_is_refused(self, hub: Hub, kept: str) -> None:
        cases: list[Any] = [
            ProducerStamp(producer="p" * 129, epoch=0, sequence=0),
            ProducerStamp(producer="", epoch=0, sequence=0),
            ProducerStamp(producer="p\x00", epoch=0, sequence=0),
            ProducerStamp(producer="p", epoch=-1, sequence=0),
            ProducerStamp(producer="p", epoch=2**63, sequence=0),
            ProducerStamp(producer="p", epoch=0, sequence=-1),
            ProducerStamp(producer=5, epoch=0, sequence=0),  # type: ignore[arg-type]
        ]
        for stamp in cases:
            with unchanged(hub, kept), pytest.raises(InvalidInput):
                hub.append(kept, 0, [b"x"], stamp=stamp)

    def test_a_bad_housekeeping_interval_opens_no_hub(self, hub_url: str) -> None:
        cases: list[Any] = [0, -1, "x", None, True]
        for seconds in cases:
            import shoal  # noqa: PLC0415 - only this test opens a hub by itself

            with pytest.raises(InvalidInput, match="housekeeping_s="):
                shoal.connect(hub_url, housekeeping_s=seconds)
