"""Concurrent appends share one commit, and each gets its own answer."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.core.appending import Offer
from shoal.core.errors import StoreUnavailable
from shoal.core.limits import COMMIT_REQUESTS_MAX
from shoal.core.model import Appended, ShardId
from shoal.hub.committer import Committer
from shoal.ports import AppendAnswer, AppendRequest
from shoal.testing.reading import until


def request(number: int) -> AppendRequest:
    return AppendRequest(
        stream_id=1,
        shard=ShardId(number),
        offer=Offer(records=1, stored_bytes=1, top_timestamp_us=0),
        layout=0,
        raw_bytes=1,
        payload=b"x",
    )


class Disk:
    """A commit that can be held up, and that notes what each commit held."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.commits: list[list[int]] = []
        self.fails = False

    def commit(self, requests: Sequence[AppendRequest], now_ms: int) -> list[AppendAnswer]:
        self.commits.append([int(request.shard) for request in requests])
        assert self.go.wait(20)
        if self.fails:
            raise StoreUnavailable("gone")
        return [Appended(request.shard, 0, 1) for request in requests]


def test_who_appends_while_a_commit_is_under_way_shares_the_next_one() -> None:
    disk = Disk()
    committer = Committer(disk.commit, lambda request: len(request.payload))
    with ThreadPoolExecutor(20) as threads:
        first = threads.submit(committer.commit, [request(0)])
        until(lambda: disk.commits == [[0]])
        others = [threads.submit(committer.commit, [request(i), request(i)]) for i in range(1, 15)]
        until(lambda: len(committer._waiting) == 14)
        disk.go.set()
        assert first.result(20) == [Appended(0, 0, 1)]
        for i, other in enumerate(others, 1):
            assert other.result(20) == [Appended(i, 0, 1)] * 2
    assert len(disk.commits) == 2
    assert sorted(disk.commits[1]) == sorted([*range(1, 15)] * 2)


def test_a_commit_that_fails_fails_for_all_who_shared_it_and_the_next_goes_on() -> None:
    disk = Disk()
    committer = Committer(disk.commit, lambda request: len(request.payload))
    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(committer.commit, [request(0)])
        until(lambda: disk.commits == [[0]])
        others = [threads.submit(committer.commit, [request(i)]) for i in range(1, 4)]
        until(lambda: len(committer._waiting) == 3)
        disk.fails = True
        disk.go.set()
        for future in [first, *others]:
            with pytest.raises(StoreUnavailable):
                future.result(20)
        disk.fails = False
        assert committer.commit([request(9)]) == [Appended(9, 0, 1)]


def test_a_commit_holds_no_more_requests_than_the_limit() -> None:
    disk = Disk()
    committer = Committer(disk.commit, lambda request: len(request.payload))
    with ThreadPoolExecutor(5) as threads:
        first = threads.submit(committer.commit, [request(0)])
        until(lambda: disk.commits == [[0]])
        half = [request(1)] * (COMMIT_REQUESTS_MAX // 2 + 1)
        others = [threads.submit(committer.commit, half) for _ in range(3)]
        until(lambda: len(committer._waiting) == 3)
        disk.go.set()
        for future in [first, *others]:
            future.result(20)
    assert [len(commit) for commit in disk.commits] == [1, len(half), len(half), len(half)]


def test_who_waits_behind_a_caller_that_commits_waits_no_longer_than_for_that_commit() -> None:
    disk = Disk()
    committer = Committer(disk.commit, lambda request: len(request.payload))
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(committer.commit, [request(0)])
        until(lambda: disk.commits == [[0]])
        second = threads.submit(committer.commit, [request(1)])
        until(lambda: len(committer._waiting) == 1)
        began_s = time.monotonic()
        disk.go.set()
        assert first.result(20)
        assert second.result(20)
        assert time.monotonic() - began_s < 3, "someone was woken for it"


def test_who_were_answered_together_are_waited_for_and_share_the_next_commit() -> None:
    disk = Disk()
    disk.go.set()
    committer = Committer(disk.commit, lambda request: len(request.payload), gather_share=1e9)
    answers: list[object] = []
    committer.submit([request(0)], answers.append, callers=3)
    until(lambda: len(answers) == 1)
    for number in range(20):  # Each time: one comes first, and two a moment later.
        committer.submit([request(1)], answers.append)
        threading.Event().wait(0.001)
        committer.submit([request(2)], answers.append, callers=2)
        until(lambda: len(answers) == 3 + 2 * number)  # noqa: B023
    shared = [commit for commit in disk.commits if commit == [1, 2]]
    assert len(shared) >= 10, "the bound is 10 ms: a machine that stands still may part some of them"


def test_one_that_was_alone_is_not_kept_waiting_for_others() -> None:
    disk = Disk()
    disk.go.set()
    committer = Committer(disk.commit, lambda request: len(request.payload), gather_share=1e9)
    with ThreadPoolExecutor(1) as threads:
        for number in range(5):
            assert threads.submit(committer.commit, [request(number)]).result(20)
    assert committer._thread is None, "it commits by itself, and waits for nobody"
