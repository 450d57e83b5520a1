"""A worker in a process of its own: signals, a main thread that just ends, code that hangs, a fork.

The group's timeout is a minute, so whatever the next owner gets sooner was handed over and not waited for.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shoal
from shoal.testing.processing import append_numbers, checkpoints

pytestmark = pytest.mark.alone

PATIENCE_S = 40.0

Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(sqlite_url: str, hub: shoal.Hub) -> Iterator[Begin]:
    hub.create_stream("orders", shards=1)
    append_numbers(hub, "orders", 0, range(5))
    started: list[subprocess.Popen[str]] = []

    def start(how: str, stop_s: float = 30.0) -> subprocess.Popen[str]:
        program = Path(__file__).parent / "worker_program.py"
        process = subprocess.Popen(
            [sys.executable, str(program), sqlite_url, how, str(stop_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "given 5\n", process.communicate(timeout=PATIENCE_S)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out.splitlines(), err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_makes_run_return_with_everything_handed_over(
    hub: shoal.Hub, begin: Begin, number: signal.Signals
) -> None:
    process = begin("run")
    process.send_signal(number)
    assert finish(process)[0] == ["told stopped", "over"]
    assert checkpoints(hub, "orders", "billing") == {0: 5}
    assert hub.describe_group("orders", "billing").members == ()


def test_a_main_thread_that_just_ends_hands_over_and_the_process_exits(hub: shoal.Hub, begin: Begin) -> None:
    process = begin("end")
    assert finish(process)[0] == ["told stopped"]
    assert checkpoints(hub, "orders", "billing") == {0: 5}
    assert hub.describe_group("orders", "billing").members == ()


@pytest.mark.parametrize("how", ["stuck", "stuck-end"])
def test_code_that_never_returns_is_given_up_after_the_bound_with_what_it_had_declared_done(
    hub: shoal.Hub, begin: Begin, how: str
) -> None:
    process = begin(how, 0.5)
    began_s = time.monotonic()
    if how == "stuck":
        process.send_signal(signal.SIGTERM)
    out, _ = finish(process)
    assert out == (["over"] if how == "stuck" else [])
    assert time.monotonic() - began_s < 20, "the process does not wait for it"
    assert checkpoints(hub, "orders", "billing") == {0: 5}
    assert hub.describe_group("orders", "billing").members == ()


def test_a_checkpointer_is_refused_in_a_forked_child_and_the_parent_goes_on(
    hub: shoal.Hub, begin: Begin
) -> None:
    process = begin("fork")
    assert process.stdout is not None
    assert process.stdout.readline() == "refused\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == ["told stopped", "over"]
    assert checkpoints(hub, "orders", "billing") == {0: 5}
