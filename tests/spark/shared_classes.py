"""The classes of Spark, read and checked once and kept for every JVM that tests start.

A JVM that starts Spark reads some twenty thousand classes out of 250 jars; from an archive of them (what Java
calls class data sharing) it starts with half the processor time. The archive stands beside a home of Spark,
since it is good for the same jars under the same names only. A JVM that finds another Java or other jars
leaves it alone.

`python -m tests.spark.shared_classes` gathers them before there is a test that waits for them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from shoal.spark.home import make_quick_home, spark_home

QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for a minute is not worth what its second compiler costs."""
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Of an archive that it cannot use, a JVM would speak on the standard output."""
_WITHIN_S: Final = 200.0
FOLDER: Final = Path(sys.prefix) / "spark-home"
"""It outlives a run, and goes with the environment whose jars it is made of."""


def shared_home(folder: Path = FOLDER) -> tuple[Path, str]:
    """A quick home, and what makes a JVM of it start soon. Whoever comes first makes them, others wait."""
    folder.mkdir(exist_ok=True)
    home = folder / f"home-{_key()}"
    archive = home / "classes.jsa"
    with _alone(folder / "lock"):
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=folder) as name:
                make_quick_home(Path(name) / "home").rename(home)
        try:
            if not archive.exists():
                _gather(home, archive)
        except subprocess.TimeoutExpired:
            return home, QUICK  # The machine is very busy: without it all is the same, only slower.
    return home, f"{QUICK} -XX:SharedArchiveFile={archive} {_QUIET}"


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """One process at a time. It waits no longer than `_gather` may take: who ends gives it up."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _gather(home: Path, archive: Path) -> None:
    """A query runs once, and its JVM writes down what it has loaded when it ends."""
    with tempfile.TemporaryDirectory(dir=home) as folder:
        written = Path(folder) / "classes.jsa"
        options = f"{QUICK} -XX:ArchiveClassesAtExit={written} {_QUIET}"
        subprocess.run(
            [sys.executable, str(Path(__file__).with_name("classes_program.py")), folder],
            check=True,
            capture_output=True,
            timeout=_WITHIN_S,
            env=os.environ | {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options},
        )
        written.replace(archive)


def _key() -> str:
    """Other jars, or another Java: another home."""
    java = shutil.which("java")
    seen = [str(Path(java).resolve()) if java else "", QUICK]
    for jar in sorted((spark_home() / "jars").glob("*.jar")):
        found = jar.stat()
        seen.append(f"{jar} {found.st_size} {found.st_mtime_ns}")
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]


if __name__ == "__main__":
    shared_home()
