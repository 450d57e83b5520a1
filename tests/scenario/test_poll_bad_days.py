"""Bad days of consumers that poll: the store goes, the program just ends, a fork, Ctrl-C.

Of the programs the group's timeout is a minute: what the next owner gets sooner was handed over.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import LeaseLost, StoreError
from shoal.testing.polling import numbers
from shoal.testing.processing import append_numbers, checkpoints
from shoal.testing.server import Server

PATIENCE_S = 40.0
Begin = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def begin(sqlite_url: str, hub: shoal.Hub) -> Iterator[Begin]:
    hub.create_stream("orders", shards=1)
    append_numbers(hub, "orders", 0, range(6))
    started: list[subprocess.Popen[str]] = []

    def start(how: str) -> subprocess.Popen[str]:
        program = Path(__file__).parent / "poll_program.py"
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, str(program), sqlite_url, how], stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("how", "lines", "committed"),
    [
        ("end", ["0 1", "2 3"], 2),
        ("thread", ["0 1", "2 3", "4 5"], 6),
        ("fork", ["0 1", "2 3", "refused", "4 5"], 6),
    ],
)
def test_a_program_that_just_ends_or_forks_hands_over_what_it_is_done_with(
    hub: shoal.Hub, begin: Begin, how: str, lines: list[str], committed: int
) -> None:
    process = begin(how)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out.splitlines()) == (0, lines), err
    assert checkpoints(hub, "orders", "billing") == {0: committed}
    assert hub.describe_group("orders", "billing").members == ()


def test_ctrl_c_in_a_poll_hands_over_what_was_done_before(hub: shoal.Hub, begin: Begin) -> None:
    process = begin("signal")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["0 1\n", "2 3\n"]
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert "KeyboardInterrupt" in err
    assert hub.describe_group("orders", "billing").members == ()
    assert checkpoints(hub, "orders", "billing") == {0: 6}, "it had come back from all of them"


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_a_store_that_goes_pauses_a_poll_loop_and_it_resumes_by_itself(
    postgres_server: Server, coordination: str
) -> None:
    with shoal.connect(postgres_server.fresh_database()) as hub:
        hub.create_stream("orders", shards=1)
        append_numbers(hub, "orders", 0, range(10))
        consumer = shoal.Consumer(
            hub, "billing", timeout=1.0, coordination=coordination, max_poll_records=5, auto_commit=False
        )
        consumer.subscribe(["orders"])
        assert numbers(consumer, 5) == list(range(5))
        consumer.commit()
        (batch,) = consumer.poll(5.0)
        records = iter(batch)
        assert next(records).value == b"5"
        postgres_server.stop("immediate")
        try:
            time.sleep(1.5)
            with pytest.raises(LeaseLost):
                list(records)
            assert consumer.poll(0.5) == [], "nobody acts without a deadline, and nothing is raised for it"
            with pytest.raises(StoreError):
                consumer.committed(0)
        finally:
            postgres_server.start()
        assert numbers(consumer, 5, within_s=60) == list(range(5, 10)), "what was cut short comes again"
        consumer.commit()
        consumer.close()
        assert checkpoints(hub, "orders", "billing") == {0: 10}
