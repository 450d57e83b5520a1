"""`shoal work` as real processes: everything is consumed, through a kill -9, and the end is clean."""

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

import shoal
from shoal.fleet.child import Reporter
from shoal.fleet.expelling import Expeller
from shoal.fleet.messages import Report, parse
from shoal.testing.members import eventually, holds
from tests.scenario.programs import PROGRAM, Run, Start, finish

WORD_COUNT: Final = f"{Path(__file__).parents[2] / 'examples' / 'word_count' / 'word_count.py'}:WordCount"
PATIENCE_S: Final = 60.0


@pytest.fixture(autouse=True)
def words(
    hub: shoal.Hub, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], dict[str, int]]:
    """What the example has counted so far."""
    path = tmp_path / "words.db"
    monkeypatch.setenv("SHOAL_HUB", sqlite_url)
    monkeypatch.setenv("WORD_COUNTS", str(path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    hub.create_stream("lines", shards=4)

    def counted() -> dict[str, int]:
        return rows_of(path, "SELECT word, count FROM words")

    return counted


def rows_of(path: Path, query: str) -> dict[Any, int]:
    with closing(sqlite3.connect(path, timeout=PATIENCE_S)) as file:
        return dict(file.execute(query))


def send(hub: shoal.Hub, count: int) -> None:
    with hub.producer("lines") as producer:
        for number in range(count):
            producer.send(f"word line-{number % 10}", key=f"{number}")


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def wait_for(lines: Iterator[dict[str, Any]], is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first line that is it. A program that ends fails the test, one that hangs is the timeout's."""
    seen = []
    for line in lines:
        seen.append(line)
        if is_it(line):
            return line
    raise AssertionError(seen[-5:])


def is_event(what: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line["type"] == "event" and line["event"] == what


def all_hold(line: dict[str, Any]) -> bool:
    return line["type"] == "status" and all(one["shards"] for one in line["processes"])


def test_two_processes_consume_what_is_there_and_end(
    hub: shoal.Hub, run: Run, words: Callable[[], dict[str, int]]
) -> None:
    send(hub, 5000)
    done = run(
        "work", WORD_COUNT, "-s", "lines", "-g", "words", "-n", "2", "--name", "w", "--until", "now", "--json"
    )
    assert words() == {"word": 5000} | {f"line-{n}": 500 for n in range(10)}
    *_, status, end = (json.loads(line) for line in done.stdout.splitlines())
    assert (end["type"], end["records"], end["exit_code"]) == ("end", 5000, 0)
    assert (status["type"], status["records"], status["lag"], status["state"]) == ("status", 5000, 0, "empty")
    assert [(one["name"], one["state"]) for one in status["processes"]] == [
        ("w-1", "drained"),
        ("w-2", "drained"),
    ]
    assert hub.describe_group("lines", "words").lag == 0


def test_a_killed_process_is_started_again_and_a_stop_leaves_nothing_to_repeat(
    hub: shoal.Hub, start: Start, words: Callable[[], dict[str, int]], tmp_path: Path
) -> None:
    program = start(
        "work", WORD_COUNT, "--stream", "lines", "--group", "words", "--processes", "2", "--name", "w",
        "--timeout", "1s", "--every", "200ms", "--json",
    )  # fmt: skip
    lines = lines_of(program)
    victim = wait_for(lines, all_hold)["processes"][0]
    send(hub, 1000)
    os.kill(victim["pid"], signal.SIGKILL)
    send(hub, 1000)
    died = wait_for(lines, is_event("died"))
    assert (died["process"], died["detail"]) == ("w-1", "SIGKILL")
    assert 0 <= died["restart_in_s"] <= 1.0
    again = wait_for(lines, lambda line: all_hold(line) and line["processes"][0]["restarts"] == 1)
    assert again["processes"][0]["pid"] != victim["pid"]
    send(hub, 1000)
    wait_for(
        lines, lambda line: line["type"] == "status" and line["lag"] == 0 and words().get("word") == 3000
    )
    program.send_signal(signal.SIGTERM)
    code, out, err = finish(program)
    assert (code, err) == (0, b"")
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["state"] for one in told[-2]["processes"]] == ["stopped", "stopped"]
    # Nobody is there any more, and what was counted is what is saved.
    info = hub.describe_group("lines", "words")
    assert (info.state, info.members, info.lag) == ("empty", (), 0)
    counted = rows_of(tmp_path / "words.db", "SELECT shard, next FROM done")
    assert counted == {shard.id: shard.checkpoint for shard in info.shards}
    assert words() == {"word": 3000} | {f"line-{n}": 300 for n in range(10)}


def test_processes_leave_when_their_supervisor_is_killed(hub: shoal.Hub, start: Start) -> None:
    program = start("work", WORD_COUNT, "-s", "lines", "-g", "words", "--every", "200ms", "--json")
    (worker,) = wait_for(lines_of(program), all_hold)["processes"]
    child = psutil.Process(worker["pid"])
    program.kill()
    child.wait(PATIENCE_S)
    assert hub.describe_group("lines", "words").members == ()


def test_a_second_ctrl_c_ends_user_code_that_hangs_at_once(
    hub: shoal.Hub, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(
        "import time\n\ndef hang(batch, checkpointer):\n    print('hangs', flush=True)\n    time.sleep(600)\n"
    )
    hub.append("lines", 0, [b"x"])
    program = start("work", f"{tmp_path / 'hanging.py'}:hang", "-s", "lines", "-g", "words")
    assert program.stdout is not None
    assert any(line == b"hangs\n" for line in program.stdout)
    program.send_signal(signal.SIGINT)
    assert any(b"stopping; a second Ctrl-C stops at once" in line for line in program.stdout)
    program.send_signal(signal.SIGINT)
    code, out, _ = finish(program)
    assert code == 130
    assert b"is killed" in out


def test_a_policy_of_stop_ends_it_and_a_terminal_shows_why(hub: shoal.Hub, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(
        "def fail(batch, checkpointer):\n    print('it comes', flush=True)\n    raise KeyError('poison')\n"
    )
    hub.append("lines", 0, [b"x"])
    seen = at_terminal(
        "work", f"{tmp_path / 'failing.py'}:fail", "-s", "lines", "-g", "words", "--name", "w",
        "--failure", "stop", exits=1,
    )  # fmt: skip
    assert "w-1: it comes" in seen
    assert "warning: w-1: process of shard 0 raised KeyError: 'poison' (failing.py:3)" in seen
    assert "w-1 failed: shard=0: the processor raised KeyError: 'poison'" in seen
    assert "\x1b[2K" in seen  # The table was drawn again in its place.
    assert hub.describe_group("lines", "words").members == ()


def at_terminal(*words: str, exits: int) -> str:
    """What a person sees, from the start to the end."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"COLUMNS": "200"}
    )
    os.close(theirs)
    seen, until_s = b"", time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until_s:
            seen += os.read(mine, 4096)
    except OSError:  # Linux says so when the other end is closed.
        pass
    finally:
        process.kill()
        os.close(mine)
    assert process.wait() == exits, seen.decode()
    return seen.decode()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "Missing"),
        (["no_such:Thing", "-s", "lines", "-g", "g"], 6, "there is no module 'no_such'"),
        (["json:dumps", "-s", "lines", "-g", "g"], 6, "a Processor class, a factory"),
        ([WORD_COUNT + "s", "-s", "lines", "-g", "g"], 6, "has no 'WordCounts'; it has WordCount"),
        ([WORD_COUNT, "-s", "nothing", "-g", "g"], 3, "stream='nothing'"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--no-create-group"], 3, "group='g'"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--until", "noon"], 6, "until='noon'"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "-n", "0"], 2, "--processes"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--name", "a b"], 6, "name='a b-1'"),
        ([WORD_COUNT, "-s", "lines", "-g", "g g"], 6, "group='g g'"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--stop-timeout", "soon"], 6, "stop_timeout='soon'"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--ahead-bytes", "0"], 6, "ahead_bytes"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--failure", "skip"], 2, "--failure"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--max-attempts", "0"], 6, "max_attempts"),
        ([WORD_COUNT, "-s", "lines", "-g", "g", "--start", "soon"], 6, "start='soon'"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_started(
    run: Run, hub: shoal.Hub, arguments: list[str], code: int, said: str
) -> None:
    assert said in run("work", *arguments, exits=code).stderr
    assert hub.list_groups("lines") == []


def test_the_shards_of_a_killed_process_move_at_once_and_not_after_the_timeout(
    hub: shoal.Hub, start: Start
) -> None:
    program = start(
        "work", WORD_COUNT, "-s", "lines", "-g", "words", "-n", "2", "--name", "w", "--timeout", "60s",
        "--every", "200ms", "--json",
    )  # fmt: skip
    lines = lines_of(program)
    victim = wait_for(lines, all_hold)["processes"][0]
    began_s = time.monotonic()
    os.kill(victim["pid"], signal.SIGKILL)
    wait_for(
        lines,
        lambda line: (
            line["type"] == "status"
            and line["state"] == "stable"
            and sum(len(one["shards"]) for one in line["processes"] if one["pid"] != victim["pid"]) == 4
        ),
    )
    assert time.monotonic() - began_s < 20, "far less than the timeout of a minute"
    send(hub, 100)
    wait_for(lines, lambda line: line["type"] == "status" and line["lag"] == 0 and line["records"] >= 100)
    program.send_signal(signal.SIGTERM)
    assert finish(program)[0] == 0


def test_where_a_worker_sits_is_told_before_its_user_code_runs(hub: shoal.Hub) -> None:
    """A process that its processor ends at once is then expelled like any other."""
    reports, theirs = os.pipe()
    os.set_blocking(reports, False)
    reporter = Reporter(theirs)
    told: list[bytes] = []

    class Fatal(shoal.Processor):
        def initialize(self, shard: int) -> None:
            told.append(os.read(reports, 65536) if not told else b"")

        def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None: ...

    worker = shoal.Worker(hub, "lines", "words", Fatal, listener=lambda *_: reporter.see_seats(worker))
    with worker:
        eventually(lambda: len(told) == 4, "all shards are held")
        (line,) = told[0].splitlines()
        report = parse(line)
        assert isinstance(report, Report)
        assert report.seats == tuple(worker.seats) != ()
    os.close(reports)
    os.close(theirs)


def test_lanes_in_processes_and_figures_of_the_whole_fleet(
    hub: shoal.Hub, start: Start, words: Callable[[], dict[str, int]]
) -> None:
    program = start(
        "work", WORD_COUNT, "-s", "lines", "-g", "words", "-n", "2", "--name", "w", "--lanes", "processes",
        "--lane-processes", "1", "--metrics-port", "0", "--every", "200ms", "--json",
    )  # fmt: skip
    assert program.stderr is not None
    note = program.stderr.readline().decode()
    url = note.split()[-1]
    assert url.startswith("http://127.0.0.1:"), note
    lines = lines_of(program)
    workers = wait_for(lines, all_hold)["processes"]
    send(hub, 1000)
    wait_for(lines, lambda line: line["type"] == "status" and line["records"] == 1000 and line["lag"] == 0)
    children = [child for one in workers for child in psutil.Process(one["pid"]).children(recursive=True)]
    assert len(children) == 2, "one for each worker"
    samples = scrape(url)
    assert sum(samples["shoal_worker_records_total", f"w-{n}", ""] for n in (1, 2)) == 1000
    assert [samples["shoal_worker_restarts_total", f"w-{n}", ""] for n in (1, 2)] == [0, 0]
    held = [shard for name, _, shard in samples if name == "shoal_worker_lag_records"]
    assert sorted(held) == ["0", "1", "2", "3"]
    program.send_signal(signal.SIGTERM)
    assert finish(program)[0] == 0
    assert words()["word"] == 1000
    assert not any(child.is_running() for child in children)


def scrape(url: str) -> dict[tuple[str, str, str], float]:
    """Values by name, consumer and shard."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - of the program under test
        text = answer.read().decode()
    return {
        (sample.name, sample.labels["consumer"], sample.labels.get("shard", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_place_of_a_dead_consumer_is_given_up_for_it_and_what_is_gone_is_no_fault(hub: shoal.Hub) -> None:
    hub.create_group("lines", "words", timeout=60.0)
    dead = hub.join_group("lines", "words", "dead")
    holds(dead, range(4))
    heir = hub.join_group("lines", "words", "heir")
    dead.abandon()
    expeller = Expeller(hub)
    try:
        expeller.expel([(10**6, "of.nobody"), (dead.group_id, dead.incarnation)])
        holds(heir, range(4))
        expeller.expel([(dead.group_id, dead.incarnation)])
    finally:
        expeller.close(PATIENCE_S)
        heir.leave()
    assert [note.kind for _, note in hub.group_history("lines", "words")].count("left") == 2
