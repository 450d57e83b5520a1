"""A wall clock that jumps must not matter: this reads the source for whoever looks at one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal

HOUSE = Path(shoal.__file__).parent
WALL = {"time", "time_ns", "now", "today", "utcnow", "localtime", "gmtime", "CLOCK_REALTIME"}
ALLOWED = {
    "consumer/aside.py:put": "the timestamp of a dead letter",
    "spark/ledger.py:written": "the timestamp of a note",
    "spark/sink_task.py:_write_round": "the timestamp of a record that was given none",
    "hub/group_steps.py:now_ms": "notes of the history, for people",
    "hub/local.py:_now_ms": "when something was created or appended, for people and for retention by age",
    "hub/scaler.py:_look": "how old a shard is; at worst it changes once too soon, or late",
    "hub/committer.py:_settle": "when something was appended; it never goes down within a shard",
    "hub/delays.py:_now_ms": "a delayed record is due by the wall clock, as it was asked for",
    "hub/encoding.py:_delayed": "what waits for so long waits no longer when it is set back; see Delays",
    "producer/transaction.py:send": "the timestamp of a record that was given none",
    "hub/ownerless.py:_now_ms": "notes of the history and how old what waits is, for people",
    "hub/broadcast.py:_now_ms": "notes of the history and when a position was saved, for people",
    "hub/burying.py:letters": "the timestamp of a dead letter",
    "hub/shared.py:_now_ms": "when a dead letter was appended; it never goes down within a shard",
    "front/appending.py:_now_ms": "the timestamp of a record that was given none",
    "producer/producer.py:send": "the timestamp of a record that was given none",
    "producer/producer.py:send_batch": "the timestamp of a record that was given none",
    "outbox/outbox.py:row_of": "the timestamp of a record that was given none",
    "hub/leased.py:_record": "notes of the history, for people",
    "remote/signing.py:set_clock": "how far a server's clock is from ours",
    "remote/signing.py:header": "the date of a request; refused, it is signed again by the server's clock",
    "server/access.py:__init__": "how old a request is; set back, the server begins anew under another name",
    "server/logs.py:format": "when a line was logged, for people",
    "server/app.py:_log": "when a request began, for traces",
    "server/sls/asked.py:asked_by": "how old a request is; within a quarter of an hour it is as good as new",
    "server/sls/logs.py:_store": "the timestamp of a record that was given none",
    "server/sls/logs.py:_cursor_time": "the time at the end of a shard, for people",
    "store/sql/lease_rows.py:_stamps": "update_time, for people",
}


def looks(source: str) -> Iterator[str]:
    """Functions in which a wall clock is looked at."""
    tree = ast.parse(source)
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(outer):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    if name in WALL:
                        yield outer.name
                if isinstance(node, ast.Attribute) and node.attr == "CLOCK_REALTIME":
                    yield outer.name


def test_the_wall_clock_is_looked_at_only_where_a_jump_does_no_harm() -> None:
    found = set()
    for room in HOUSE.rglob("*.py"):
        where = room.relative_to(HOUSE).as_posix()
        if not where.startswith(("cli/", "testing/")):
            found |= {f"{where}:{name}" for name in looks(room.read_text())}
    unknown = {one for one in found if one not in ALLOWED and one.partition(":")[0] not in ALLOWED}
    assert not unknown, f"is a jump of the wall clock harmless here? {sorted(unknown)}"
    assert {"consumer/aside.py:put"} == {one for one in found if one.startswith("consumer/")}


@pytest.mark.parametrize(
    "planted",
    [
        "time.time()",
        "time.time_ns()",
        "datetime.now(UTC)",
        "time_ns()",
        "time.clock_gettime(time.CLOCK_REALTIME)",
    ],
)
def test_the_look_at_the_source_catches_a_wall_clock(planted: str) -> None:
    assert list(looks(f"def deadline():\n    return {planted}")) == ["deadline"]
    assert list(looks(f"async def deadline():\n    return {planted}")) == ["deadline"]
    assert list(looks("def deadline():\n    return time.monotonic() + boot_ms()")) == []
