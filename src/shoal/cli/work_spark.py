"""`shoal work --engine spark`: the same processor on Spark's executors, as a streaming query.

It starts a session, or uses the one of spark-submit, starts the query, tells how it goes, and has it drained
when it is asked to stop. What the query does is `shoal.spark`'s.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from shoal import Hub, connect
from shoal.cli import output
from shoal.cli.exits import ExitCode, exit_code_of
from shoal.cli.work_asked import Asked, see_group
from shoal.core.errors import InvalidInput, MissingPackage, ShoalError
from shoal.fleet.loading import load
from shoal.stopping import heeding_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_S: Final = 0.2
_COUNT_S: Final = 3.0
"""Spark keeps the figures of the last hundred batches, and some ten are in a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSetting:
    """What Spark itself is told."""

    master: str | None
    conf: Sequence[str]
    checkpoint: str | None
    """A folder."""


def work_on_spark(work: Asked, setting: SparkSetting) -> None:
    """Run the query until it ends, or is stopped by a signal."""
    try:
        from shoal.spark import drain, reason, run  # noqa: PLC0415 - it needs a package that may not be there
    except ImportError as error:
        raise MissingPackage(part="--engine spark", package="pyspark", extra="spark") from error
    conf = _conf(setting.conf)
    processor = _loaded(work.processor)
    if setting.checkpoint is None:
        output.note(
            "Spark keeps a temporary checkpoint (--checkpoint FOLDER); how far it is, the group knows"
        )
    began_s = time.monotonic()
    with connect(work.hub, leases=work.leases) as hub:  # What can be refused is refused before Spark starts.
        see_group(hub, work)
    with _in_a_line():
        spark = _session(work, setting.master, conf)
    asked = threading.Event()
    failed: str | None = None
    try:
        with connect(work.hub, leases=work.leases) as hub, heeding_signals(_heard(asked)):
            with _in_a_line():
                query = run(
                    spark,
                    stream=work.stream,
                    group=work.group,
                    processor=processor,
                    hub=work.hub,
                    leases=work.leases,
                    name=work.name,
                    checkpoint=setting.checkpoint,
                    **work.options,
                )
            told = Telling(query, hub, work)
            while query.isActive and not asked.wait(_LOOK_S):
                told.now_and_then()
            if query.isActive:
                output.note("stopping: the batch is finished, and all is handed over")
                try:
                    drain(query, hub, timeout=work.stop_timeout_s)
                except ShoalError as error:
                    failed = f"{type(error).__name__}: {error}"
                query.stop()
            told.count()
            ended = query.exception()
            failed = failed if ended is None else reason(ended)
    finally:
        spark.stop()
    _conclude(work, told.records, time.monotonic() - began_s, failed)


class Telling:
    """Tells how the query goes: a line now and then."""

    def __init__(self, query: StreamingQuery, hub: Hub, work: Asked) -> None:
        self.records = 0
        self._query, self._hub, self._work = query, hub, work
        self._batch = -1
        self._due_s = self._counted_s = 0.0

    def now_and_then(self) -> None:
        """A line, if it is time for one."""
        if time.monotonic() >= self._counted_s + _COUNT_S:
            self.count()
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + self._work.every_s
        self.count()
        work = self._work
        try:
            group = self._hub.describe_group(work.stream, work.group)
        except ShoalError as error:
            output.note(f"{work.group} of {work.stream}: {error}")
            return
        blocked = [shard for shard in group.shards if shard.blocked is not None]
        if work.as_json:
            output.print_json(
                {"type": "progress", "records": self.records, "lag": group.lag, "blocked": len(blocked)}
            )
            return
        held = "; ".join(f"shard {shard.id}: {shard.blocked.error}" for shard in blocked if shard.blocked)
        output.note(
            f"{work.group} of {work.stream}: {self.records:,} records, {group.lag:,} to come"
            + (f", held up at {held}" if held else "")
        )

    def count(self) -> None:
        """Add what the batches since the last time have processed."""
        self._counted_s = time.monotonic()
        for progress in self._query.recentProgress:
            if progress["batchId"] > self._batch:
                figures = progress["observedMetrics"].get("shoal")
                if figures is not None:
                    self._batch = progress["batchId"]
                    self.records += figures["records"] or 0


def _conclude(work: Asked, records: int, seconds: float, failed: str | None) -> None:
    code = ExitCode.OK
    if failed is not None:
        code = max(exit_code_of(failed.partition(":")[0]), ExitCode.FAILURE)
    if work.as_json:
        output.print_json(
            {"type": "end", "records": records, "seconds": round(seconds, 3), "exit_code": int(code)}
        )
    else:
        typer.echo(f"{records:,} records in {seconds:,.1f} s on Spark")
    if code:
        if failed is not None:
            typer.echo(f"error: {failed}", err=True)
        raise typer.Exit(code)


def _loaded(target: str) -> object:
    """The user's processor. One that is in a file goes to executors by value: they need not have the file."""
    from pyspark import cloudpickle  # noqa: PLC0415 - as above

    found = load(target)
    module = sys.modules.get(getattr(found, "__module__", ""))
    if target.rpartition(":")[0].endswith(".py") and module is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return found


@contextmanager
def _in_a_line() -> Iterator[None]:
    """What Spark refuses to begin, without the wall of Java's."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from shoal.spark import reason  # noqa: PLC0415

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise ShoalError(f"Spark does not begin: {reason(error)}") from error


def _session(work: Asked, master: str | None, conf: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # What can be imported here, executors of this machine can import too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.appName(f"shoal {work.group} of {work.stream}")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is not None:
        builder = builder.master(master)
    elif not is_submitted and "spark.master" not in conf:
        builder = builder.master("local[*]")
    usual = {"spark.ui.showConsoleProgress": "false", "spark.python.unix.domain.socket.enabled": "true"}
    for key, value in {**usual, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(conf.get("spark.log.level", "FATAL"))
    return spark


def _conf(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.strip():
            raise InvalidInput("conf", one, "KEY=VALUE, such as spark.executor.memory=4g")
        found[key.strip()] = value
    return found


def _heard(asked: threading.Event) -> Callable[[signal.Signals], None]:
    """Asks for a stop; the second time it ends it at once."""

    def ask(_: signal.Signals) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    return ask
