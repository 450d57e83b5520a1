"""Why a query failed, in one line of what Spark raised."""

from __future__ import annotations

import pytest

from shoal.spark.reasons import reason

OURS = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: it failed. SQLSTATE: XXKST
Traceback (most recent call last):
  File "reader.py", line 1, in latestOffset
shoal.core.errors.UnknownStream: stream='orders': there is no such stream

\tat org.apache.spark.sql.Dataset.count(Dataset.scala:1)
"""
JAVAS = """An error occurred while calling o71.start.
: java.io.IOException: mkdir of file:/proc/nope failed
\tat org.apache.hadoop.fs.FileSystem.primitiveMkdir(FileSystem.java:1414)
"""
PYTHONS = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Traceback (most recent call last):
  File "job.py", line 1, in parse
ValueError: no number
"""


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (OURS, "UnknownStream: stream='orders': there is no such stream"),
        (JAVAS, "java.io.IOException: mkdir of file:/proc/nope failed"),
        (PYTHONS, "ValueError: no number"),
        ("\nit failed\n", "it failed"),
    ],
)
def test_the_line_that_says_why_is_found(said: str, line: str) -> None:
    assert reason(said) == line
