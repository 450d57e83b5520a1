"""A process that is stopped while it writes to a SQLite file: all wait until it goes on, or is killed."""

import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest

import shoal
from shoal.testing.workers import Report, Worker

pytestmark = pytest.mark.alone

PATIENCE_S = 30.0


def stop_while_writing(report: Report, path: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        file.execute("UPDATE shoal_shard SET next_offset = 99")
        report("writing")
        os.kill(os.getpid(), signal.SIGSTOP)
        file.execute("ROLLBACK")


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGKILL])
def test_others_go_on_by_themselves_once_it_is_continued_or_killed(
    hub: shoal.Hub, sqlite_url: str, number: signal.Signals
) -> None:
    hub.create_stream("orders", shards=1)
    path = sqlite_url.removeprefix("sqlite:///")
    with Worker(stop_while_writing, path) as other, ThreadPoolExecutor(1) as threads:
        other.wait_for_reports(1, PATIENCE_S)
        appending = threads.submit(hub.append, "orders", 0, [b"paid"])
        assert not wait([appending], timeout=0.5).done, "it waits for the lock"
        assert len(hub.read("orders", 0, 0)) == 0, "reading needs none"
        other.send_signal(number)
        appending.result(PATIENCE_S)
    assert [record.offset for record in hub.read("orders", 0, 0)] == [0], "nothing of the other's is in"
