"""Jars from Maven Central, for tests and benchmarks with programs of others: fetched once, into this
environment. Spark brings the program that fetches (Ivy) along.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark

_FETCH_S: Final = 300
COMPILER: Final = "org.eclipse.jdt ecj 3.33.0"
"""Compiles without a JDK."""


class Unreachable(Exception):
    """Something cannot be fetched or run; the text says what was printed last."""


def jars(part: str, *, is_whole: bool) -> list[Path]:
    """A part's jars (`group name version`), with those it needs if `is_whole`."""
    home = Path(sys.prefix) / "share" / "maven"
    folder = home / part.replace(" ", "-")
    if not (folder / "fetched").exists():
        (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
        command = ["java", "-jar", str(ivy), "-cache", str(home / "cache"), "-confs", "default"]
        command += [] if is_whole else ["-notransitive"]
        command += ["-dependency", *part.split(), "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        run(command, _FETCH_S)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fetched").touch()
    found = sorted(folder.glob("*.jar"))
    if not found:
        raise Unreachable(f"nothing was fetched for {part}: remove {home} and try again")
    return found


def compiled(source: Path, classes: list[Path], folder: Path) -> str:
    """Compile a program against jars, into a folder; the class path that it then runs with."""
    path = ":".join(map(str, [folder, *classes]))
    (compiler,) = jars(COMPILER, is_whole=False)
    run(["java", "-jar", str(compiler), "-11", "-nowarn", "-cp", path, "-d", str(folder), str(source)], 60)
    return path


def run(command: list[str], seconds: float) -> None:
    """Run a command to its end; `Unreachable` if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"{' '.join(command[-8:])}: not done after {seconds:g} s") from error
    if done.returncode:
        raise Unreachable(f"{' '.join(command[-8:])}: {(done.stdout + done.stderr)[-1000:]}")
