"""Tasks of a sink without Spark: repeated after every kind of end, with the shards changing in between."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from shoal.core.errors import NotRepeated, ShoalError, StoreUnavailable
from shoal.core.names import stream_name
from shoal.ports import HubService
from shoal.spark.hubs import HubAddress
from shoal.spark.ledger import Identity
from shoal.spark.repeating import RepeatableWriter
from shoal.spark.sink_columns import fit
from shoal.spark.sink_options import SinkSettings
from shoal.spark.sink_task import SinkTask, Written, ledger_of
from shoal.wire.layout import Layout

SETTINGS = SinkSettings(hub=HubAddress("unused"), stream="orders", buffer_bytes=1)
"""Every batch that comes is a round of its own."""
WHO = Identity(query="q", batch=3, partition=1)


class Killed(BaseException):
    """The task's process ends here."""


class Mortal:
    """A hub whose caller dies at an append: before it is stored, or after it is, unheard."""

    def __init__(self, service: HubService, lives: int, *, is_stored: bool) -> None:
        self._service, self._lives, self._is_stored = service, lives, is_stored

    def append(self, stream: Any, batches: Any) -> Any:
        self._lives -= 1
        if self._lives < 0:
            if self._is_stored:
                self._service.append(stream, batches)
            raise Killed
        return self._service.append(stream, batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def rows(keys: Sequence[bytes | None], first: int = 0) -> pa.RecordBatch:
    """Rows of these keys, numbered."""
    values = [b"%06d" % number for number in range(first, first + len(keys))]
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def stored(hub: shoal.Hub, stream: str = "orders") -> dict[bytes | None, list[bytes]]:
    """The values of each key along the lineage: parents have lower ids."""
    found: dict[bytes | None, list[bytes]] = {}
    for shard in hub.describe_stream(stream).shards:
        offset = shard.first_offset
        while len(part := hub.read(stream, shard.id, offset)):
            for record in part:
                found.setdefault(record.key, []).append(record.value)
            offset = part.next_offset
    return found


def by_key(batches: Sequence[pa.RecordBatch]) -> dict[bytes | None, list[bytes]]:
    wanted: dict[bytes | None, list[bytes]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            wanted.setdefault(row["key"], []).append(row["value"])
    return wanted


def finish(hub: shoal.Hub, written: Written, who: Identity = WHO) -> None:
    """As the driver does when Spark commits the batch."""
    assert written.claim is not None
    ledger = ledger_of(hub.service, SETTINGS)
    ledger.finish(who.query, who.batch, written.claim, {who.partition: written.contents})


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[shoal.Hub]:
    with shoal.connect(f"sqlite:///{tmp_path}/shoal.db") as made:
        made.create_stream("orders", shards=2)
        yield made


_numbers = itertools.count()


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=14),
    ends=st.lists(
        st.tuples(st.sampled_from(["killed", "killed unheard", "cut short"]), st.integers(0, 12)), max_size=4
    ),
    changes=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["split", "merge", "reshard"])), max_size=6
    ),
    buffer_bytes=st.sampled_from([1, 1_000, 8_000_000]),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_attempts_that_die_while_shards_change_store_every_row_once_and_each_key_in_order(
    tmp_path: Path,
    sizes: list[int],
    ends: list[tuple[str, int]],
    changes: list[tuple[int, str]],
    buffer_bytes: int,
) -> None:
    numbered = itertools.count()
    batches = [
        rows([b"k%d" % (number % 13) for number in (next(numbered) for _ in range(size))], sum(sizes[:index]))
        for index, size in enumerate(sizes)
    ]
    change = iter(changes)
    # SQLite's file is kept from example to example: only its streams are new.
    name = f"orders-{next(_numbers)}"
    with shoal.connect(f"sqlite:///{tmp_path}/shoal.db") as hub:
        hub.create_stream(name, shards=2)
        who = replace(WHO, query=name)
        task_settings = replace(SETTINGS, stream=name, buffer_bytes=buffer_bytes)
        for how, when in ends:
            if how == "cut short":
                # A failure in Spark's own code: the input ends, as if this were all, in the midst of a batch.
                short = [*batches[: when + 1]]
                short[-1] = short[-1].slice(0, 1 + short[-1].num_rows // 2)
                with suppress(NotRepeated):
                    SinkTask(hub.service, task_settings, who).write(_changing(hub, name, short, change))
            else:
                service = Mortal(hub.service, when, is_stored=how == "killed unheard")
                with suppress(Killed):
                    SinkTask(service, task_settings, who).write(_changing(hub, name, batches, change))
            _change(hub, name, change)
        last = SinkTask(hub.service, task_settings, who).write(_changing(hub, name, batches, change))
        assert stored(hub, name) == by_key(batches)
        finish(hub, last, who)
        SinkTask(hub.service, task_settings, who).write(batches)
        assert stored(hub, name) == by_key(batches)


def _changing(
    hub: shoal.Hub, name: str, batches: list[pa.RecordBatch], changes: Iterator[tuple[int, str]]
) -> Iterator[pa.RecordBatch]:
    """The batches, and now and then a change of shards between two of them."""
    for number, batch in enumerate(batches):
        if number % 5 == 3:
            _change(hub, name, changes)
        yield batch


def _change(hub: shoal.Hub, name: str, changes: Iterator[tuple[int, str]]) -> None:
    which, what = next(changes, (0, ""))
    shards = hub.describe_stream(name).open_shards
    shard = shards[which % len(shards)]
    match what:
        case "split":
            hub.split_shard(name, shard.id)
        case "merge" if shard is not shards[-1]:
            hub.merge_shards(name, shard.id)
        case "reshard":
            hub.reshard(name, which + 1)


def test_two_attempts_at_the_same_time_store_every_row_once(hub: shoal.Hub) -> None:
    batches = [rows([b"k%d" % (i % 7) for i in range(20)], 20 * number) for number in range(12)]
    slow = SinkTask(hub.service, SETTINGS, WHO)

    def overtaken() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 5:
                hub.split_shard("orders", 0)
                SinkTask(hub.service, SETTINGS, WHO).write(batches)
            yield batch

    slow.write(overtaken())
    assert stored(hub) == by_key(batches)


def test_a_partition_that_is_complete_is_dropped_whatever_the_order_of_its_rows(hub: shoal.Hub) -> None:
    batches = [rows([b"a", b"b", b"c"]), rows([b"a", b"d"], 3)]
    finish(hub, SinkTask(hub.service, SETTINGS, WHO).write(batches))
    SinkTask(hub.service, SETTINGS, WHO).write(list(reversed(batches)))
    assert stored(hub) == by_key(batches)


@pytest.mark.parametrize(
    "others",
    [[rows([b"a", b"b"])], [rows([b"a", b"b", b"c", b"x"])], [rows([b"a", b"b", b"z"])]],
    ids=["fewer", "more", "other keys"],
)
def test_a_partition_that_was_complete_with_other_rows_is_refused(
    hub: shoal.Hub, others: list[pa.RecordBatch]
) -> None:
    finish(hub, SinkTask(hub.service, SETTINGS, WHO).write([rows([b"a", b"b", b"c"])]))
    with pytest.raises(NotRepeated, match="partition 1 of batch 3 of query q was run before"):
        SinkTask(hub.service, SETTINGS, WHO).write(others)
    assert stored(hub) == by_key([rows([b"a", b"b", b"c"])])


def test_a_partition_that_a_complete_batch_did_not_have_is_refused_and_stores_nothing(hub: shoal.Hub) -> None:
    written = SinkTask(hub.service, SETTINGS, WHO).write([rows([b"a", b"b"])])
    finish(hub, written)
    with pytest.raises(NotRepeated, match="it had 0 rows and 0 bytes of keys, and has 1 and 1 now"):
        SinkTask(hub.service, SETTINGS, replace(WHO, partition=2)).write([rows([b"b"])])
    finish(hub, written)  # The batch as it was is complete all the same.
    assert stored(hub) == by_key([rows([b"a", b"b"])])


def test_rows_of_one_append_may_come_again_in_another_order(hub: shoal.Hub) -> None:
    """As from a shuffle, which promises none, and which a streaming query cannot sort behind."""
    written = rows([b"k%d" % (number % 5) for number in range(20)])
    SinkTask(hub.service, SETTINGS, WHO).write([written])  # And the driver dies before the batch is complete.
    hub.split_shard("orders", 1)
    again = SinkTask(hub.service, SETTINGS, WHO).write([written.take(list(reversed(range(20))))])
    finish(hub, again)
    assert stored(hub) == by_key([written])
    others = written.set_column(1, "value", [b"%d" % number for number in range(100, 120)])
    SinkTask(hub.service, SETTINGS, replace(WHO, batch=4)).write([written])
    with pytest.raises(NotRepeated, match="are others"):
        SinkTask(hub.service, SETTINGS, replace(WHO, batch=4)).write([others])


def test_a_small_task_whose_input_broke_off_is_completed(hub: shoal.Hub) -> None:
    """It fits one append, so its first note says where its input ended, too."""
    whole = [rows([b"a", b"b"]), rows([b"c", b"d"], 2), rows([b"e"], 4)]
    small = replace(SETTINGS, buffer_bytes=8_000_000)
    for come in (1, 2, 3, 3):
        SinkTask(hub.service, small, WHO).write(whole[:come])
    assert stored(hub) == by_key(whole)


@pytest.mark.parametrize("buffer_bytes", [1, 8_000_000])
def test_an_unfinished_partition_that_comes_with_other_rows_stores_none_of_them(
    hub: shoal.Hub, buffer_bytes: int
) -> None:
    """Some of them go to shards that have nothing of it yet: only the others show that they are others."""
    task_settings = replace(SETTINGS, buffer_bytes=buffer_bytes)
    written = rows([b"a"] * 3)
    SinkTask(hub.service, task_settings, WHO).write([written])
    for others in (rows([b"k%d" % number for number in range(8)], 10), rows([b"b", b"c", b"d"], 10)):
        with pytest.raises(NotRepeated, match="partition 1 of batch 3 of query q was run before"):
            SinkTask(hub.service, task_settings, WHO).write([others])
    assert stored(hub) == by_key([written])


def test_rows_without_a_time_come_again_and_those_with_one_have_the_same(hub: shoal.Hub) -> None:
    """What had none was given that of its attempt, which is another's by now."""
    stream = hub.service.describe_stream(stream_name("orders"))

    def timed(at_ms: int, now_ms: int) -> pa.RecordBatch:
        given = pa.array([None, at_ms * 1000, None], pa.timestamp("us", "UTC"))
        return fit(SETTINGS, Layout(None), rows([b"a"] * 3).append_column("timestamp", given), now_ms)

    RepeatableWriter(hub.service, stream, WHO, born=2).write(timed(7, now_ms=1_000))
    again = RepeatableWriter(hub.service, stream, WHO, born=2)
    again.check(timed(7, now_ms=2_000), 2_000)
    with pytest.raises(NotRepeated, match="are others"):
        again.check(timed(8, now_ms=2_000), 2_000)
    assert stored(hub) == by_key([rows([b"a"] * 3)])


def test_a_half_written_partition_that_comes_in_another_order_is_refused(hub: shoal.Hub) -> None:
    batches = [rows([b"a"] * 4), rows([b"a"] * 4, 4), rows([b"a"] * 4, 8)]
    with pytest.raises(Killed):
        SinkTask(Mortal(hub.service, 4, is_stored=False), SETTINGS, WHO).write(batches)
    with pytest.raises(NotRepeated, match="other rows"):
        SinkTask(hub.service, SETTINGS, WHO).write([batches[2], batches[1], batches[0]])


def test_a_batch_that_lacks_a_partition_which_was_begun_before_is_not_complete(hub: shoal.Hub) -> None:
    other = SinkTask(hub.service, SETTINGS, replace(WHO, partition=7)).write([rows([b"b"])])
    written = SinkTask(hub.service, SETTINGS, WHO).write([rows([b"a"])])
    with pytest.raises(NotRepeated, match=r"partitions \[7\] were written then, and hold nothing now"):
        finish(hub, written)
    assert other.claim == written.claim


def test_what_others_wrote_to_the_ledger_is_passed_over(hub: shoal.Hub) -> None:
    foreign = [b"not json", b"", b"null", b"[1]", b'{"a":1}', b"[" * 100_000, b"\xff"]
    batches = [rows([b"a"] * 5), rows([b"a"] * 5, 5)]
    with pytest.raises(Killed):
        SinkTask(Mortal(hub.service, 4, is_stored=True), SETTINGS, WHO).write(batches)
    hub.append("spark.ledger", 0, foreign)
    finish(hub, SinkTask(hub.service, SETTINGS, WHO).write(batches))
    hub.append("spark.ledger", 0, foreign)
    SinkTask(hub.service, SETTINGS, WHO).write(batches)
    assert stored(hub) == by_key(batches)


def test_a_note_that_is_not_there_is_told_in_a_line(hub: shoal.Hub) -> None:
    SinkTask(hub.service, SETTINGS, WHO).write([rows([b"a"])])
    at = hub.append("spark.ledger", 0, [b"not json"]).first_offset
    ledger = ledger_of(hub.service, SETTINGS)
    with pytest.raises(ShoalError, match=rf"spark.ledger has no note of a sink's at offset {at}"):
        ledger._read(at)


def test_a_task_of_an_older_batch_is_refused_and_stores_nothing(hub: shoal.Hub) -> None:
    newer = replace(WHO, batch=4)
    SinkTask(hub.service, SETTINGS, newer).write([rows([b"a"])])
    with pytest.raises(ShoalError, match="batch 4 of this query has written already"):
        SinkTask(hub.service, SETTINGS, WHO).write([rows([b"b"])])
    assert stored(hub) == by_key([rows([b"a"])])


@pytest.mark.parametrize("is_exactly_once", [True, False])
def test_rows_that_spell_one_stream_in_two_ways_are_all_stored_and_each_key_in_order(
    hub: shoal.Hub, is_exactly_once: bool
) -> None:
    hub.create_stream("shop/refunds", shards=1)
    spelt = ["orders", "default/orders", "shop/refunds"]
    settings = replace(SETTINGS, stream=None, is_exactly_once=is_exactly_once)
    batches = []
    for round_number in range(3):
        plain = rows([b"k%d" % (number // 3 % 2) for number in range(12)], 12 * round_number)
        # Each round begins with another spelling.
        names = pa.array([spelt[(number + round_number) % 3] for number in range(12)])
        batches.append(plain.append_column("stream", names))
    for _ in range(2 if is_exactly_once else 1):
        SinkTask(hub.service, settings, WHO).write(batches)
    is_refund = [batch.column("stream").to_numpy(zero_copy_only=False) == "shop/refunds" for batch in batches]
    for stream, mine in (("orders", [~each for each in is_refund]), ("shop/refunds", is_refund)):
        wanted = [batch.filter(pa.array(mask)) for batch, mask in zip(batches, mine, strict=True)]
        assert stored(hub, stream) == by_key(wanted)


def test_rows_without_a_key_are_spread_over_the_shards_and_stored_once(hub: shoal.Hub) -> None:
    batches = [rows([None] * 5, 5 * number) for number in range(40)]
    for _ in range(2):
        SinkTask(hub.service, SETTINGS, WHO).write(batches)
    assert sorted(stored(hub)[None]) == by_key(batches)[None]
    assert all(shard.next_offset for shard in hub.describe_stream("orders").shards)


def test_without_exactly_once_a_repeat_is_stored_again_and_nothing_is_noted(hub: shoal.Hub) -> None:
    plain = replace(SETTINGS, is_exactly_once=False)
    for query in ("one", "two"):
        SinkTask(hub.service, plain, replace(WHO, query=query)).write([rows([b"a"])])
    assert stored(hub) == {b"a": [b"000000", b"000000"]}
    assert [stream.name for stream in hub.list_streams()] == ["orders"]


def test_a_store_that_is_away_for_a_moment_is_waited_for(hub: shoal.Hub) -> None:
    class Shaky:
        calls = 0

        def append(self, stream: Any, batches: Any) -> Any:
            Shaky.calls += 1
            if Shaky.calls % 2:
                hub.service.append(stream, batches)  # Stored, and the answer is lost.
                raise StoreUnavailable("away")
            return hub.service.append(stream, batches)

        def __getattr__(self, name: str) -> Any:
            return getattr(hub.service, name)

    batches = [rows([b"a", b"b"], 2 * number) for number in range(4)]
    SinkTask(Shaky(), SETTINGS, WHO).write(batches)
    assert stored(hub) == by_key(batches)


def test_memory_is_bounded_by_three_rounds(hub: shoal.Hub) -> None:
    """The rows of a fourth round are not asked for before the first is stored."""
    asked: list[int] = []
    seen: list[int] = []

    def watched() -> Iterator[pa.RecordBatch]:
        for number in range(12):
            asked.append(number)
            seen.append(sum(shard.next_offset for shard in hub.describe_stream("orders").shards) // 10)
            yield rows([b"a"] * 10, 10 * number)

    SinkTask(hub.service, SETTINGS, WHO).write(watched())
    assert all(number - done <= 3 for number, done in zip(asked, seen, strict=True))


def test_the_process_of_a_task_keeps_the_memory_of_its_batches(hub: shoal.Hub, tmp_path: Path) -> None:
    """Rounds come and go. Given back each time, every page of them would be faulted in anew."""
    program = """
import resource, sys
from shoal.spark.hubs import HubAddress, task_hub
task_hub(HubAddress(sys.argv[1]))
for number in range(12):
    if number == 2:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pages = [bytes(2_000_000) for _ in range(8)]
    del pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    url = f"sqlite:///{tmp_path}/shoal.db"
    done = subprocess.run([sys.executable, "-c", program, url], check=True, capture_output=True, timeout=60)
    assert int(done.stdout) < 1_000  # Of 39,000 pages.


def test_a_task_with_no_rows_notes_nothing(hub: shoal.Hub) -> None:
    written = SinkTask(hub.service, SETTINGS, WHO).write([rows([])])
    assert (written.contents.rows, written.claim) == (0, None)
    assert [stream.name for stream in hub.list_streams()] == ["orders"]
