"""Drivers as processes, for tests that kill them: see `driver_program.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from shoal.testing.spark_cluster import executors_of

WITHIN_S: Final = 180.0
"""For what takes seconds on a quiet machine: a JVM starts, a batch is done."""


class Driver:
    """One driver at a time: started, killed, started again."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, **orders: Any) -> None:
        self.folder = folder
        self._environment = environment or {}
        self._orders = {"folder": str(folder), **orders}
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("driver_program.py")),
                    json.dumps(self._orders),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | self._environment,
                start_new_session=True,
            )

    def wait_until_begun(self) -> None:
        self.until(lambda: self.said("begun") >= self.starts, "the driver has begun")

    def said(self, line: str) -> int:
        return self._log.read_text(errors="replace").splitlines().count(line)

    def tell(self, line: str) -> None:
        """Tell it to end, in a way."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._note_family()
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def wait_for_end(self) -> None:
        assert self._process is not None
        assert self._process.wait(WITHIN_S) == 0, self.tail()

    def leave(self) -> None:
        """When nothing is at hand any more: stop the queries, and end."""
        self.until(
            lambda: all(self.batch_at_hand(query) is None for query in self._orders["queries"]), "all is done"
        )
        self.tell("stop")
        self.wait_for_end()

    def kill_executors(self) -> int:
        """Kill -9 the executors of a `local-cluster`, which the driver has started; how many there were."""
        assert self._process is not None
        executors = executors_of(self._process.pid)
        for process in executors:
            process.kill()
        return len(executors)

    def kill(self, *, whole: bool = False) -> None:
        """Kill -9: the JVM, which is Spark's driver, and the program. What they had started is left to
        itself or, with `whole`, dies as well, as if the machine had."""
        assert self._process is not None
        self._note_family()
        for process in self._family:
            with suppress(psutil.NoSuchProcess):
                if whole or "java" in process.name():
                    process.kill()
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def until(self, condition: Callable[[], bool], what: str, within: float = WITHIN_S) -> None:
        """Wait for it, as long as the driver lives."""
        deadline = time.monotonic() + within
        while not condition():
            assert self._process is None or self._process.poll() is None, f"{what}: {self.tail()}"
            assert time.monotonic() < deadline, f"{what}: {self.tail()}"
            time.sleep(0.02)

    def batch_at_hand(self, query: str) -> int | None:
        """The number of the batch that a query has begun and not finished."""
        return batch_at_hand(self.folder / query)

    def batches(self, query: str) -> int:
        """How many are done."""
        return batches_done(self.folder / query)

    def tail(self) -> str:
        said = self._log.read_text(errors="replace")
        failed = [line for line in said.splitlines() if line.startswith("failed:")]
        return "\n".join([said[-2000:], *failed])

    def _note_family(self) -> None:
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            self._family += psutil.Process(self._process.pid).children(recursive=True)

    @property
    def _log(self) -> Path:
        return self.folder / f"{self._orders.get('name', 'driver')}.log"

    def __enter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        self._log.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing that it started is left."""
        if self._process is None:
            return
        self.kill()
        _, alive = psutil.wait_procs(self._family, timeout=20)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def batch_at_hand(checkpoint: Path) -> int | None:
    """The number of the batch that was begun and is not finished, by the folder of a query's checkpoint."""
    begun, done = (_last(checkpoint / name) for name in ("offsets", "commits"))
    return begun if begun > done else None


def batches_done(checkpoint: Path) -> int:
    return 1 + _last(checkpoint / "commits")


def _last(folder: Path) -> int:
    with suppress(FileNotFoundError):
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=-1)
    return -1
