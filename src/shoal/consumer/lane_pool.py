"""Lanes as processes: a bounded number of them for a worker, and the code of all its shards spread over them.

A lane of a shard lives in the process of its number; the next shard begins one further on. So four lanes of
64 shards are four processes. What a lane is asked to do, and what its checkpointer asks, crosses here.

A process that dies takes the processors of its lanes with it. The calls that ran there have failed; for each
lane a new processor is made, in a new process, with its next task. What the old one had not declared done is
given again first.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing.spawn
import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from shoal.consumer import lane_booting
from shoal.consumer.held import Held
from shoal.consumer.lane_code import RemoteCode
from shoal.consumer.lane_messages import Answer, Question, Setup, ToCommit, Wish, error_of, packed_error
from shoal.consumer.lane_process import LaneProcess
from shoal.consumer.processor import Factory
from shoal.consumer.threads import Threads
from shoal.consumer.user_code import Code
from shoal.core.errors import DeliveryTimeout, InvalidInput, LeaseLost
from shoal.core.retry import Backoff
from shoal.ports import GroupSaves

_log: Final = logging.getLogger("shoal.worker")

_RESTART: Final = Backoff(first_s=0.05, factor=2.0, max_s=5.0)
_STEADY_S: Final = 60.0
"""Who lived for so long did not die of its start: the next death counts as the first."""
_LEAVE_S: Final = 5.0
"""How long all of them may take to be gone when they were told to leave."""
_SAVES_MAX: Final = 32
"""Saves, and transactions with one, that wait for the hub at once; one of a shard at a time."""


class LanePool:
    """See Hosting. Processes start when they are first needed; `close` ends them all."""

    def __init__(
        self, factory: Factory, outages: tuple[type[BaseException], ...], processes: int, who: str
    ) -> None:
        self.deaths = 0
        """Processes that ended without being told to."""
        self._setup = _setup(factory, outages)
        self._who = who
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._slots = [_Slot() for _ in range(processes)]
        self._codes: dict[int, RemoteCode] = {}
        self._numbers = itertools.count()
        self._threads = Threads("shoal-lane-saves", _SAVES_MAX, self._failed)

    def host(self, held: Held) -> Code:
        """See Hosting."""
        return RemoteCode(self, held, next(self._numbers))

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        with self._lock:
            found = [slot.process for slot in self._slots]
        return [process.pid for process in found if process is not None and not process.is_dead]

    def close(self) -> None:
        """End all processes, whatever they do. What still runs there has failed."""
        self._closing.set()
        with self._lock:
            left = [slot.process for slot in self._slots if slot.process is not None]
        for process in left:
            process.leave()
        until_s = time.monotonic() + _LEAVE_S
        for process in left:
            process.end(max(0.0, until_s - time.monotonic()))
        self._threads.close()

    # --- Processes. ----------------------------------------------------------------------------------

    def process(self, number: int) -> LaneProcess | None:
        """The process for a lane, started if there is none; None if the pool is closed.

        One that dies again and again is started again ever more slowly.
        """
        slot = self._slots[number % len(self._slots)]
        with slot.starting:
            while True:
                with self._lock:
                    if self._closing.is_set():
                        return None
                    if slot.process is not None and not slot.process.is_dead:
                        return slot.process
                    left_s = slot.start_at_s - time.monotonic()
                if left_s <= 0:
                    break
                self._closing.wait(left_s)
            started = LaneProcess(self._setup, asked=self._asked, died=partial(self._died, slot))
            with self._lock:
                if not self._closing.is_set():
                    slot.process = started
                    return started
        started.leave()
        started.end(0.0)
        return None

    def _died(self, slot: _Slot, process: LaneProcess) -> None:
        now_s = time.monotonic()
        with self._lock:
            self.deaths += 1
            slot.deaths = 1 if now_s - process.began_s >= _STEADY_S else slot.deaths + 1
            slot.start_at_s = now_s + _RESTART.delay_ms(slot.deaths, random.random()) / 1000
        _log.warning("%s: the process %s of its lanes ended: %s", self._who, process.pid, process.end_text)

    def _failed(self, error: BaseException) -> None:
        _log.error("%s: %r", self._who, error, exc_info=error)

    # --- Checkpointers. ------------------------------------------------------------------------------

    def enter(self, code: RemoteCode) -> None:
        """Its checkpointers may ask from now on."""
        with self._lock:
            self._codes[code.number] = code

    def forget(self, code: RemoteCode) -> None:
        """Its checkpointers are refused from now on."""
        with self._lock:
            self._codes.pop(code.number, None)

    def _asked(self, process: LaneProcess, question: Question) -> None:
        """In the thread that hears a process: what may take long goes elsewhere."""
        if question.wish in {Wish.PERSIST, Wish.COMMIT}:
            self._threads.submit(self._answer, process, question)
        else:
            self._answer(process, question)

    def _answer(self, process: LaneProcess, question: Question) -> None:
        with self._lock:
            code = self._codes.get(question.tenure)
        try:
            value = self._value(code, process, question)
        except Exception as error:  # noqa: BLE001 - at the edge: it is raised where it was asked
            answer = Answer(number=question.number, error=packed_error(error))
        else:
            answer = Answer(number=question.number, value=value)
        process.answer(answer)

    @staticmethod
    def _value(code: RemoteCode | None, process: LaneProcess, question: Question) -> int:
        if code is None:
            raise LeaseLost(shard=question.shard, epoch=question.epoch)
        match question.wish:
            case Wish.DECLARE:
                return code.held.declare(question.lane, question.offset)
            case Wish.PERSIST:
                code.held.persist()
                return 0
            case Wish.DECLARED:
                return code.held.declared(question.lane)
            case Wish.CHECK_PLEDGE:
                return code.held.check_pledge()
            case Wish.COMMIT:
                code.held.commit(question.lane, question.offset, partial(_committed, process, question))
                return 0


def _committed(process: LaneProcess, question: Question, saves: Sequence[GroupSaves]) -> None:
    """See Commit: by the transaction of a lane's process. If that dies first, nobody knows."""
    said = process.commit(ToCommit(number=question.number, saves=saves))
    if said is None:
        raise DeliveryTimeout(shard=question.shard, records=0, waited_s=0.0, last="its process ended")
    if said.error is not None:
        raise error_of(said.error)


class _Slot:
    """A place for a process, whichever is in it. Writer: any thread, under the pool's lock."""

    def __init__(self) -> None:
        self.process: LaneProcess | None = None
        self.deaths = 0
        """In a row."""
        self.start_at_s = 0.0
        self.starting = threading.Lock()


# --- What a process needs to run the user's code. ----------------------------------------------------


def _setup(factory: Factory, outages: tuple[type[BaseException], ...]) -> Setup:
    """What is sent to every process. Code that cannot be sent is refused here, before anything is started."""
    if lane_booting.is_booting:
        raise InvalidInput(
            "lanes",
            "processes",
            "a process of a lane imports the program that started its worker, and so came here: start the "
            'worker under `if __name__ == "__main__":`',
        )
    try:
        code = pickle.dumps((factory, outages))
    except Exception as error:
        raise InvalidInput("processor", factory, f"{_REMEDY} ({error})") from error
    preparation: dict[str, Any] = multiprocessing.spawn.get_preparation_data("shoal-lane")
    wanted = {"sys_path", "sys_argv", "dir", "orig_dir"}
    if b"__main__" in code:
        main = sys.modules["__main__"]
        if getattr(main, "__spec__", None) is None and not hasattr(main, "__file__"):
            raise InvalidInput("processor", factory, f"{_REMEDY} (an interactive session is no module)")
        wanted |= {"init_main_from_name", "init_main_from_path"}
    return Setup(
        preparation={key: value for key, value in preparation.items() if key in wanted},
        code=code,
        parent=os.getpid(),
    )


_REMEDY: Final = (
    "lanes='processes' sends the processor to other processes, by name: define its class, factory or "
    "function at the top level of a module, give arguments with functools.partial, and open what it needs in "
    "`initialize`; or use lanes='threads'"
)
