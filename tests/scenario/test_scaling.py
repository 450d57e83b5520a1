"""A stream that is told to scale by itself: under load, with several hubs that look, and a group."""

import threading
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest

import shoal
from shoal.testing.reading import until, values_by_key
from tests.scenario.programs import Run

KEYS = [f"customer-{i}" for i in range(200)]


def produce(hub: shoal.Hub, stream: str, keys: list[str], stop: threading.Event) -> dict[bytes, int]:
    """A steady load, each key's records numbered; how many each got."""
    sent: dict[bytes, int] = defaultdict(int)
    with hub.producer(stream) as producer:
        while not stop.wait(0.02):
            for key in keys:
                producer.send(str(sent[key.encode()]), key=key)
                sent[key.encode()] += 1
    return sent


@pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)
def test_shards_are_split_under_load_and_merged_after_it_and_every_key_stays_in_order(store_url: str) -> None:
    with ExitStack() as opened:
        hubs = [opened.enter_context(shoal.connect(store_url, housekeeping_s=0.1)) for _ in range(3)]
        hub = hubs[0]
        hub.create_stream("orders", shards=1)
        hub.create_group("orders", "readers")
        told = shoal.Scaling(records_per_s=1500, shards_min=1, shards_max=4, cool_down_s=1.5)
        hub.set_scaling("orders", told)
        seen: dict[bytes | None, list[int]] = defaultdict(list)

        def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            for record in batch:
                seen[record.key].append(int(record.value))
            checkpointer.save()

        stop = threading.Event()
        sent: dict[bytes, int] = {}
        load = threading.Thread(target=lambda: sent.update(produce(hubs[1], "orders", KEYS, stop)))
        with shoal.Worker(hubs[2], "orders", "readers", process):
            load.start()
            try:
                until(lambda: len(hub.describe_stream("orders").open_shards) >= 3, within_s=40)
            finally:
                stop.set()
                load.join(30)
            most = len(hub.describe_stream("orders").open_shards)
            assert most <= told.shards_max
            until(lambda: len(hub.describe_stream("orders").open_shards) == 1, within_s=40)
            until(lambda: sum(map(len, seen.values())) >= sum(sent.values()))
        assert dict(seen) == {key: list(range(count)) for key, count in sent.items()}
        stored = values_by_key(hub, "orders")
        assert stored == {key: [b"%d" % i for i in range(count)] for key, count in sent.items()}


def test_one_hot_key_is_not_split_but_complained_of(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with shoal.connect(sqlite_url, housekeeping_s=0.1) as hub:
        hub.create_stream("orders", shards=1)
        hub.set_scaling("orders", records_per_s=10, cool_down_s=0)
        stop = threading.Event()
        load = threading.Thread(target=lambda: produce(hub, "orders", ["whale"], stop))
        load.start()
        try:
            until(lambda: "splitting does not help" in caplog.text, within_s=20)
        finally:
            stop.set()
            load.join(30)
        assert len(hub.describe_stream("orders").shards) == 1


def test_a_stream_that_was_told_nothing_is_left_alone(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url, housekeeping_s=0.05) as hub:
        hub.create_stream("orders", shards=2)
        hub.set_scaling("orders", records_per_s=0.001, cool_down_s=0, merge_below=0.5)
        hub.set_scaling("orders", None)
        hub.append("orders", 0, [b"x"] * 100)
        time.sleep(2.5)  # Two looks and more: an idle pair would be merged at the second.
        assert len(hub.describe_stream("orders").shards) == 2


def test_from_the_command_line(run: Run, hub: shoal.Hub) -> None:
    run("stream", "create", "orders", "--shards", "1")
    assert "only when told" in run("stream", "scale", "orders").stdout
    run("stream", "scale", "orders", "--records-per-s", "500", "--bytes-per-s", "5MB", "--cool-down", "1m")
    assert hub.scaling("orders") == shoal.Scaling(records_per_s=500, bytes_per_s=5_000_000, cool_down_s=60)
    assert "500 records/s or 5.0 MB/s" in run("stream", "scale", "orders").stdout
    run("stream", "scale", "orders", "--records-per-s", "0", exits=6)
    run("stream", "scale", "orders", "--records-per-s", "5", "--off", exits=6)
    for alone in (("--min", "2"), ("--max", "8"), ("--cool-down", "1m"), ("--merge-below", "0")):
        assert "give a limit with it" in run("stream", "scale", "orders", *alone, exits=6).stderr
    run("stream", "scale", "orders", "--off")
    assert hub.scaling("orders") is None
    run("stream", "scale", "nothing", exits=3)
    assert "has a key" in run("stream", "hot", "orders").stderr
    with hub.producer("orders") as producer:
        for key in ("whale", "whale", "whale", "herring"):
            producer.send(b"x", key=key)
    shown = run("stream", "hot", "orders").stdout
    assert "whale" in shown
    assert "75.0%" in shown
    assert '"share": 0.75' in run("stream", "hot", "orders", "--json").stdout


def test_the_strategy_from_the_command_line(run: Run, hub: shoal.Hub) -> None:
    run("stream", "create", "orders", "--strategy", "best_tried")
    assert hub.strategy("orders") == "best_tried"
    assert "best_tried" in run("stream", "strategy", "orders").stdout
    run("stream", "strategy", "orders", "--set", "strict")
    assert hub.strategy("orders") == "strict"
    assert '"strategy": "strict"' in run("stream", "strategy", "orders", "--json").stdout
    run("stream", "strategy", "orders", "--set", "strict", "--by-key", exits=6)
    run("stream", "strategy", "orders", "--by-key")
    assert hub.strategy("orders") is None
    assert "with a key are strict" in run("stream", "strategy", "orders").stdout
    run("stream", "strategy", "nothing", exits=3)


def test_a_reshard_shows_how_groups_come_to_the_end_of_what_it_closed(run: Run, hub: shoal.Hub) -> None:
    run("stream", "create", "orders", "--shards", "2")
    with hub.producer("orders") as producer:
        for i in range(1000):
            producer.send(b"x", key=str(i))
    assert "every group has read" in run("stream", "reshard", "orders", "3", "--wait", "10s").stderr
    hub.create_group("orders", "billing")
    shown = run("stream", "reshard", "orders", "4", "--wait", "0.2s", exits=1).stderr
    assert "billing still had 1,000 records" in shown
    with shoal.Worker(hub, "orders", "billing", lambda _, checkpointer: checkpointer.save()):
        shown = run("stream", "reshard", "orders", "5", "--wait", "30s").stderr
    assert "every group has read" in shown
    assert hub.describe_group("orders", "billing").lag == 0
    run("stream", "reshard", "orders", "5", "--wait", "soon", exits=6)
