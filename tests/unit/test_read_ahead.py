"""Batches fetched ahead of one who reads on: how many, and what becomes of those that nobody comes for."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import shoal
from shoal.core.errors import UnknownStream
from shoal.core.names import stream_name
from shoal.core.reading import ReadLimits
from shoal.remote.ahead import Came, Coming, ReadAhead, Wanted
from shoal.testing.members import eventually

LIMITS = ReadLimits(max_records=10, max_bytes=1000)
ORDERS = stream_name("orders")
SMALL, LARGE = 100, 2_000_000
_SLOW_S = 0.1


class Found(str):
    """What stands for a batch."""

    first_offset: int

    def __new__(cls, offset: int) -> "Found":
        found = super().__new__(cls, f"from {offset}")
        found.first_offset = offset
        return found


class Log:
    """A shard of so many batches of ten records; each read notes where it began."""

    def __init__(self, batches: int = 100, size: int = SMALL) -> None:
        self.read_at: list[int] = []
        self.asked: list[tuple[int, int]] = []
        """Requests: where, and for how many reads."""
        self._end, self._size = batches * 10, size
        self.gate = threading.Event()
        self.gate.set()
        self.error: shoal.ShoalError | None = None

    def read(self, wanted: Wanted, came: Came, further: int) -> Iterator[Any]:
        """An answer comes, is told of, and is unpacked once the gate is open."""
        offsets = [
            at for at in range(wanted.offset, wanted.offset + 10 * (further + 1), 10) if at < self._end
        ]
        self.asked.append((wanted.offset, len(offsets)))
        self.read_at += offsets
        if self.error is not None:
            raise self.error
        following = offsets[-1] + 10
        came(Coming(offsets[1:], following if following < self._end else None, self._size))
        assert self.gate.wait(10)
        yield from map(Found, offsets)

    def renewed(self, wanted: Wanted, batch: Any) -> Any:
        assert batch == f"from {wanted.offset}"
        return batch if wanted.offset + 10 < self._end else f"{batch}, the last"


def at(offset: int) -> Wanted:
    return Wanted(ORDERS, 0, offset, LIMITS)


def read_on(ahead: Any, offset: int) -> Any:
    """By one who has looked at the batch before for a while."""
    time.sleep(_SLOW_S)
    return ahead.read(at(offset))


def test_two_are_fetched_ahead_once_two_reads_have_followed_one_another() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    assert ahead.read(at(0)) == "from 0"
    assert read_on(ahead, 10) == "from 10"
    eventually(lambda: sorted(log.read_at) == [0, 10, 20, 30], "two ahead")
    assert read_on(ahead, 20) == "from 20"
    eventually(lambda: sorted(log.read_at) == [0, 10, 20, 30, 40], "one more for the one that was taken")
    time.sleep(0.05)
    assert sorted(log.read_at) == [0, 10, 20, 30, 40]
    assert all(count == 1 for _, count in log.asked)


def test_who_reads_quickly_is_sent_several_at_once() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead._quick_s = 10.0  # However slow this machine is.
    assert ahead.read(at(0)) == "from 0"
    assert log.asked == [(0, 1)]
    assert ahead.read(at(10)) == "from 10"
    eventually(lambda: log.asked == [(0, 1), (10, 1), (20, 4), (60, 4)], "two requests ahead")
    assert [ahead.read(at(offset)) for offset in (20, 30, 40, 50)] == [
        f"from {offset}" for offset in (20, 30, 40, 50)
    ]
    assert len(log.asked) == 4
    assert ahead.read(at(60)) == "from 60"
    eventually(lambda: log.asked[4:] == [(100, 4)], "one more when the second answer is begun")
    assert [ahead.read(at(offset)) for offset in range(70, 1000, 10)][-1] == "from 990, the last"
    assert sorted(log.read_at) == list(range(0, 1000, 10))


def test_what_comes_with_another_is_there_before_the_rest_is_unpacked() -> None:
    log, gate = Log(), threading.Event()

    def read(wanted: Wanted, came: Came, further: int) -> Iterator[Any]:
        for place, found in enumerate(log.read(wanted, came, further)):
            assert place < 2 or gate.wait(10)
            yield found

    ahead: Any = ReadAhead(read, log.renewed)
    ahead._quick_s = 10.0
    try:
        assert [ahead.read(at(offset)) for offset in (0, 10, 20, 30)][-1] == "from 30"
    finally:
        gate.set()
    assert ahead.read(at(40)) == "from 40"


def test_an_answer_that_breaks_off_and_is_asked_for_again_keeps_nobody_waiting() -> None:
    log, breaks = Log(), [True]

    def read(wanted: Wanted, came: Came, further: int) -> Iterator[Any]:
        if further and breaks:
            breaks.clear()
            came(Coming([wanted.offset + 7, wanted.offset + 10], wanted.offset + 20, SMALL))
        return log.read(wanted, came, further)

    ahead: Any = ReadAhead(read, log.renewed)
    ahead._quick_s = 10.0
    read_all = [ahead.read(at(offset)) for offset in range(0, 100, 10)]
    assert read_all == [f"from {offset}" for offset in range(0, 100, 10)]
    assert not breaks
    assert ahead.read(at(27)) == "from 27"


def test_an_answer_that_fails_fails_those_that_came_with_it() -> None:
    log = Log()

    def read(wanted: Wanted, came: Came, further: int) -> Iterator[Any]:
        for place, found in enumerate(log.read(wanted, came, further)):
            if place == 2:
                raise UnknownStream("orders")
            yield found

    ahead: Any = ReadAhead(read, log.renewed)
    ahead._quick_s = 10.0
    read_all = [ahead.read(at(offset)) for offset in range(0, 100, 10)]
    assert read_all == [f"from {offset}" for offset in range(0, 100, 10)]
    assert log.read_at.count(40) == 2


def test_the_next_is_asked_for_before_the_last_is_unpacked() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead.read(at(0))
    log.gate.clear()
    reader = threading.Thread(target=read_on, args=(ahead, 10))
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
    read_on(ahead, 10)
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
    read_on(ahead, 10)
    eventually(lambda: 30 in log.read_at, "two ahead")
    ahead.forget()
    read_on(ahead, 20)
    assert log.read_at.count(20) == 2
    read_on(ahead, 30)
    eventually(lambda: 50 in log.read_at, "two ahead")
    time.sleep(1.1)
    ahead.read(at(40))
    assert log.read_at.count(40) == 2


def test_readers_who_never_come_back_are_not_kept() -> None:
    log = Log(size=LARGE)
    ahead: Any = ReadAhead(log.read, log.renewed)
    for shard in range(100):
        ahead.read(Wanted(ORDERS, shard, 0, LIMITS))
    eventually(lambda: len(log.read_at) > 100, "one ahead for some of them")
    assert len(ahead._fetches) <= 32
    assert len(ahead._expected) <= 8
    eventually(lambda: not ahead._fetches, "nor is what was fetched for them")


@pytest.mark.parametrize("readers", [1, 3, 8])
def test_readers_do_not_take_each_others_batches_away(readers: int) -> None:
    log = Log(batches=60, size=LARGE)
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead._quick_s = 10.0

    def read(shard: int) -> None:
        for offset in range(0, 600, 10):
            assert ahead.read(Wanted(ORDERS, shard, offset, LIMITS)).startswith(f"from {offset}")

    threads = [threading.Thread(target=read, args=(shard,)) for shard in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(log.read_at) == 60 * readers, "each batch is asked for once"


def test_what_is_on_its_way_when_all_is_forgotten_is_not_used() -> None:
    log = Log()
    ahead: Any = ReadAhead(log.read, log.renewed)
    ahead._quick_s = 10.0
    ahead.read(at(0))
    ahead.read(at(10))
    eventually(lambda: (60, 4) in log.asked, "two requests ahead")
    entered, gate = threading.Event(), threading.Event()
    plain = log.read

    def late(wanted: Wanted, came: Came, further: int) -> Iterator[Any]:
        if wanted.offset == 100 and further:
            entered.set()
            assert gate.wait(10)
        return plain(wanted, came, further)

    ahead._read = late
    for offset in (20, 30, 40, 50, 60):
        ahead.read(at(offset))
    assert entered.wait(10)
    ahead.forget()
    gate.set()
    eventually(lambda: (100, 4) in log.asked, "it has come")
    ahead.read(at(110))
    assert log.read_at.count(110) == 2


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


def test_when_nothing_was_fetched_for_a_moment_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.remote.ahead._LINGER_S", 0.05)
    log, rested = Log(size=LARGE), threading.Event()
    ahead: Any = ReadAhead(log.read, log.renewed, rested.set)
    ahead.read(at(0))
    assert rested.wait(10)
