"""Processors on executors: `shoal.spark.run`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import shoal
import shoal.spark
from shoal.core.errors import InvalidInput, NotFound
from shoal.spark import drain, reason
from tests.spark.diary import Blocked, Diary, FailingOnce, Poisoned, Slow, Waiting, Writer

QUICK = shoal.Backoff(first_s=0.05, max_s=0.2)

Run = Callable[..., StreamingQuery]


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        yield hub


@pytest.mark.parametrize("spelt", ["true", "True"])
def test_speculation_is_refused_however_it_is_spelt(spelt: str) -> None:
    """Spark takes either, and lets nobody change it in a session that runs."""
    session: Any = SimpleNamespace(conf={"spark.speculation": spelt})
    with pytest.raises(InvalidInput, match="two tasks would process one shard at a time"):
        shoal.spark.run(session, stream="orders", group="billing", processor=Writer, hub="sqlite:///x.db")


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path / "diary")


@pytest.fixture
def run(spark: SparkSession, sqlite_url: str, diary: Diary) -> Iterator[Run]:
    begun: list[StreamingQuery] = []

    def begin(processor: Callable[[str], object] = Writer, **options: Any) -> StreamingQuery:
        given = {"stream": "orders", "group": "billing", "hub": sqlite_url, **options}
        factory = partial(processor, str(diary.path))
        begun.append(shoal.spark.run(spark, processor=factory, **given))
        return begun[-1]

    yield begin
    for query in begun:
        with suppress(PySparkException):
            query.stop()


def finish(query: StreamingQuery) -> None:
    assert query.awaitTermination(90), "the query did not end"


def until(condition: Callable[[], bool], what: str, within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def send(hub: shoal.Hub, numbers: range, keys: int = 20) -> None:
    with hub.producer("orders") as producer:
        for number in numbers:
            producer.send(b"%d" % number, key=f"k{number % keys}")


def all_places(hub: shoal.Hub) -> dict[tuple[int, int], int]:
    """Every record, once."""
    return {
        (int(shard.id), offset): 1
        for shard in hub.describe_stream("orders").shards
        for offset in range(shard.next_offset)
    }


def lag(hub: shoal.Hub) -> int:
    return hub.describe_group("orders", "billing").lag


def test_each_key_comes_in_order_through_splits_and_restarts_and_the_group_sees_it(
    hub: shoal.Hub, run: Run, diary: Diary
) -> None:
    hub.create_stream("orders", shards=3)
    send(hub, range(300))
    finish(run(until="now", timeout=30.0))
    assert lag(hub) == 0
    assert diary.places == all_places(hub)
    assert diary.reasons == {"moved": 3}

    send(hub, range(300, 400))
    hub.split_shard("orders", 1)
    hub.merge_shards("orders", 4, 2)
    send(hub, range(400, 600))
    query = run(until="now")
    finish(query)

    assert diary.places == all_places(hub), "every record once: a restart goes on where the group stands"
    assert diary.keys_are_in_order()
    assert lag(hub) == 0
    # Spark tells its source to end and does not wait for it; the group's timeout would come later than this.
    until(lambda: not hub.describe_group("orders", "billing").members, "the query has left", within=15)
    ended = [line["shard"] for line in diary.lines("shutdown") if line["reason"] == "ended"]
    assert sorted(ended) == [1, 2], "4 was closed before it held a record"
    assert len(diary.lines("initialize")) == len(diary.lines("shutdown"))
    observed = query.recentProgress[0]["observedMetrics"]["shoal"]
    assert observed["records"] > 0


def test_a_worker_joins_takes_its_share_and_nothing_is_repeated_not_by_a_planned_stop_either(
    hub: shoal.Hub, run: Run, diary: Diary
) -> None:
    hub.create_stream("orders", shards=4)
    send(hub, range(200))
    query = run(Slow, timeout=5.0, name="spark")
    until(lambda: len(diary.places) > 20, "the first records")

    seen: list[tuple[int, int]] = []
    lock = Lock()

    def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        with lock:
            seen.extend((batch.shard, record.offset) for record in batch)
        checkpointer.save()

    def owners() -> list[str]:
        return sorted(str(shard.owner) for shard in hub.describe_group("orders", "billing").shards)

    with shoal.Worker(hub, "orders", "billing", process, name="plain"):
        until(lambda: owners() == ["plain", "plain", "spark", "spark"], "half of the shards")
        send(hub, range(200, 400))
        until(lambda: lag(hub) == 0, "all of it")
        drain(query, hub)
        assert not query.isActive
        until(lambda: owners() == ["plain"] * 4, "all of the shards")
        send(hub, range(400, 500))
        until(lambda: lag(hub) == 0, "the rest")

    both = diary.places
    both.update(seen)
    assert both == all_places(hub)
    assert len(diary.places) > 50
    assert len(seen) > 150


def test_strict_stands_still_at_what_fails_shows_it_and_others_go_on(
    hub: shoal.Hub, run: Run, diary: Diary
) -> None:
    hub.create_stream("orders", shards=2)
    poison = Path(f"{diary.path}.poison")
    poison.touch()
    hub.append("orders", 0, [b"%d" % number for number in range(12)])
    query = run(Blocked, timeout=5.0, failure=shoal.FailureRules(backoff=QUICK), batch_seconds=1.0)
    until(lambda: hub.describe_group("orders", "billing").shards[0].blocked is not None, "a block")
    for number in range(3):
        hub.append("orders", 1, [b"%d" % (100 + number)])
        until(lambda: hub.describe_group("orders", "billing").shards[1].lag == 0, "others go on")
    shard = hub.describe_group("orders", "billing").shards[0]
    assert shard.blocked is not None
    assert (shard.blocked.error, int(shard.checkpoint)) == ("ValueError: seven", 7)
    assert query.isActive
    poison.unlink()
    until(lambda: lag(hub) == 0, "the rest")
    until(lambda: hub.describe_group("orders", "billing").shards[0].blocked is None, "it goes on")
    assert diary.places == all_places(hub), "what was declared done did not come again"
    offsets = [line["offsets"][0] for line in diary.lines("process") if line["shard"] == 0]
    assert offsets == sorted(offsets)


def test_best_tried_sets_aside_tries_again_and_gives_up_while_the_rest_goes_on(
    hub: shoal.Hub, run: Run, diary: Diary
) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"1", b"poison", b"2"])
    rules = shoal.FailureRules(policy=shoal.Policy.BEST_TRIED, delays_s=[0.2, 0.4], max_attempts=3)
    run(Poisoned, timeout=5.0, in_order=False, failure=rules)
    until(lambda: bool(dead(hub)), "a dead letter")
    (letter,) = dead(hub)
    assert (letter.origin.stream, letter.origin.offset, letter.origin.attempts) == ("orders", 1, 3)
    assert letter.origin.error == "ValueError: poison"
    assert lag(hub) == 0
    tries = [line["stream"] for line in diary.lines("poison")]
    assert tries.count("orders.billing.retry") == 2
    assert sorted(diary.places) == [(0, 0), (0, 2)]


def dead(hub: shoal.Hub) -> list[Any]:
    with suppress(NotFound):
        return list(hub.dead_letters("orders", "billing"))
    return []


def test_the_policy_stop_ends_the_query_in_one_line(hub: shoal.Hub, run: Run, diary: Diary) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"1", b"poison", b"2"])
    query = run(Poisoned, timeout=2.0, failure=shoal.FailureRules(policy=shoal.Policy.STOP))
    with pytest.raises(PySparkException) as caught:
        query.awaitTermination(60)
    assert reason(caught.value) == (
        "ProcessorFailed: shard=0: the processor raised ValueError: poison; the policy is to stop"
    )
    assert diary.reasons == {"stopped": 1}
    assert int(hub.describe_group("orders", "billing").shards[0].checkpoint) == 1
    # What was wrong is put right, and the query started again: it goes on where it stopped.
    finish(run(Writer, until="now"))
    assert diary.places == {(0, 0): 1, (0, 1): 1, (0, 2): 1}


def test_what_raises_in_any_method_is_tried_again_and_nothing_is_skipped(
    hub: shoal.Hub, run: Run, diary: Diary
) -> None:
    hub.create_stream("orders", shards=2)
    send(hub, range(40))
    hub.split_shard("orders", 0)
    finish(run(FailingOnce, until="now", timeout=5.0, failure=shoal.FailureRules(backoff=QUICK)))
    assert lag(hub) == 0
    assert diary.places.keys() == all_places(hub).keys()
    raised = {path.name.split(".")[1] for path in diary.path.parent.glob("diary.*.*")}
    assert raised == {"initialize", "process", "shutdown"}


def test_an_executors_death_repeats_only_what_was_not_saved(
    hub: shoal.Hub, run: Run, diary: Diary, checkpoint: str
) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"%d" % number for number in range(40)])
    query = run(Waiting, timeout=2.0, checkpoint=checkpoint)
    until(lambda: bool(diary.lines("waiting")), "work")
    psutil.Process(diary.lines("waiting")[-1]["pid"]).kill()
    with pytest.raises(PySparkException):
        query.awaitTermination(60)
    Path(f"{diary.path}.go").touch()
    finish(run(Waiting, until="now", checkpoint=checkpoint))
    assert lag(hub) == 0
    assert diary.places == all_places(hub), "20 were saved, and the process died before the next"


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_it_runs_on_postgresql_in_a_leased_group(spark: SparkSession, store_url: str, diary: Diary) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream("orders", shards=3)
        send(hub, range(300))
        hub.create_group("orders", "billing", coordination="leased", timeout=5.0)
        processor = partial(Writer, str(diary.path))
        options: dict[str, Any] = {"stream": "orders", "group": "billing", "hub": store_url, "until": "now"}
        finish(shoal.spark.run(spark, processor=processor, **options))
        assert lag(hub) == 0
        assert diary.places == all_places(hub)
        assert diary.keys_are_in_order()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "nothing"}, "nothing"),
        ({"hub": "sqlite:////nowhere/shoal.db"}, "there is no such file"),
        ({"processor": 7}, "a Processor class, a factory of one, or a function"),
        ({"group": "a b"}, "group="),
        ({"batch_seconds": 0}, "batch_seconds=0"),
        ({"tasks": 0}, "tasks=0"),
        ({"lanes": "processes"}, "leave it out"),
        ({"on_stuck": "release"}, "leave it out"),
        ({"colour": "red"}, "see WorkerOptions"),
        ({"until": "now", "every": "5 seconds"}, "leave it out"),
        ({"group": "queue"}, "use shoal.SharedConsumer"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_query_starts(
    spark: SparkSession, hub: shoal.Hub, sqlite_url: str, options: dict[str, Any], said: str
) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_group("orders", "queue", delivery="shared")
    given = {"stream": "orders", "group": "billing", "hub": sqlite_url, "processor": Writer, **options}
    if options.get("processor") is None:
        given["processor"] = partial(Writer, "/nowhere")
    with pytest.raises((InvalidInput, NotFound), match=said):
        shoal.spark.run(spark, **given)
    assert not spark.streams.active


def test_a_hub_is_needed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_HUB", raising=False)
    with pytest.raises(InvalidInput, match="SHOAL_HUB"):
        shoal.spark.run(spark, stream="orders", group="billing", processor=lambda _, __: None)
