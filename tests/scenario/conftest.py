"""A hub on a file of the test's own, workers on it, a server with users, and the `shoal` program."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner, Result

import shoal
from shoal.cli import app
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.testing.users import ALL, Door, guarded
from tests.scenario.programs import PROGRAM, Run, Start
from tests.scenario.small_work import Make, workers


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as opened:
        yield opened


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A server whose only user is `admin`, so far."""
    monkeypatch.setenv(VARIABLE, new_master_key())
    with guarded(f"sqlite:///{tmp_path / 'shoal.db'}") as door:
        yield door


@pytest.fixture
def admin(door: Door) -> Iterator[shoal.Hub]:
    with door.hub_of("admin", ALL) as hub:
        yield hub


@pytest.fixture
def work(hub: shoal.Hub) -> Iterator[Make]:
    """Makes workers on a stream of two shards with five records each."""
    with workers(hub) as make:
        yield make


@pytest.fixture
def run(sqlite_url: str) -> Run:
    """Runs a command on a hub of the test's own, and demands the exit code."""

    def run_command(*words: str, exits: int = 0, given: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(app, list(words), input=given, env={"SHOAL_HUB": sqlite_url})
        assert result.exit_code == exits, (words, result.output, result.exception)
        assert "Traceback" not in result.output
        if exits not in (0, 1):
            assert result.stderr.startswith("error: ")
            assert result.stderr.count("\n") == 1
        return result

    return run_command


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the program. Whatever a failed test leaves running is ended, and its pipes are closed."""
    started: list[subprocess.Popen[bytes]] = []

    def start_program(*words: str, given: IO[bytes] | int | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [PROGRAM, *words], stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    yield start_program
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
