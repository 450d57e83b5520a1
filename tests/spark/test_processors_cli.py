"""`shoal work --engine spark`, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.cli.exits import exit_code_of
from tests.scenario.programs import PROGRAM

PROCESSOR: Final = """
import json, os, shoal

class Billing(shoal.Processor):
    def process(self, batch, checkpointer):
        with open(os.environ["DIARY"], "a") as diary:
            diary.write("".join(f"{batch.shard} {record.offset}\\n" for record in batch))
        checkpointer.save()
"""


@pytest.fixture
def hub(sqlite_url: str) -> Iterator[shoal.Hub]:
    with shoal.connect(sqlite_url) as hub:
        yield hub


def test_it_works_until_it_is_asked_to_stop_and_then_hands_over(
    hub: shoal.Hub, sqlite_url: str, tmp_path: Path
) -> None:
    hub.create_stream("orders", shards=2)
    hub.append("orders", 0, [b"a"] * 30)
    hub.append("orders", 1, [b"b"] * 20)
    code, out, err = _stopped_when(lambda: _is_done(hub), sqlite_url, tmp_path, PROCESSOR)
    assert code == 0, err
    assert out.startswith("50 records in "), (out, err)
    assert "billing of orders: " in err
    assert hub.describe_group("orders", "billing").members == ()
    lines = (tmp_path / "diary").read_text().splitlines()
    assert sorted(lines) == sorted([f"0 {n}" for n in range(30)] + [f"1 {n}" for n in range(20)])


def test_a_batch_that_does_not_end_in_time_is_no_clean_stop(
    hub: shoal.Hub, sqlite_url: str, tmp_path: Path
) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"a"])
    diary = tmp_path / "diary"
    endless = PROCESSOR + "        import time; time.sleep(300)\n"
    code, _, err = _stopped_when(diary.exists, sqlite_url, tmp_path, endless, "--stop-timeout", "1s")
    assert code == exit_code_of("DrainTimeout") != 0, err
    assert "error: DrainTimeout: timeout=1: " in err
    assert "still holds its shards, since its batch has not ended" in err


def _stopped_when(
    condition: Callable[[], bool], url: str, folder: Path, processor: str, *options: str
) -> tuple[int, str, str]:
    """The program, asked to stop when it is so: how it ended, and what it said."""
    (folder / "billing.py").write_text(processor)
    program = [PROGRAM, "work", "billing.py:Billing", "--engine", "spark"]
    command = [*program, "--stream", "orders", "--group", "billing", "--master", "local[1]", *options]
    quiet = ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    process = subprocess.Popen(
        [*command, *quiet],
        cwd=folder,
        env={**os.environ, "SHOAL_HUB": url, "DIARY": str(folder / "diary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    return process.returncode, out, err


def _is_done(hub: shoal.Hub) -> bool:
    groups = [group.name for group in hub.list_groups("orders")]
    return "billing" in groups and hub.describe_group("orders", "billing").lag == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "spark", "--processes", "2"], "processes=2"),
        (["--engine", "spark", "--lanes", "processes"], "lanes="),
        (["--engine", "spark", "--conf", "spark.cores"], "KEY=VALUE"),
        (["--master", "local[2]"], "it is for --engine spark"),
        (["--engine", "spark", "--metrics-host", "::1"], "metrics_host="),
        (["--metrics-host", "::1"], "without --metrics-port"),
        (["--engine", "spark", "--processor", "x"], "No such option"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    sqlite_url: str, words: list[str], said: str, hub: shoal.Hub
) -> None:
    hub.create_stream("orders", shards=1)
    command = ["work", "tests.spark.diary:Writer", "--stream", "orders", "--group", "g", "--hub", sqlite_url]
    result = CliRunner().invoke(app, [*command, *words])
    assert result.exit_code != 0
    assert said in f"{result.output} {result.exception}"


def test_a_master_that_is_none_is_answered_with_one_line_of_ours(
    java: None, sqlite_url: str, hub: shoal.Hub, tmp_path: Path
) -> None:
    (tmp_path / "billing.py").write_text(PROCESSOR)
    hub.create_stream("orders", shards=1)
    command = [PROGRAM, "work", "billing.py:Billing", "--stream", "orders", "--group", "g"]
    ended = subprocess.run(
        [*command, "--hub", sqlite_url, "--engine", "spark", "--master", "nonsense"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: Spark does not begin: "), ended.stderr


def test_without_spark_it_says_what_to_install(
    sqlite_url: str, hub: shoal.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("orders", shards=1)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("shoal.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    command = ["work", "json:dumps", "--stream", "orders", "--group", "g", "--hub", sqlite_url]
    result = CliRunner().invoke(app, [*command, "--engine", "spark"])
    assert result.exit_code != 0
    assert "pip install 'shoal[spark]'" in f"{result.output} {result.exception}"
