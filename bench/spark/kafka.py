"""A Kafka broker and Spark's connector to it, to compare with: fetched from Maven Central, started, ended.

Spark brings the program that fetches (Ivy) along. The connector's newest published parts are older than Spark
itself; they work with it. Not for: tests of Shoal, or a broker that is already there.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from shoal.testing.machine import free_port

BROKER: Final = "org.apache.kafka kafka_2.13 4.2.1"
CONNECTOR: Final = (
    "org.apache.spark spark-sql-kafka-0-10_2.13 4.2.0",
    "org.apache.spark spark-token-provider-kafka-0-10_2.13 4.0.0",
    "org.apache.kafka kafka-clients 3.9.2",
    "org.apache.commons commons-pool2 2.13.1",
)
_FETCH_S: Final = 300
_START_S: Final = 60


class Unreachable(Exception):
    """The parts cannot be fetched, or the broker does not start; the text says what was printed last."""


def connector() -> list[str]:
    """The connector's jars."""
    return [str(jar) for part in CONNECTOR for jar in _jars(part, is_whole=False)]


class Broker:
    """One broker with its own defaults, which also keeps its own metadata. Topics have four partitions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{self.port}"
        folder.mkdir()
        (folder / "server.properties").write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.servers}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={folder / 'data'}\n"
            "offsets.topic.replication.factor=1\n"
            "num.partitions=4\n"
        )

    def __enter__(self) -> Self:
        classes = str(_jars(BROKER, is_whole=True)[0].parent / "*")
        settings = str(self._folder / "server.properties")
        java = ["java", "-Xmx1g", "-cp", classes]
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        _run([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings], _START_S)
        log = self._folder / "log"
        with log.open("wb") as out:
            self._process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=out, stderr=out)
        deadline = time.monotonic() + _START_S
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise Unreachable(f"the broker does not start: {log.read_text()[-1000:]}")
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
            return
        self._process.kill()
        self._process.wait()


def _jars(part: str, *, is_whole: bool) -> list[Path]:
    """A part's jars, with those it needs if `is_whole`. They are fetched once, into this environment."""
    home = Path(sys.prefix) / "share" / "kafka"
    folder = home / part.replace(" ", "-")
    if not (folder / "fetched").exists():
        (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
        command = ["java", "-jar", str(ivy), "-cache", str(home / "cache"), "-confs", "default"]
        command += [] if is_whole else ["-notransitive"]
        command += ["-dependency", *part.split(), "-retrieve", f"{folder}/[artifact]-[revision].[ext]"]
        _run(command, _FETCH_S)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "fetched").touch()
    found = sorted(folder.glob("*.jar"))
    if not found:
        raise Unreachable(f"nothing was fetched for {part}: remove {home} and try again")
    return found


def _run(command: list[str], seconds: float) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        raise Unreachable(f"{' '.join(command[-8:])}: {(done.stdout + done.stderr)[-1000:]}")


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
