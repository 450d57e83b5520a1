"""Programs of this folder, with Aliyun's own client; without it, tests are skipped."""

from functools import partial
from pathlib import Path

import pytest

from shoal.testing.aliyun import NoClient, Program, client_python, start_program
from tests.sls.running import Start


def starter() -> Start:
    """Starts a program of this folder."""
    try:
        python = client_python()
    except NoClient as error:
        pytest.skip(str(error))
    return partial(_start, python)


def _start(python: Path, program: str, url: str, *words: str) -> Program:
    return start_program(python, Path(__file__).with_name(program), url, *words)
