"""What users write: a class with three methods for each shard, or a plain function.

A processor has a shard (or a lane of one) to itself, and runs one call at a time. What it raises is never
passed over: the group's policy says what happens, see docs/workers.md.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from shoal.core.errors import InvalidInput
from shoal.core.tasks import Reason
from shoal.wire.batch import Batch

if TYPE_CHECKING:
    from shoal.consumer.checkpointer import Checkpointer


class Processor:
    """Processes one shard. Override what you need; `process` at least."""

    def initialize(self, shard: int) -> None:
        """Before the first batch. One that raises is tried again later, on a new object."""

    def process(self, batch: Batch, checkpointer: Checkpointer) -> int | None:
        """The next records, in order. Declare them done with `checkpointer.save()`.

        Return nothing, or an offset to go back to: it and what follows come again.
        """
        raise NotImplementedError("a processor overrides process(batch, checkpointer)")

    def shutdown(self, checkpointer: Checkpointer, reason: Reason) -> None:
        """After the last batch. ENDED, MOVED and STOPPED may still save; LOST may not."""


class ProcessFunction(Protocol):
    """A plain function as a processor."""

    def __call__(self, batch: Batch, checkpointer: Checkpointer, /) -> int | None: ...


Factory = Callable[[], Processor]


class FunctionProcessor(Processor):
    """A function that processes batches, one after the other."""

    def __init__(self, function: ProcessFunction) -> None:
        self._function = function

    def process(self, batch: Batch, checkpointer: Checkpointer) -> int | None:
        """See Processor."""
        return self._function(batch, checkpointer)


class FunctionFactory:
    """Makes processors of a function. It goes to another process by the name of what it is, or is made of."""

    def __init__(self, function: ProcessFunction) -> None:
        self._function = function
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", "")
        self.__doc__ = function.__doc__

    def __call__(self) -> Processor:
        return FunctionProcessor(self._function)

    def __reduce__(self) -> str | tuple[object, ...]:
        # Decorated, it stands where the function is looked for, which then cannot be found by its name.
        if _at(self.__module__, self.__qualname__) is self:
            return self.__qualname__
        return FunctionFactory, (self._function,)


def processor(function: ProcessFunction) -> Factory:
    """Decorate a function `(batch, checkpointer)` to make it a processor."""
    return FunctionFactory(function)


def factory_of(given: object) -> Factory:
    """What makes a processor for each shard: of a class, a factory, or a function of two parameters."""
    if isinstance(given, Processor):
        raise InvalidInput(
            "processor", given, "one object cannot serve several shards; give its class, or a factory"
        )
    if not callable(given):
        raise InvalidInput("processor", given, "a Processor class, a factory of one, or a function")
    if inspect.iscoroutinefunction(given):
        raise InvalidInput("processor", given, "an async function is not run; give a plain one")
    if isinstance(given, type) and (lacking := lacks(given)):
        raise InvalidInput("processor", given, lacking)
    wanted = _parameters(given)
    if wanted == _OF_FUNCTION and not isinstance(given, type):
        return processor(given)
    if wanted:
        raise InvalidInput(
            "processor",
            given,
            f"it takes {wanted} arguments; a function takes (batch, checkpointer), a class or factory none",
        )
    return CheckedFactory(given)


def lacks(kind: type) -> str:
    """What a class would need to be a processor's; nothing, if it is one."""
    missing = [name for name in _METHODS if not callable(getattr(kind, name, None))]
    if missing:
        return f"its class has no {' and no '.join(missing)}; a processor has {', '.join(_METHODS)}"
    if getattr(kind, "process", None) is Processor.process:
        return "it does not override process(batch, checkpointer)"
    if any(inspect.iscoroutinefunction(getattr(kind, name)) for name in _METHODS):
        return "its methods are coroutines, which are not run here; see AsyncWorker"
    return ""


class CheckedFactory:
    """Makes what the user's factory makes, if that is a processor."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __call__(self) -> Processor:
        made = self._make()
        if not all(callable(getattr(made, name, None)) for name in _METHODS):
            raise InvalidInput("processor", made, "it has no initialize, process and shutdown")
        return made  # type: ignore[return-value]  # it need not inherit, only be one


def _at(module: str | None, name: str) -> object:
    """What is to be found in a module under a dotted name."""
    found: object = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _parameters(given: Callable[..., object]) -> int:
    """How many it wants. What cannot be asked is taken for a factory."""
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return 0
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)


_METHODS = ("initialize", "process", "shutdown")
_OF_FUNCTION = 2
