"""Programs that bring a Spark of their own: the examples, and a client of Spark Connect."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shoal

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["cluster", "spark_pipeline"])
def test_an_example_prints_what_its_readme_says(name: str) -> None:
    text = (ROOT / "examples" / name / "README.md").read_text()
    shown = re.search(r"```console\n\$ python (.+)\n([^`]*)```", text)
    assert shown is not None
    done = subprocess.run(
        [sys.executable, *shown[1].split()],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == shown[2]


def test_a_client_of_spark_connect_writes_and_reads(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub:
        hub.create_stream("orders", shards=2)
        hub.create_stream("copies", shards=2)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in {"SPARK_HOME", "SPARK_SUBMIT_OPTS"} or not name.startswith("SPARK")
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("connect_program.py")), sqlite_url],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["read", "100", "copied", "100"]
