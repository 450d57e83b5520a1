"""One Spark session of two cores for all tests of Spark: a JVM takes seconds to start."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shoal.testing.servers import PostgresServer
from shoal.testing.spark_home import make_quick_home

_FOLDER = tempfile.TemporaryDirectory(prefix="shoal-spark-home-")
os.environ["SPARK_HOME"] = str(make_quick_home(Path(_FOLDER.name) / "home"))
# A JVM that lives for a minute is not worth what its second compiler costs.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))


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
