"""Aliyun's own Python client in an environment of its own: its packages do not go with ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGES: Final = ("aliyun-log-python-sdk==0.9.52", "zstd==1.5.7.2")

Program = subprocess.Popen[str]


class NoClient(Exception):
    """It cannot be installed; the text says why."""


def client_python(*more: str) -> Path:
    """The interpreter that has the client; made once, and kept beside our own environment. `more` are
    packages, as name==version, that a test wants with it.

    It is looked at, and filled, as its programs will find it: with our PYTHONPATH, pip would take what is in
    our environment for what is in its own, and leave it out.
    """
    folder = Path(os.environ.get("SHOAL_SLS_VENV") or Path(sys.prefix).parent / ".venv-sls")
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    has_it = subprocess.run(
        [python, "-c", ", ".join(["import aliyun.log, zstd", *(one.partition("==")[0] for one in more)])],
        env=client_environment(),
        capture_output=True,
        check=False,
    )
    if has_it.returncode:
        installed = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", *PACKAGES, *more],
            env=client_environment(proxies=True),
            capture_output=True,
            text=True,
            check=False,
        )
        if installed.returncode:
            raise NoClient(f"Aliyun's client cannot be installed: {installed.stderr[-300:]}")
    return python


def start_program(python: Path, program: Path, url: str, *words: str) -> Program:
    """Start a program with the client, which reaches the server at `url` as its proxy."""
    return subprocess.Popen(
        [python, "-u", program, *words],
        env={**client_environment(), "http_proxy": url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def client_environment(*, proxies: bool = False) -> dict[str, str]:
    """That of this process, without what leads to our packages, or past the server."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and (proxies or "proxy" not in name.lower())
    }
