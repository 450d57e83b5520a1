"""One process of a worker's lanes, from outside: its socket, its deadlines, its end. Decides nothing.

A thread hears what it says, another sends the deadlines of what runs there. A call is made in the thread of
whoever makes it, and ends with the process if not before: nobody waits for one that is dead.

Invariant: once `is_dead`, no process is there, and every call has come back.
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from typing import Final, Protocol

import pyarrow as pa

from shoal.consumer.lane_marks import MARKS_MAX, Marks, make_marks
from shoal.consumer.lane_messages import (
    Answer,
    Call,
    Committed,
    Finished,
    Leave,
    Question,
    Setup,
    ToCommit,
    Until,
    Up,
)
from shoal.core.errors import TransactionEnded

_LOOK_S: Final = 0.5
"""How late the end of a process is seen whose socket another holds: user code may fork there."""
_REFRESH_S: Final = 0.05
"""How late a longer deadline, or a loss, reaches a process."""
_REAP_S: Final = 5.0


class Deadline(Protocol):
    """Knows until when a shard may be worked on."""

    def until_ns(self) -> int: ...


class LaneProcess:
    """From its start to its end. Writers of the fields: any thread, under `_lock`."""

    def __init__(
        self,
        setup: Setup,
        *,
        asked: Callable[[LaneProcess, Question], None],
        died: Callable[[LaneProcess], None],
    ) -> None:
        """`asked` is told of questions, and must not wait long; `died`, if it ended without being told to."""
        self.began_s = time.monotonic()
        self.is_dead = False
        self.end_text = ""
        """How it ended."""
        self._asked, self._died = asked, died
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._calls: dict[int, tuple[queue.SimpleQueue[Finished | None], int, Deadline]] = {}
        self._commits: dict[int, queue.SimpleQueue[Committed | None]] = {}
        """Transactions that are made there, by the number of the question."""
        self._undecided: set[int] = set()
        """Of those, whose questions have no answer yet."""
        self._decided = threading.Condition(self._lock)
        self._sent: dict[int, int] = {}
        """Deadlines as the process knows them, by tenure."""
        self._numbers = itertools.count()
        self._is_leaving = False
        self._is_over = threading.Event()
        self._marks_free = list(range(MARKS_MAX))
        self._connection, theirs = Pipe()
        marks: int | None = None
        try:
            marks = make_marks()
            self._marks = Marks(marks)
            self._process = subprocess.Popen(
                # -P: a file of the current directory must not stand in for a module of ours.
                [sys.executable, "-P", "-m", "shoal.consumer.lane_child", str(theirs.fileno()), str(marks)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), marks],
                process_group=0,
            )
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
            if marks is not None:
                os.close(marks)
        self._listener = self._thread("hears", self._listen)
        self._thread("deadlines", self._refresh)
        with suppress(OSError):  # One that died at once is seen by its end.
            self._send(setup)

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(
        self, make: Callable[[int], Call], payload: pa.Buffer | None, deadline: Deadline
    ) -> Finished | None:
        """Make a call and wait until it has ended; None: the process died before."""
        number = next(self._numbers)
        call = make(number)
        ended: queue.SimpleQueue[Finished | None] = queue.SimpleQueue()
        with self._lock:
            if self.is_dead:
                return None
            self._calls[number] = (ended, call.tenure, deadline)
            self._sent[call.tenure] = call.until_ns
        with suppress(OSError):  # It is dying, and `ended` will say so.
            self._send(call, payload)
        return ended.get()

    def take_mark(self) -> int:
        """A mark for a call, to be given back."""
        with self._lock:
            mark = self._marks_free.pop()
        self._marks.clear(mark)
        return mark

    def give_mark(self, mark: int) -> int | None:
        """Give one back; where it was, if that was in the midst of a loop."""
        with self._lock:
            self._marks_free.append(mark)
        return self._marks.read(mark)

    def answer(self, answer: Answer) -> None:
        """To a question."""
        with self._decided:
            self._undecided.discard(answer.number)
            self._decided.notify_all()
        with suppress(OSError):
            self._send(answer)

    def commit(self, commit: ToCommit) -> Committed | None:
        """Have a transaction save this, and wait until it has; None: the process died before it said so."""
        ended: queue.SimpleQueue[Committed | None] = queue.SimpleQueue()
        with self._lock:
            if self.is_dead:
                raise TransactionEnded("its process ended before it began")
            self._commits[commit.number] = ended
            self._undecided.add(commit.number)
        with suppress(OSError):  # It is dying, and `ended` will say so.
            self._send(commit)
        return ended.get()

    def leave(self) -> None:
        """Tell it to go, without waiting. One that does not even read is killed by `end`."""
        self._is_leaving = True
        if self._sending.acquire(timeout=_REFRESH_S):
            try:
                if not self.is_dead and select.select([], [self._connection], [], 0)[1]:
                    with suppress(OSError):
                        self._connection.send_bytes(pickle.dumps(Leave()))
            finally:
                self._sending.release()

    def end(self, within_s: float) -> None:
        """See that it is gone: after that time it is killed."""
        self._is_leaving = True
        if not self._is_over.wait(within_s):
            self._process.kill()
            self._is_over.wait(_REAP_S)

    # --- Its threads. --------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            while True:
                if self._connection.poll(_LOOK_S):
                    message: Up = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - our own process
                    self._heard(message)
                elif self._process.poll() is not None:
                    break
        except (EOFError, OSError):
            pass  # It is gone, or closed its end, which is as good.
        finally:
            self._bury()

    def _heard(self, message: Up) -> None:
        match message:
            case Finished(number=number):
                with self._lock:
                    ended, _, _ = self._calls.pop(number)
                ended.put(message)
            case Question():
                self._asked(self, message)
            case Committed(number=number):
                with self._lock:
                    waiting = self._commits.pop(number)
                waiting.put(message)

    def _bury(self) -> None:
        try:
            self._process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:
            self.end_text = _end_text(self._process.returncode)
            self.is_dead = True
            calls, self._calls = list(self._calls.values()), {}
            commits, self._commits = list(self._commits.values()), {}
        if not self._is_leaving:
            self._died(self)
        for waiting in commits:
            waiting.put(None)
        # Nobody knows what became of those. That is to be known of their shards before what ran there counts
        # as failed: it would be given again, though it may be saved.
        with self._decided:
            self._decided.wait_for(lambda: not self._undecided, _REAP_S)
        for ended, _, _ in calls:
            ended.put(None)
        with self._sending:
            self._connection.close()
        self._is_over.set()

    def _refresh(self) -> None:
        while not self._is_over.wait(_REFRESH_S):
            for changed in self._changed_deadlines():
                with suppress(OSError):
                    self._send(changed)

    def _changed_deadlines(self) -> list[Until]:
        """Of shards that are being worked on there."""
        with self._lock:
            running = {tenure: deadline for _, tenure, deadline in self._calls.values()}
        now = {tenure: deadline.until_ns() for tenure, deadline in running.items()}
        with self._lock:
            known, self._sent = self._sent, now
        return [
            Until(tenure=tenure, until_ns=until_ns)
            for tenure, until_ns in now.items()
            if known.get(tenure) != until_ns
        ]

    def _send(
        self, message: Setup | Call | Until | Answer | ToCommit, payload: pa.Buffer | None = None
    ) -> None:
        data = pickle.dumps(message)
        with self._sending:
            if self.is_dead:
                raise BrokenPipeError
            self._connection.send_bytes(data)
            if payload is not None:
                self._connection.send_bytes(memoryview(payload))

    def _thread(self, what: str, run: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=run, name=f"shoal-lane-{what}-{os.getpid()}", daemon=True)
        thread.start()
        return thread


def _end_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
