"""The `shoal` program as a process: pipes, Ctrl-C, a terminal, records of others, and the examples."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import shoal
from tests.scenario.programs import PROGRAM, Start, finish

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _hub_of_the_test(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HUB", sqlite_url)


def test_a_hundred_thousand_lines_go_in_and_come_out_in_order(
    tmp_path: Path, hub: shoal.Hub, start: Start
) -> None:
    hub.create_stream("orders")
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"k%d:%d\n" % (n % 997, n) for n in range(100_000)))
    with path.open("rb") as source:
        code, out, err = finish(start("produce", "orders", "--key-separator", ":", given=source))
    assert (code, err) == (0, b"")
    assert out.startswith(b"sent 100,000 records, ")
    hub.split_shard("orders", 2)
    code, out, err = finish(start("tail", "orders", "--json"))
    assert (code, err) == (0, b"")
    numbers: dict[str, list[int]] = {}
    for line in out.splitlines():
        record = json.loads(line)
        numbers.setdefault(record["key"], []).append(int(record["value"]))
    assert numbers == {f"k{key}": list(range(key, 100_000, 997)) for key in range(997)}


def test_a_tail_follows_other_processes_through_a_split_until_ctrl_c(hub: shoal.Hub, start: Start) -> None:
    hub.create_stream("orders", shards=1)
    follower = start("tail", "orders", "--follow", "--values")
    assert follower.stdout is not None
    # One round is stored by a process of its own, the others by this one, which is another one too.
    code, _, err = _feed(
        start("produce", "orders", "--key-separator", ":", given=subprocess.PIPE),
        b"".join(b"key:%d\n" % n for n in range(10)),
    )
    assert (code, err) == (0, b"")
    assert [follower.stdout.readline() for _ in range(10)] == [b"%d\n" % n for n in range(10)]
    with hub.producer("orders") as producer:
        for act in (lambda: hub.split_shard("orders", 0), lambda: hub.merge_shards("orders", 1, 2)):
            act()
            for n in range(10):
                producer.send(b"%d" % n, key="key")
            assert [follower.stdout.readline() for _ in range(10)] == [b"%d\n" % n for n in range(10)]
    follower.send_signal(signal.SIGINT)
    assert finish(follower) == (130, b"", b"")


def test_a_tail_of_one_shard_ends_with_it_and_says_where_it_goes_on(hub: shoal.Hub, start: Start) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"one"])
    follower = start("tail", "orders", "-f", "--shard", "0", "--values")
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"one\n"
    hub.append("orders", 0, [b"two"])
    hub.split_shard("orders", 0)
    assert finish(follower) == (0, b"two\n", b"note: shard 0 is closed; the stream goes on in 1, 2\n")


def test_a_tail_from_the_latest_reads_a_later_shard_from_its_beginning(hub: shoal.Hub, start: Start) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"old"])
    follower = start("tail", "orders", "-f", "--from", "latest", "--values")
    assert follower.stdout is not None
    # It may not have begun yet; that it prints something shows that it has.
    while not select.select([follower.stdout], [], [], 0.2)[0]:
        hub.append("orders", 0, [b"hint"])
    left, _ = hub.split_shard("orders", 0)
    hub.append("orders", left.id, [b"first of the child"])
    line = follower.stdout.readline()
    while line == b"hint\n":  # A follower that died gives an empty line, which is none of these.
        line = follower.stdout.readline()
    assert line == b"first of the child\n"
    follower.send_signal(signal.SIGINT)
    assert finish(follower) == (130, b"", b"")


def test_a_slow_source_is_not_waited_for_and_ctrl_c_ends_it(hub: shoal.Hub, start: Start) -> None:
    hub.create_stream("orders", shards=1)
    producer = start("produce", "orders", given=subprocess.PIPE)
    assert producer.stdin is not None
    producer.stdin.write(b"at once\n")
    producer.stdin.flush()
    # It still waits for more of its input while the record is here already.
    assert [record.value for record in hub.read("orders", 0, 0, wait=30.0)] == [b"at once"]
    assert producer.poll() is None
    producer.send_signal(signal.SIGINT)
    assert finish(producer) == (130, b"", b"")


def test_a_stream_that_is_deleted_under_a_producer_ends_it(hub: shoal.Hub, start: Start) -> None:
    hub.create_stream("orders", shards=1)
    producer = start("produce", "orders", given=subprocess.PIPE)
    assert producer.stdin is not None
    producer.stdin.write(b"one\n")
    producer.stdin.flush()
    assert len(hub.read("orders", 0, 0, wait=30.0)) == 1
    hub.delete_stream("orders")
    code, out, err = _feed(producer, b"two\n")
    assert (code, out) == (3, b"")
    assert err.startswith(b"error: stream='orders'")
    assert err.count(b"\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error(hub: shoal.Hub, start: Start) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"x" * 100] * 50_000)
    process = start("tail", "orders", "--values")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 0
    process.stderr.close()


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_delete_asks_who_sits_at_a_terminal(hub: shoal.Hub, answer: bytes, code: int) -> None:
    hub.create_stream("orders")
    mine, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [PROGRAM, "stream", "delete", "orders"], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs
        )
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(mine, 1000)
        os.write(mine, answer)
        assert finish(process)[0] == code
    finally:
        os.close(mine)
        os.close(theirs)
    assert b"Delete stream orders with 0 records" in asked
    assert len(hub.list_streams()) == (0 if code == 0 else 1)


EXAMPLES = [
    "async_consumer",
    "exactly_once_sql",
    "first_steps",
    "key_lanes",
    "poll_batch_insert",
    "poll_loop",
    "poll_own_offsets",
    "poll_thread_per_consumer",
    "poll_worker_threads",
    "retry_and_dead_letters",
    "spark_processor",
    "typed_columns",
    "word_count",
    "work_queue",
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_its_readme_says(name: str) -> None:
    text = (ROOT / "examples" / name / "README.md").read_text()
    shown = re.search(r"```console\n\$ python (.+)\n([^`]*)```", text)
    assert shown is not None
    done = subprocess.run(
        [sys.executable, *shown[1].split()], cwd=ROOT, check=True, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == shown[2]


def test_every_example_has_a_readme_that_a_test_runs() -> None:
    folders = {path.name for path in (ROOT / "examples").iterdir() if path.is_dir()}
    with_spark = {"cluster", "spark_pipeline"}  # They take longer: tests/spark/test_programs.py runs them.
    assert folders - {"__pycache__"} == set(EXAMPLES) | with_spark


def _feed(process: subprocess.Popen[bytes], data: bytes) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(data, timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("line", [b'delivery="shared"', b'strategy="best_tried"'])
def test_ctrl_c_ends_the_demo_with_all_that_it_has_started(
    hub: shoal.Hub, start: Start, sqlite_url: str, line: bytes
) -> None:
    demo = start("demo", "--fast", "--hub", sqlite_url)
    assert demo.stdout is not None
    shown = b""
    while line not in shown:
        more = demo.stdout.readline()
        assert more, shown
        shown += more
    demo.send_signal(signal.SIGINT)
    code, _, err = finish(demo)
    assert (code, err) == (130, b"")
    assert hub.list_streams() == []
    for port in re.findall(rb"127\.0\.0\.1:(\d+)", shown):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port)), timeout=5)
