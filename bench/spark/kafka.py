"""A Kafka broker and Spark's connector to it, to compare with: fetched from Maven Central, started, ended.

Spark brings the program that fetches (Ivy) along. The connector's newest published parts are older than Spark
itself; they work with it. Not for: tests of Shoal, or a broker that is already there.
"""

from __future__ import annotations

import signal
import uuid
from base64 import urlsafe_b64encode
from contextlib import suppress
from typing import ClassVar, Final

import psutil

from shoal.testing.machine import free_port, installed
from shoal.testing.maven import jars
from shoal.testing.server import Server, StopMode

BROKER: Final = "org.apache.kafka kafka_2.13 4.2.1"
CONNECTOR: Final = (
    "org.apache.spark spark-sql-kafka-0-10_2.13 4.2.0",
    "org.apache.spark spark-token-provider-kafka-0-10_2.13 4.0.0",
    "org.apache.kafka kafka-clients 3.9.2",
    "org.apache.commons commons-pool2 2.13.1",
)


def connector() -> list[str]:
    """The connector's jars."""
    return [str(jar) for part in CONNECTOR for jar in jars(part, is_whole=False)]


class Broker(Server):
    """One broker with its own defaults, which also keeps its own metadata. Topics have four partitions."""

    program = "java"
    account = "root"
    """That is: whoever runs the bench. No package brings an account for it."""
    stop_signals: ClassVar[dict[StopMode, signal.Signals]] = {
        "fast": signal.SIGTERM,
        "immediate": signal.SIGKILL,
    }

    @property
    def servers(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        self._java = [
            str(installed("java")),
            "-Xmx1g",
            "-cp",
            str(jars(BROKER, is_whole=True)[0].parent / "*"),
        ]
        self._controller = free_port()
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._run([*self._java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._settings()])

    def _command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", self._settings()]

    def _settings(self) -> str:
        """A file of settings, with the port as it is now."""
        file = self.folder / "server.properties"
        file.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{self._controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={self._data}\n"
            "offsets.topic.replication.factor=1\n"
            "num.partitions=4\n"
        )
        return str(file)

    def _is_ready(self) -> bool:
        """It says nothing of itself, since no logger comes with its parts; but the port must be its own."""
        with suppress(psutil.Error):
            return any(
                one.status == psutil.CONN_LISTEN and one.laddr.port == self.port
                for one in psutil.Process(self.pid).net_connections(kind="tcp")
            )
        return False

    def _url(self, database: str) -> str:
        return f"kafka://{self.servers}/{database}"

    # Topics are made when they are written to.
    def _create_database(self, name: str) -> None:
        pass

    def _drop_database(self, name: str) -> None:
        pass
