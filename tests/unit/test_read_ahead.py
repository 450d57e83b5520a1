"""Batches fetched ahead of one who reads on: how many, and what becomes of those that nobody comes for."""

import threading
import time
from typing import Any

import pytest

import shoal
from shoal.core.errors import UnknownStream
from shoal.core.names import stream_name
from shoal.core.reading import ReadLimits
from shoal.remote.ahead import Came, ReadAhead, Wanted
from shoal.testing.members import eventually

LIMITS = ReadLimits(max_records=10, max_bytes=1000)
ORDERS = stream_name("orders")
SMALL, LARGE = 100, 2_000_000


class Log:
    """A shard of so many batches of ten records; each read notes where it began."""

    def __init__(self, batches: int = 100, size: int = SMALL) -> None:
        self.read_at: list[int] = []
        self._end, self._size = batches * 10, size
        self.gate = threading.Event()
        self.gate.set()
        self.error: shoal.ShoalError | None = None

    def read(self, wanted: Wanted, came: Came) -> Any:
        """An answer comes, is told of, and is unpacked once the gate is open."""
        self.read_at.append(wanted.offset)
        if self.error is not None:
            raise self.error
        following = wanted.offset + 10
        came(following if following < self._end else None, self._size)
        assert self.gate.wait(10)
        return f"from {wanted.offset}"

    def renewed(self, wanted: Wanted, batch: Any) -> Any:
        assert batch == f"from {wanted.offset}"
        return f"{batch}, the last"


def at(offset: int) -> Wanted:
    return Wanted(ORDERS, 0, offset, LIMITS)


def test_two_are_fetched_ahead_once_two_reads_have_followed_one_another() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    assert ahead.read(at(0)) == "from 0"
    time.sleep(0.05)
    assert log.read_at == [0]
    assert ahead.read(at(10)) == "from 10"
    eventually(lambda: sorted(log.read_at) == [0, 10, 20, 30], "two ahead")
    assert ahead.read(at(20)) == "from 20"
    eventually(lambda: sorted(log.read_at) == [0, 10, 20, 30, 40], "one more for the one that was taken")
    time.sleep(0.05)
    assert sorted(log.read_at) == [0, 10, 20, 30, 40]


def test_the_next_is_asked_for_before_the_last_is_unpacked() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead.read(at(0))
    log.gate.clear()
    reader = threading.Thread(target=ahead.read, args=(at(10),))
    reader.start()
    eventually(lambda: sorted(log.read_at) == [0, 10, 20, 30], "all of them under way at once")
    log.gate.set()
    reader.join(10)
    assert not reader.is_alive()


def test_after_one_large_read_one_is_fetched_ahead() -> None:
    log = Log(size=LARGE)
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead.read(at(0))
    eventually(lambda: log.read_at == [0, 10], "one ahead")
    time.sleep(0.05)
    assert log.read_at == [0, 10]


def test_everything_is_read_once_and_nothing_beyond_the_end() -> None:
    log = Log(batches=30, size=LARGE)
    ahead: Any = ReadAhead(log.read, log.renewed)
    read = [ahead.read(at(offset)) for offset in range(0, 300, 10)]
    assert read == [*(f"from {offset}" for offset in range(0, 290, 10)), "from 290, the last"]
    assert sorted(log.read_at) == list(range(0, 300, 10))


def test_what_failed_ahead_is_asked_for_again_and_the_reader_is_told() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead.read(at(0))
    ahead.read(at(10))
    eventually(lambda: 30 in log.read_at, "two ahead")
    log.error = UnknownStream("orders")
    assert ahead.read(at(20)) == "from 20"
    assert ahead.read(at(30)) == "from 30"
    with pytest.raises(UnknownStream):
        ahead.read(at(40))


def test_what_is_old_or_forgotten_is_not_used() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead.read(at(0))
    ahead.read(at(10))
    eventually(lambda: 30 in log.read_at, "two ahead")
    ahead.forget()
    ahead.read(at(20))
    assert log.read_at.count(20) == 2
    ahead.read(at(30))
    eventually(lambda: 50 in log.read_at, "two ahead")
    time.sleep(1.1)
    ahead.read(at(40))
    assert log.read_at.count(40) == 2


def test_readers_who_never_come_back_are_not_kept() -> None:
    log = Log(size=LARGE)
    ahead: Any = ReadAhead(log.read, log.renewed)
    for shard in range(100):
        ahead.read(Wanted(ORDERS, shard, 0, LIMITS))
    eventually(lambda: len(log.read_at) == 200, "one ahead for each")
    assert len(ahead._fetches) <= 16
    assert len(ahead._expected) <= 8
    eventually(lambda: not ahead._fetches, "nor is what was fetched for them")


def test_where_no_thread_can_be_had_nothing_is_fetched_ahead_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    monkeypatch.setattr(threading.Thread, "start", refused)
    for offset in (0, 10, 20, 30):
        assert ahead.read(at(offset)) == f"from {offset}"
    assert log.read_at == [0, 10, 20, 30]
