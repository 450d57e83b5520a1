"""The `shoal` program in tests: as a call in this process, and as a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from typer.testing import Result

PROGRAM: Final = str(Path(sys.executable).with_name("shoal"))

Run = Callable[..., Result]
"""See the fixture `run`."""
Start = Callable[..., subprocess.Popen[bytes]]
"""See the fixture `start`."""


def json_of(result: Result) -> Any:
    return json.loads(result.stdout)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
