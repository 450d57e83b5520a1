"""Every error has an exit code, and `shoal --help` tells what each means."""

from typing import Final

import pytest
from typer.testing import CliRunner

from shoal import cli
from shoal.cli.exits import TABLE, ExitCode, exit_code
from shoal.core import errors

LEAVES: Final[list[type[errors.ShoalError]]] = sorted(errors.leaves(), key=lambda kind: kind.__qualname__)


@pytest.mark.parametrize("leaf", LEAVES)
def test_every_leaf_of_the_errors_has_a_line_in_the_table(leaf: type[errors.ShoalError]) -> None:
    assert any(kind in TABLE for kind in leaf.__mro__)


@pytest.mark.parametrize("leaf", LEAVES)
def test_whatever_may_succeed_later_has_the_code_that_says_so(leaf: type[errors.ShoalError]) -> None:
    code = exit_code(leaf.__new__(leaf))
    # Of a delivery that timed out nobody knows whether it was stored; the store was not there, though.
    assert (code is ExitCode.STORE_BUSY) == (leaf.retriable or leaf is errors.DeliveryTimeout)


def test_an_error_that_nobody_foresaw_is_a_failure() -> None:
    assert exit_code(RuntimeError("?")) is ExitCode.FAILURE


def test_the_help_and_the_docstring_name_every_code() -> None:
    shown = CliRunner().invoke(cli.app, ["--help"]).stdout
    assert cli.__doc__ is not None
    for code in ExitCode:
        assert f" {code.value}  " in shown
        assert f" {code.value}  " in cli.__doc__
