"""Errors on their way out: one table from errors to exit codes, and one line on standard error for each.

The only place of the command line that catches broadly; no command has an exit code of its own.
Invariant: every leaf of `core.errors` has a line here, or a parent that has.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from shoal.core import errors


class ExitCode(IntEnum):
    """What a script can tell apart. Their meaning is in `shoal --help`."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    STORE_BUSY = 5
    INVALID = 6
    INTERRUPTED = 128 + signal.SIGINT


TABLE: Final[dict[type[Exception], ExitCode]] = {
    errors.InvalidInput: ExitCode.INVALID,
    errors.MissingDriver: ExitCode.INVALID,
    errors.MissingPackage: ExitCode.INVALID,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.OffsetExpired: ExitCode.NOT_FOUND,
    errors.OffsetOutOfRange: ExitCode.NOT_FOUND,
    errors.StreamExists: ExitCode.CONFLICT,
    errors.StillUnread: ExitCode.FAILURE,
    errors.ProjectNotEmpty: ExitCode.CONFLICT,
    errors.ShardClosed: ExitCode.CONFLICT,
    errors.ProducerFenced: ExitCode.CONFLICT,
    errors.OutOfSequence: ExitCode.CONFLICT,
    errors.GroupExists: ExitCode.CONFLICT,
    errors.TooManyGroups: ExitCode.CONFLICT,
    errors.GroupInUse: ExitCode.CONFLICT,
    errors.NameTaken: ExitCode.CONFLICT,
    errors.HeartbeatOutdated: ExitCode.CONFLICT,
    errors.MembershipFailed: ExitCode.FAILURE,
    errors.NotOwner: ExitCode.CONFLICT,
    errors.Fenced: ExitCode.CONFLICT,
    errors.StrategyRefused: ExitCode.INVALID,
    errors.LeaseLost: ExitCode.CONFLICT,
    errors.RecordsRefused: ExitCode.CONFLICT,
    errors.TooManyPositions: ExitCode.CONFLICT,
    errors.PositionMoved: ExitCode.CONFLICT,
    errors.CheckpointMisuse: ExitCode.INVALID,
    errors.ProcessorFailed: ExitCode.FAILURE,
    errors.ConsumerBusy: ExitCode.CONFLICT,
    errors.ConsumerClosed: ExitCode.FAILURE,
    errors.PollTooLate: ExitCode.CONFLICT,
    errors.DrainTimeout: ExitCode.CONFLICT,
    errors.DrainFailed: ExitCode.FAILURE,
    errors.DrainCutShort: ExitCode.CONFLICT,
    errors.NotRepeated: ExitCode.CONFLICT,
    errors.WokenUp: ExitCode.FAILURE,
    errors.DeserializationFailed: ExitCode.INVALID,
    errors.BufferFull: ExitCode.STORE_BUSY,
    errors.DeliveryTimeout: ExitCode.STORE_BUSY,
    errors.StoreUnavailable: ExitCode.STORE_BUSY,
    errors.StoreBusy: ExitCode.STORE_BUSY,
    errors.StoreFull: ExitCode.STORE_BUSY,
    TimeoutError: ExitCode.STORE_BUSY,
    # The URL leads somewhere, but not to a store that lets us in.
    errors.NotAShoalStore: ExitCode.INVALID,
    errors.StoreRefused: ExitCode.INVALID,
    errors.StoreError: ExitCode.FAILURE,
    errors.ProducerClosed: ExitCode.FAILURE,
    errors.TransactionEnded: ExitCode.FAILURE,
    errors.HubClosed: ExitCode.FAILURE,
    # The server is there, and does not let us in, or not do this.
    errors.NotSignedIn: ExitCode.INVALID,
    errors.RateExceeded: ExitCode.STORE_BUSY,
    errors.ClockSkewed: ExitCode.INVALID,
    errors.ReplayedRequest: ExitCode.FAILURE,
    errors.SignedForAnother: ExitCode.FAILURE,
    errors.AccessDenied: ExitCode.INVALID,
    errors.UserExists: ExitCode.CONFLICT,
    errors.PolicyExists: ExitCode.CONFLICT,
    errors.PolicyInUse: ExitCode.CONFLICT,
}


def exit_code(error: BaseException) -> ExitCode:
    """The code of an error: its own line, or that of its nearest parent."""
    for kind in type(error).__mro__:
        if kind in TABLE:
            return TABLE[kind]
    return ExitCode.FAILURE


def exit_code_of(kind: str) -> ExitCode:
    """The code of an error of another process, by the name of its class."""
    found = getattr(errors, kind, None)
    if not isinstance(found, type):
        return ExitCode.FAILURE
    return next((TABLE[parent] for parent in found.__mro__ if parent in TABLE), ExitCode.FAILURE)


class EdgeGroup(TyperGroup):
    """The outermost group of commands: runs one, and turns how it ended into an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader that has seen enough is no error."""
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            _abandon_output()
            raise typer.Exit(ExitCode.OK) from error
        return answer

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - it never stands alone: the edge is around it
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run, then leave with an exit code."""
        try:
            with _shown_warnings():
                answer = super().main(
                    args,
                    prog_name,
                    complete_var,
                    standalone_mode=False,
                    windows_expand_args=windows_expand_args,
                    **extra,
                )
        except typer.TyperException as error:
            sys.exit(_report(f"{error.format_message()} (see --help)", error, ExitCode.USAGE))
        except (typer.Abort, KeyboardInterrupt):
            sys.exit(ExitCode.INTERRUPTED)
        except (errors.ShoalError, TimeoutError) as error:
            sys.exit(_report(str(error), error, exit_code(error)))
        except Exception as error:  # noqa: BLE001 - the edge: everything is answered, in one line
            text = f"unexpected {type(error).__name__}: {error} (SHOAL_DEBUG=1 shows where)"
            sys.exit(_report(text, error, ExitCode.FAILURE))
        # Typer hands back the code of an Exit, and otherwise what the command returned: nothing.
        sys.exit(answer if isinstance(answer, int) else ExitCode.OK)


def _report(text: str, error: BaseException, code: ExitCode) -> ExitCode:
    if is_debugging():
        traceback.print_exception(error)
    with contextlib.suppress(BrokenPipeError):
        typer.echo(f"error: {' '.join(text.split())}", err=True)
    return code


def is_debugging() -> bool:
    """True if the user asked for tracebacks."""
    return os.environ.get("SHOAL_DEBUG", "") not in ("", "0")


def _abandon_output() -> None:
    """Nobody reads any more: what is still buffered must not raise again when Python ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Warnings(logging.Handler):
    """Warnings of the library as one line each, such as an append that is tried again.

    Its errors are left out: each is also raised, and told by the edge.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING or is_debugging():
            typer.echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)


@contextlib.contextmanager
def _shown_warnings() -> Iterator[None]:
    """While a command runs, and no longer: whoever else uses the library here has handlers of their own."""
    log, handler = logging.getLogger("shoal"), _Warnings()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
