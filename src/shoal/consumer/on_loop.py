"""Work in steps on an asyncio event loop: nothing here blocks it, and no step is left half done.

Only asyncio's own primitives, so that it runs under whatever runs on asyncio. What blocks goes to the loop's
executor. A cancellation reaches user code and rests at once; an errand to the hub is finished first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from shoal.consumer.held import Held
from shoal.consumer.processor import Factory
from shoal.consumer.steps import Errand, Rest, Steps
from shoal.consumer.user_code import Came, Code, Ended, UserCode
from shoal.core.errors import InvalidInput
from shoal.core.tasks import Failure, SetAside, Task
from shoal.wire.batch import Batch

Answer = TypeVar("Answer")


class Bell:
    """Wakes the one task that rests. Rung from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def here(self) -> None:
        """The loop that runs now is the one to be woken. There is only one."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise InvalidInput("loop", loop, "it belongs to the event loop that it was first used in")
        self._loop = loop

    def ring(self) -> None:
        """There is something new."""
        if self._loop is not None:
            call_on(self._loop, self._event.set)

    async def rest(self, seconds: float, has_changed: Callable[[], bool]) -> None:
        """Until it rings, at most so long."""
        self._event.clear()
        if has_changed():
            return  # It rang before.
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            pass


async def driven_on_loop(
    steps: Steps[Answer], rest: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> Answer:
    """Do it all on this loop. What is thrown in by a cancellation, the steps put in order."""
    try:
        step = next(steps)
        while True:
            answer = None
            try:
                if isinstance(step, Rest):
                    await rest(step.seconds)
                elif isinstance(step, Errand):
                    answer = await finished(asyncio.get_running_loop().run_in_executor(None, step.call))
                else:
                    answer = step.call()
                    if inspect.isawaitable(answer):
                        answer = await answer
            except BaseException as error:  # noqa: BLE001 - it is thrown to where it belongs
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        found: Answer = stop.value
        return found


async def finished(future: asyncio.Future[Answer]) -> Answer:
    """Wait for something that has an end, whatever happens; a cancellation counts when it is there."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # Seen, though nobody is there to hear of it.
        raise cancelled
    return future.result()


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> bool:
    """Have it called on a loop, from any thread; False if the loop is no more."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True


class OnLoop:
    """Hosting on an event loop: user code is coroutines, and takes no thread."""

    def __init__(self, factory: Factory, outages: tuple[type[BaseException], ...]) -> None:
        self._factory, self._outages = factory, outages
        self._loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        """What runs. Writer: the loop."""

    def host(self, held: Held) -> Code:
        """See Hosting."""
        code = UserCode(
            self._factory,
            self._outages,
            shard=held.tenure.shard,
            epoch=held.tenure.epoch,
            guard=held.guard,
            notebook=held.notebook,
        )
        return _LoopCode(self, held, code)

    def start(self, code: UserCode, task: Task, nothing: Batch | None, ended: Ended) -> bool:
        """From any thread: run it on the loop."""
        return call_on(self._loop, self._start, code, task, nothing, ended)

    def _start(self, code: UserCode, task: Task, nothing: Batch | None, ended: Ended) -> None:
        running = self._loop.create_task(self._run(code, task, nothing, ended))
        self.tasks.add(running)
        running.add_done_callback(self.tasks.discard)

    async def _run(self, code: UserCode, task: Task, nothing: Batch | None, ended: Ended) -> None:
        """A cancellation of user code is a failure like any other: its policy says what follows."""
        came = await driven_on_loop(code.steps(task, nothing))
        ended(replace(came, may_decide=False))


class _LoopCode:
    """See Code."""

    def __init__(self, loop: OnLoop, held: Held, code: UserCode) -> None:
        self._loop, self._held, self._code = loop, held, code

    @property
    def bereft(self) -> tuple[int, ...]:
        """See Code."""
        return ()

    def begin(self, task: Task, ended: Ended) -> bool:
        """See Code."""
        return not isinstance(task, SetAside) and self._loop.start(
            self._code, task, self._held.nothing, ended
        )

    def run(self, task: Task, nothing: Batch | None) -> Came:
        """See Code. The loop is closed: nobody is there to run it."""
        del task, nothing
        return Came(took_ns=0, failure=Failure(kind="RuntimeError", text="the event loop is closed"))
