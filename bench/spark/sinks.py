"""Writes: against a sink in Python that discards, and one that only writes to SQLite."""

from __future__ import annotations

from pyspark.sql import DataFrame

from bench.spark.data import TYPED
from bench.spark.peers import make_bare
from bench.spark.session import Bench


def sink(bench: Bench) -> None:
    """Rows of parquet into the log, against a sink that drops them, and one that only writes to SQLite.

    The log is at the limit of its retention: what is written takes the room of what is forgotten. A file
    that grows also asks the machine for memory to keep it in, which on some costs more than the write.
    """
    number = iter(range(1_000_000))
    bare = bench.folder / "bare.db"
    written: list[str] = []
    for what, frame, options in (
        ("log rows", bench.log.drop("offset"), {}),
        ("typed columns", bench.typed, {"keyColumn": "customer"}),
    ):

        def ours(frame: DataFrame = frame, options: dict[str, str] = options) -> None:
            name = f"sink-{next(number)}"
            bench.hub.create_stream(name, shards=4, schema=TYPED if options else None)
            bench.write(frame, name, **options)
            written.append(name)

        def theirs(frame: DataFrame = frame) -> None:
            frame.write.format("discard").mode("append").save()

        def barely(frame: DataFrame = frame) -> None:
            frame.write.format("bare").option("file", str(bare)).mode("append").save()

        def forget() -> None:
            for name in written:
                bench.hub.set_retention(name, retention_bytes=1)
                bench.hub.enforce_retention(name)
            written.clear()
            make_bare(bare)

        forget()
        against = "of a sink that discards"
        bench.pair(f"sink, {what}", ours, theirs, against, 0.7, after=forget)
        bench.pair("the same", ours, barely, "of a sink that only writes to SQLite", after=forget)
        bench.pair("a sink that only writes to SQLite", barely, theirs, against, after=forget)
