"""One Spark session of two cores for all tests of Spark: a JVM takes seconds to start."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import shoal
from shoal.spark.data_source import schema_of
from shoal.spark.hubs import close_hubs
from shoal.spark.source_options import source_options
from shoal.spark.stream_reader import ShoalStreamReader
from shoal.testing.servers import PostgresServer
from tests.spark.shared_classes import shared_home

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session", autouse=True)
def _quick_jvms() -> None:
    """Every JVM of Spark that a test starts, itself or through a program, starts as soon as it can."""
    if shutil.which("java") is None:
        return  # Who needs one says so.
    home, options = shared_home()
    os.environ["SPARK_HOME"] = str(home)
    os.environ["SPARK_SUBMIT_OPTS"] = os.environ["SPARK_DAEMON_JAVA_OPTS"] = options


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of Spark's own: it does not yet fully support pandas 3.
        session = (
            SparkSession.builder.master("local[2]")
            .appName("shoal")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", str(tmp_path_factory.mktemp("spark")))
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    yield session
    session.stop()


@pytest.fixture
def spark_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A database on PostgreSQL, for a test that may stop the server."""
    made = postgres_server.fresh_database()
    yield made
    if not postgres_server.is_running:
        postgres_server.start()
    postgres_server.drop_database(made)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """The folder of one query's own checkpoint."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def hub(store_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(store_url) as hub:
        yield hub


@pytest.fixture
def begin(store_url: str) -> Iterator[Callable[..., ShoalStreamReader]]:
    """Makes sources of streaming queries on the stream `orders`, which end with the test."""
    begun: list[ShoalStreamReader] = []

    def start(**options: Any) -> ShoalStreamReader:
        given = {"hub": store_url, "stream": "orders"} | {name: str(value) for name, value in options.items()}
        begun.append(ShoalStreamReader(source_options(given, is_streaming=True), schema_of(given)))
        return begun[-1]

    yield start
    for reader in begun:
        reader.stop()
    close_hubs()
