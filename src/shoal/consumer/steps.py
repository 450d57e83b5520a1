"""What a consumer does while it waits, as steps: written once, and driven by a thread or by an event loop.

A piece of work is a generator. It yields what takes time or is the user's, and is sent what came of it; what
that raised, a cancellation too, is thrown into it, so that it can put things in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Tell:
    """Call the user, whose function may be a coroutine where there is a loop."""

    call: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Errand:
    """A call that may take a while, but not for ever: it is waited for, whatever happens."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Rest:
    """Until there is something new, at most so many seconds."""

    seconds: float


Step = Tell | Errand | Rest
Steps = Generator[Step, Any, Answer]


def driven(steps: Steps[Answer], rest: Callable[[float], None] = time.sleep) -> Answer:
    """Do it all in this thread."""
    try:
        step = next(steps)
        while True:
            answer = None
            try:
                if isinstance(step, Rest):
                    rest(step.seconds)
                else:
                    answer = step.call()
            except BaseException as error:  # noqa: BLE001 - it is thrown to where it belongs
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as stop:
        found: Answer = stop.value
        return found
