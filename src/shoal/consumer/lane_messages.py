"""What a worker and the processes of its lanes say to each other, over a socket: small values, pickled.

Records are not among them: a call with a batch is followed by one more message, its bytes as they are.
Both ends are of one program and one machine; nothing here is ever stored.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shoal.core import errors
from shoal.core.errors import ShoalError
from shoal.core.tasks import Failure, Initialize, ProcessNothing, ShutDown
from shoal.ports import GroupSaves
from shoal.wire.crossing import Label

# --- To the process of a lane. -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first message: how to become able to import what the worker's program can, and the user's code."""

    preparation: Mapping[str, Any]
    code: bytes
    """A pickled pair: the factory, and the errors that are outages."""
    parent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """`process` a batch, whose bytes are the next message."""

    lane: int
    attempt: int
    label: Label
    mark: int
    """Which of the marks that both processes see shows the record that it is at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A task for one lane of a shard; it is answered by Finished."""

    number: int
    tenure: int
    """Which shard under which epoch, for this worker: a number of its own."""
    shard: int
    epoch: int
    until_ns: int
    """The deadline, on the boot clock that all processes of a machine share."""
    task: Initialize | Handed | ProcessNothing | ShutDown
    nothing: Label | None = None
    """An empty batch, for who is to be told that there is nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """A shard's deadline is another now; 0: it is lost."""

    tenure: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a question."""

    number: int
    value: int = 0
    error: PackedError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToCommit:
    """To a wish to commit, before its answer: what a transaction is to save. It is answered by Committed."""

    number: int
    saves: Sequence[GroupSaves]


@dataclass(frozen=True, slots=True)
class Leave:
    """There is nothing more to do."""


# --- From the process of a lane. ---------------------------------------------------------------------


class Wish(StrEnum):
    """What a checkpointer wants of the worker."""

    DECLARE = "declare"
    PERSIST = "persist"
    DECLARED = "declared"
    CHECK_PLEDGE = "check_pledge"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A checkpointer's, see Notebook."""

    number: int
    tenure: int
    shard: int
    epoch: int
    lane: int
    wish: Wish
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """How the transaction went that the question of this number was for."""

    number: int
    error: PackedError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a call ended."""

    number: int
    took_ns: int
    back_to: int | None = None
    failure: Failure | None = None
    trace: str = ""
    """Where it was raised, as text."""
    is_postponed: bool = False


Down = Call | Until | Answer | ToCommit | Leave
Up = Finished | Question | Committed


# --- Errors that cross. ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedError:
    """An error of ours with its facts; their constructors take other things than their text."""

    kind: str
    args: tuple[object, ...]
    facts: Mapping[str, object]


def packed_error(error: Exception) -> PackedError:
    """As it is sent. What is not of ours, or cannot be sent, goes by its text."""
    kind = type(error)
    if isinstance(error, ShoalError) and getattr(errors, kind.__name__, None) is kind:
        found = PackedError(kind=kind.__name__, args=error.args, facts=dict(vars(error)))
        try:
            pickle.dumps(found)
        except Exception:  # noqa: BLE001 - facts may be anything that a caller gave
            return PackedError(kind=kind.__name__, args=(str(error),), facts={})
        return found
    return PackedError(kind="", args=(f"{kind.__name__}: {error}",), facts={})


def error_of(packed: PackedError) -> Exception:
    """As it is received: of the same class, with the same text and facts."""
    if not packed.kind:
        return RuntimeError(*packed.args)
    kind: type[ShoalError] = getattr(errors, packed.kind)
    error = kind.__new__(kind)
    Exception.__init__(error, *packed.args)
    vars(error).update(packed.facts)
    return error
