"""One process of a worker's lanes, from inside: `python -m shoal.consumer.lane_child SOCKET MARKS`.

It hosts the processors of lanes of many shards, each call in a thread of its own, so that one that waits
holds up no other. What may be handed out is checked here, against deadlines that the worker sends: a worker
that stands still does not keep its lanes going. When the worker is gone, so is this.

Not here: decisions. A save is a question to the worker, and its answer.
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Final

from shoal.consumer import lane_booting
from shoal.consumer.lane_marks import Marks
from shoal.consumer.lane_messages import (
    Answer,
    Call,
    Committed,
    Down,
    Finished,
    Handed,
    Leave,
    Question,
    Setup,
    ToCommit,
    Until,
    Up,
    Wish,
    error_of,
    packed_error,
)
from shoal.consumer.processor import Factory, Processor
from shoal.consumer.threads import Threads
from shoal.consumer.user_code import LOOK_NS, Came, Deliver, UserCode, clock_ns
from shoal.core.errors import DeliveryTimeout, LeaseLost
from shoal.core.tasks import Initialize, Piece, Process, ProcessNothing, ShutDown
from shoal.ports import Commit, Pledge
from shoal.wire.batch import Batch
from shoal.wire.crossing import unpack
from shoal.wire.delivered import Delivered, Marked

_LOOK_S: Final = 1.0
"""How often it is looked whether the worker is there: a process that user code forked may hold its socket."""
_LINGER_S: Final = 3.0
"""How long what user code has registered for the end of the process may take."""
_TRACE_MAX: Final = 16_000
_THREADS_MAX: Final = 1024


def main() -> None:
    """Serve until the worker says so, or is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # They go to whole groups of processes. The worker hears them too, and ends its lanes in order.
        signal.signal(number, lambda *_: None)
    socket, descriptor = map(int, sys.argv[1:])
    os.set_inheritable(socket, False)
    connection = Connection(socket)
    marks = Marks(descriptor)
    os.close(descriptor)
    try:
        setup: Setup = pickle.loads(connection.recv_bytes())  # noqa: S301 - of the worker that started this
        _Child(connection, marks, setup).serve()
    except (EOFError, OSError):
        pass  # The worker is gone.
    _bound_the_end()


def _bound_the_end() -> None:
    def end() -> None:
        threading.Event().wait(_LINGER_S)
        os._exit(1)

    threading.Thread(target=end, name="shoal-lane-end", daemon=True).start()


class _Hosted:
    """A shard under an epoch. Writer of `until_ns`: the main thread."""

    def __init__(self, call: Call, child: _Child) -> None:
        self.until_ns = 0
        self._shard, self._epoch = call.shard, call.epoch
        self.code = UserCode(
            child.factory,
            child.outages,
            shard=call.shard,
            epoch=call.epoch,
            guard=self._guard,
            notebook=lambda lane: _Notes(child, call, lane),
        )

    def _guard(self) -> int:
        until_ns, now_ns = self.until_ns, clock_ns()
        if now_ns >= until_ns:
            raise LeaseLost(shard=self._shard, epoch=self._epoch)
        return min(until_ns, now_ns + LOOK_NS)


class _Child:
    """All that this process does. Writer of `_hosted`: the main thread, and calls that end, under `_lock`."""

    def __init__(self, connection: Connection, marks: Marks, setup: Setup) -> None:
        self._connection, self._marks, self._parent = connection, marks, setup.parent
        self.factory, self.outages = _code(setup)
        self._lock = threading.Lock()
        self._hosted: dict[int, _Hosted] = {}
        self._asked: dict[int, queue.SimpleQueue[Answer | ToCommit]] = {}
        self._numbers = itertools.count()
        self._threads = Threads("shoal-lane", _THREADS_MAX, self._failed)

    def serve(self) -> None:
        """In the main thread."""
        while True:
            if not self._connection.poll(_LOOK_S):
                if os.getppid() != self._parent:
                    return
                continue
            message: Down = pickle.loads(self._connection.recv_bytes())  # noqa: S301 - see main
            match message:
                case Call():
                    payload = self._connection.recv_bytes() if isinstance(message.task, Handed) else b""
                    self._threads.submit(self._run, self._place(message), message, payload)
                case Until(tenure=tenure, until_ns=until_ns):
                    with self._lock:
                        if tenure in self._hosted:
                            self._hosted[tenure].until_ns = until_ns
                case Answer(number=number):
                    self._asked.pop(number).put(message)
                case ToCommit(number=number):
                    self._asked[number].put(message)
                case Leave():
                    return

    def ask(self, call: Call, lane: int, wish: Wish, offset: int | None = None) -> int:
        """Ask the worker, in any thread of user code; what it raises there is raised here."""
        _, answered = self._question(call, lane, wish, offset)
        return _value(answered.get())

    def commit(self, call: Call, lane: int, offset: int | None, commit: Commit) -> None:
        """See Notebook. The worker says what is to be saved, and keeps the shard as it is until it hears what
        became of that."""
        number, answered = self._question(call, lane, Wish.COMMIT, offset)
        asked = answered.get()
        if not isinstance(asked, ToCommit):
            _value(asked)  # It was refused.
            return
        try:
            commit(asked.saves)
        except BaseException as error:
            unknown = DeliveryTimeout(shard=call.shard, records=0, waited_s=0.0, last=repr(error))
            told = error if isinstance(error, Exception) else unknown
            self._send(Committed(number=number, error=packed_error(told)))
            answer = answered.get()
            if isinstance(answer, Answer) and answer.error is not None:
                heard = error_of(answer.error)
                if isinstance(heard, LeaseLost):
                    raise heard from error
            raise
        self._send(Committed(number=number))
        _value(answered.get())

    def _question(
        self, call: Call, lane: int, wish: Wish, offset: int | None
    ) -> tuple[int, queue.SimpleQueue[Answer | ToCommit]]:
        number = next(self._numbers)
        answered = self._asked[number] = queue.SimpleQueue()
        self._send(
            Question(
                number=number,
                tenure=call.tenure,
                shard=call.shard,
                epoch=call.epoch,
                lane=lane,
                wish=wish,
                offset=offset,
            )
        )
        return number, answered

    def _place(self, call: Call) -> _Hosted:
        with self._lock:
            hosted = self._hosted.get(call.tenure)
            if hosted is None:
                hosted = self._hosted[call.tenure] = _Hosted(call, self)
            hosted.until_ns = call.until_ns
            return hosted

    def _run(self, hosted: _Hosted, call: Call, payload: bytes) -> None:
        came = _carry_out(hosted.code, call, payload, self._marks)
        with self._lock:
            if isinstance(call.task, ShutDown) and not hosted.code.lanes:
                self._hosted.pop(call.tenure, None)
        self._send(
            Finished(
                number=call.number,
                took_ns=came.took_ns,
                back_to=came.back_to,
                failure=came.failure,
                trace="" if came.error is None else _trace(came.error),
                is_postponed=came.is_postponed,
            )
        )

    def _send(self, message: Up) -> None:
        data = pickle.dumps(message)
        with self._lock:
            self._connection.send_bytes(data)

    @staticmethod
    def _failed(error: BaseException) -> None:
        """Ours, not the user's: without an answer the worker would wait for ever."""
        if not isinstance(error, OSError):  # The worker is gone: the main thread knows.
            traceback.print_exception(error)
        os._exit(1)


def _value(answer: Answer | ToCommit) -> int:
    assert isinstance(answer, Answer)
    if answer.error is not None:
        raise error_of(answer.error)
    return answer.value


class _Notes:
    """See Notebook."""

    def __init__(self, child: _Child, call: Call, lane: int) -> None:
        self._child, self._call, self._lane = child, call, lane

    def declare(self, offset: int | None) -> int:
        return self._child.ask(self._call, self._lane, Wish.DECLARE, offset)

    def persist(self) -> None:
        self._child.ask(self._call, self._lane, Wish.PERSIST)

    def pledge(self, offset: int | None) -> Pledge:
        membership = self._child.ask(self._call, self._lane, Wish.CHECK_PLEDGE)
        redeem = partial(self._child.commit, self._call, self._lane, offset)
        return Pledge({(membership, self._call.shard): None}, redeem)

    def declared(self) -> int:
        return self._child.ask(self._call, self._lane, Wish.DECLARED)


def _carry_out(code: UserCode, call: Call, payload: bytes, marks: Marks) -> Came:
    """Have user code do it. A lane whose processor died with another process gets a new one first."""
    nothing: Batch | None = None
    deliver: Deliver = Delivered.of
    match call.task:
        case Handed(lane=lane, attempt=attempt, label=label, mark=mark):
            deliver = partial(Marked.marking, marks.place(mark))
            batch = unpack(label, payload)
            task: Initialize | Process | ProcessNothing | ShutDown = Process(
                lane=lane, piece=Piece(batch.offsets, source=batch), attempt=attempt
            )
        case other:
            task = other
            nothing = None if call.nothing is None else unpack(call.nothing, b"")
    if isinstance(task, Process | ProcessNothing) and task.lane not in code.lanes:
        came = code.run(Initialize(lane=task.lane), None)
        if came.failure is not None:
            return came
    return code.run(task, nothing, deliver)


def _code(setup: Setup) -> tuple[Factory, tuple[type[BaseException], ...]]:
    """The user's. Code that cannot be imported here is a failure of every `initialize`, and so is seen."""
    lane_booting.is_booting = True
    try:
        spawn.prepare(dict(setup.preparation))
        factory, outages = pickle.loads(setup.code)  # noqa: S301 - see main
    except BaseException as error:  # noqa: BLE001 - around user code: importing it runs it
        return _raising(error), ()
    finally:
        lane_booting.is_booting = False
    return factory, outages


def _raising(error: BaseException) -> Callable[[], Processor]:
    def make() -> Processor:
        raise error

    return make


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))[-_TRACE_MAX:]
    except Exception:  # noqa: BLE001 - around user code: an error that cannot even be shown
        return f"({type(error).__qualname__}, which cannot be shown)"


if __name__ == "__main__":
    main()
