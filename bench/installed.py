"""The package as users have it: compiled. An installer does that once; of a checkout, each process compiles
all of it anew where no compiled files are kept (PYTHONDONTWRITEBYTECODE), for a quarter of a second."""

from __future__ import annotations

import compileall
from pathlib import Path


def compile_sources() -> None:
    """Before anything is measured that starts processes."""
    compileall.compile_dir(Path(__file__).parent.parent / "src", quiet=1)
