"""Decisions in turns: no news is forgotten, one decides at a time, a slow job holds up none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from shoal.consumer.deciding import Deciding, Event, Job
from shoal.consumer.threads import Threads

WAIT_S = 10.0


class Shell:
    """Something that decides: each piece of news is noted, and may have jobs follow."""

    def __init__(self) -> None:
        self.noted: list[object] = []
        self.follow: dict[object, list[Job]] = {}
        self.deciding_now = 0
        self.most_at_once = 0
        self.errors: list[BaseException] = []
        self.jobs: list[Job] = []
        self.rest_s = 60.0
        self.pool = Threads("test", 64, self.errors.append)
        self.deciding = Deciding(self.pool, self._decide)
        self.is_over = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def note(self, news: object) -> None:
        self.noted.append(news)
        self.jobs += self.follow.pop(news, [])

    def news(self, news: object) -> Event:
        return partial(self.note, news)

    def close(self) -> None:
        self.is_over = True
        self.deciding.post(lambda: None)
        self.thread.join(WAIT_S)
        self.pool.join()
        assert not self.errors

    def _decide(self, _: bool) -> tuple[list[Job], float]:
        self.deciding_now += 1
        self.most_at_once = max(self.most_at_once, self.deciding_now)
        jobs, self.jobs = self.jobs, []
        time.sleep(0)  # Lets others try to decide at the same time.
        self.deciding_now -= 1
        return jobs, self.rest_s

    def _run(self) -> None:
        while not self.is_over:
            self.deciding.sleep()
            self.deciding.take_turn()


@pytest.fixture
def shell() -> Iterator[Shell]:
    made = Shell()
    yield made
    made.close()


def wait_until(shell: Shell, count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(shell.noted) < count:
        assert time.monotonic() < deadline, f"only {len(shell.noted)} of {count} were decided on"
        time.sleep(0.001)


def test_news_from_everywhere_is_decided_on_once_and_one_at_a_time(shell: Shell) -> None:
    ways = [shell.deciding.post, shell.deciding.call, shell.deciding.bring]

    def tell(way: int) -> None:
        for number in range(300):
            ways[way % 3](shell.news((way, number)))

    threads = [threading.Thread(target=tell, args=(way,)) for way in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    wait_until(shell, 1800)
    assert sorted(shell.noted) == [(way, number) for way in range(6) for number in range(300)]  # type: ignore[type-var]
    assert shell.most_at_once == 1


def test_what_follows_from_a_job_is_done_in_the_same_thread(shell: Shell) -> None:
    ran_in: list[str] = []

    def job(number: int) -> Event:
        ran_in.append(threading.current_thread().name)
        shell.follow[number] = [partial(job, number + 1)] if number < 50 else []
        return shell.news(number)

    shell.follow["begin"] = [partial(job, 0)]
    shell.deciding.call(shell.news("begin"))
    wait_until(shell, 52)
    assert len(set(ran_in)) == 1


def test_a_job_that_takes_its_time_holds_up_none_behind_it(shell: Shell) -> None:
    is_free = threading.Event()

    def block() -> Event:
        assert is_free.wait(WAIT_S)
        return shell.news("blocked one")

    time.sleep(0.05)  # The thread by the clock is in its long sleep.
    shell.follow["begin"] = [block, *(partial(shell.news, number) for number in range(20))]
    shell.deciding.call(shell.news("begin"))
    wait_until(shell, 21)
    assert "blocked one" not in shell.noted
    is_free.set()
    wait_until(shell, 22)


def test_many_jobs_that_all_block_run_at_once(shell: Shell) -> None:
    together = threading.Barrier(32)

    def meet(number: int) -> Event:
        together.wait(WAIT_S)
        return shell.news(number)

    shell.follow["begin"] = [partial(meet, number) for number in range(32)]
    shell.deciding.bring(shell.news("begin"))
    wait_until(shell, 33)


def test_something_that_is_due_earlier_than_before_is_not_slept_through(shell: Shell) -> None:
    shell.rest_s = 0.05
    turns: list[float] = []

    def look(event: bool) -> tuple[list[Job], float]:
        turns.append(time.monotonic())
        return [], 60.0

    shell.deciding.call(shell.news("begin"))
    wait_until(shell, 1)
    shell.deciding._decide = look
    deadline = time.monotonic() + WAIT_S
    while not turns:
        assert time.monotonic() < deadline, "it slept for as long as was said first"
        time.sleep(0.001)
