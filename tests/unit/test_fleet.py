"""The words and figures of a fleet: jobs and reports on their way, totals through restarts, how it looks."""

from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from shoal.cli.exits import ExitCode, exit_code_of
from shoal.cli.work_output import fleet_view, happening_text, shards_text, state_text, status_json
from shoal.core.errors import ProcessorFailed, StoreUnavailable, UnknownStream
from shoal.core.restarting import Ending, Stage
from shoal.core.retry import FailureRules, Policy
from shoal.fleet.messages import Farewell, Job, Report, farewell_of, parse
from shoal.fleet.supervisor import Happening, Standing
from shoal.fleet.tally import Tally


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start": "latest", "until": "now", "stop_timeout": 1.5, "create_group": False},
        {"start": datetime(2026, 1, 31, 8, tzinfo=UTC)},
        {"start": {0: 5, 3: 120}},
        {"failure": FailureRules(policy=Policy.BEST_TRIED, max_attempts=7)},
        {"failure": FailureRules(max_attempts=7)},
    ],
)
def test_a_job_arrives_as_it_was_sent(options: dict[str, Any]) -> None:
    job = Job(
        processor="shop:Billing",
        hub="sqlite:///x.db",
        leases=None,
        stream="orders",
        group="billing",
        name="w-1",
        options=options,
        report_s=1.0,
    )
    line = job.to_line()
    assert line.count(b"\n") == 1
    assert Job.of_line(line) == job


def test_reports_and_farewells_arrive_as_they_were_sent() -> None:
    report = Report(shards={3: "processing"}, seats=((7, "w-1.abc"),), records=5, failures=1)
    farewell = Farewell(ending=Ending.FAILED, kind="ProcessorFailed", text="shard=0: …")
    assert parse(report.to_line()) == report
    assert parse(farewell.to_line()) == farewell


def test_an_error_that_lasts_is_a_failure_and_any_other_a_death() -> None:
    assert farewell_of(ProcessorFailed(shard=0, kind="KeyError", text="x")).ending is Ending.FAILED
    assert farewell_of(StoreUnavailable("away")).ending is Ending.DIED
    assert farewell_of(RuntimeError("two\nlines")) == Farewell(
        ending=Ending.DIED, kind="RuntimeError", text="two lines"
    )


def test_the_error_of_another_process_has_the_code_that_it_has_here() -> None:
    assert exit_code_of(UnknownStream.__name__) is ExitCode.NOT_FOUND
    assert exit_code_of("ProcessorFailed") is ExitCode.FAILURE
    assert exit_code_of("RuntimeError") is ExitCode.FAILURE
    assert exit_code_of("Sequence") is ExitCode.FAILURE


def test_totals_go_on_through_restarts_and_rates_are_of_the_last_seconds() -> None:
    tally = Tally()
    tally.began(0)
    for second in range(11):
        tally.heard(Report(shards={}, records=100 * second), 1000 * second)
    assert (tally.total("records"), tally.rate) == (1000, 100.0)
    tally.heard(Report(shards={}, records=2000), 11_000)
    assert tally.rate == 280.0
    tally.began(12_000)
    assert (tally.total("records"), tally.rate) == (2000, 0.0)
    tally.heard(Report(shards={}, records=7, failures=2), 13_000)
    assert (tally.total("records"), tally.total("failures")) == (2007, 2)


@pytest.mark.parametrize(
    ("shards", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([3, 1, 2, 0, 7], "0-3 7"),
        (range(0, 100, 2), "0 2 4 6 8 10 …"),
        (range(4096), "0-4095"),
    ],
)
def test_shards_are_shown_as_runs_and_cut_when_there_are_many(shards: Any, text: str) -> None:
    assert shards_text(shards) == text


def standing(**changes: Any) -> Standing:
    values: dict[str, Any] = {
        "name": "w-1",
        "pid": 42,
        "stage": Stage.RUNNING,
        "silent_ms": 0,
        "start_in_ms": 0,
        "shards": {0: "processing", 1: "processing"},
        "records": 1234,
        "rate": 10.0,
        "failures": 0,
        "retries": 0,
        "dead": 0,
        "lost": 0,
        "restarts": 0,
        "error": "",
    }
    return Standing(**values | changes)


def test_a_process_says_what_it_does() -> None:
    assert state_text(standing()) == "running"
    assert state_text(standing(silent_ms=7000)) == "silent 7.0s"
    assert state_text(standing(stage=Stage.WAITING, start_in_ms=1500)) == "restart in 1.5s"
    assert state_text(standing(stage=Stage.GIVEN_UP)) == "given up"


def test_a_fleet_fits_a_hundred_and_twenty_columns() -> None:
    many = [
        standing(
            name=f"some-host-12345-{n}",
            pid=4_000_000 + n,
            shards=dict.fromkeys(range(0, 64, 2), ""),
            records=123_456_789,
            rate=123_456.0,
        )
        for n in (1, 2)
    ]
    many.append(standing(name="some-host-12345-3", stage=Stage.WAITING, start_in_ms=12_000, restarts=9))
    out = StringIO()
    Console(file=out, width=120).print(fleet_view("billing of orders", many, None))
    lines = out.getvalue().splitlines()
    assert "2 running, 1 waiting, 66 shards held, 246,914,812 records, 246,922/s" in out.getvalue()
    assert sum("some-host-12345-" in line for line in lines) == 3


def test_the_status_of_a_group_that_nobody_can_see_has_no_lag() -> None:
    status = status_json([standing()], None)
    assert (status["lag"], status["processes"][0]["lag"], status["records"]) == (None, None, 1234)


def test_what_happens_is_a_sentence() -> None:
    died = Happening(what="died", name="w-1", pid=42, detail="SIGKILL", restart_in_ms=500)
    assert happening_text(died) == "w-1 died (pid 42): SIGKILL; started again in 0.5s"
    failed = Happening(what="failed", name="w-1", pid=42, detail="bad\nworse")
    assert happening_text(failed) == "w-1 failed: bad\\nworse; it is not started again"
