"""A real Spark cluster for tests and examples: a master and workers, each a process of its own.

Everything comes from the installed pyspark package; nothing is downloaded. Executors run the interpreter
that runs this, with the same PYTHONPATH, so they have the packages that the driver has. Not for: machines
beyond this one, or how packages get there.

    with SparkCluster(workers=2) as cluster:
        subprocess.run([sys.executable, "job.py", cluster.url], env=os.environ | cluster.environment)

Invariant: when the `with` block is left, and also when the process that entered it is killed, no process
and no folder remains.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil

from shoal.spark.home import given_quick_home, make_quick_home
from shoal.testing import guard
from shoal.testing.machine import free_port
from shoal.testing.server import ServerFailed

START_SECONDS_MAX: Final = 90.0
"""Three JVMs on a busy machine with two cores."""
POLL_SECONDS: Final = 0.05
HOST: Final = "127.0.0.1"
_DAEMONS: Final = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "SPARK_NO_DAEMONIZE": "1",
}
"""Of a master or a worker, which does little: small, and soon there."""


class SparkCluster:
    """A standalone master and workers of one core each."""

    def __init__(self, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.url = ""
        self.folder = Path()
        self._home = Path()
        self._workers = workers
        self._cores = cores
        self._memory = memory
        self._stack = ExitStack()
        self._guards: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What a driver's process needs: where Spark is, and which Python executors run."""
        return {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_HOSTNAME": HOST,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }

    def __enter__(self) -> Self:
        """Start the master, then the workers, and wait until all of them have registered."""
        self.folder = Path(tempfile.mkdtemp(prefix="shoal-spark-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            self._home = given_quick_home() or make_quick_home(self.folder / "spark")
            port = free_port()
            self.url = f"spark://{HOST}:{port}"
            options = ["--host", HOST, "--port", str(port), "--webui-port", str(free_port())]
            self._start("master", ["org.apache.spark.deploy.master.Master", *options])
            self._wait("master", "New state: ALIVE", 1)
            for number in range(self._workers):
                self.start_worker(number)
            self._wait("master", "Registering worker", self._workers)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_worker(self, number: int) -> None:
        """Start a worker; also one that was killed."""
        name = f"worker-{number}"
        work = self.folder / name
        work.mkdir(exist_ok=True)
        options = ["--host", HOST, "--cores", str(self._cores), "--memory", self._memory]
        options += ["--work-dir", str(work), "--webui-port", str(free_port()), self.url]
        self._start(name, ["org.apache.spark.deploy.worker.Worker", *options])

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors with SIGKILL."""
        self._end(self._guards.pop(f"worker-{number}"))

    def kill_executors(self, number: int) -> int:
        """End the executors of a worker with SIGKILL, and leave the worker; how many there were."""
        executors = executors_of(self._guards[f"worker-{number}"].pid)
        for process in executors:
            process.kill()
        return len(executors)

    def log(self, name: str) -> str:
        """What `master` or `worker-0` has said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, arguments: list[str]) -> None:
        order = {
            "parent": os.getpid(),
            "command": [str(self._home / "bin" / "spark-class"), *arguments],
            "folder": str(self._folder_of(name)),
            "log": str(self.folder / f"{name}.log"),
            "user": None,
            "group": None,
            "last_signal": int(signal.SIGKILL),
        }
        environment = os.environ | self.environment | _DAEMONS
        if given := os.environ.get("SPARK_DAEMON_JAVA_OPTS"):
            environment["SPARK_DAEMON_JAVA_OPTS"] = given
        started = self._guards[name] = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=environment,
        )
        self._stack.callback(self._end, started)

    def _folder_of(self, name: str) -> Path:
        """Each process has a folder of its own: its guard removes it in the end."""
        folder = self.folder / f"{name}-home"
        folder.mkdir(exist_ok=True)
        return folder

    def _end(self, started: subprocess.Popen[bytes]) -> None:
        for pipe in (started.stdin, started.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        started.wait()

    def _wait(self, name: str, line: str, times: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while (self.folder / f"{name}.log").exists() is False or self.log(name).count(line) < times:
            if time.monotonic() > deadline or self._guards[name].poll() is not None:
                raise ServerFailed(f"Spark's {name} did not say {line!r}: {self.log(name)[-2000:]}")
            time.sleep(POLL_SECONDS)


def executors_of(pid: int) -> list[psutil.Process]:
    """The JVMs of executors among a process's descendants."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        # It may have ended while we look; also one that nobody waits for.
        with suppress(psutil.NoSuchProcess):
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
    return found
