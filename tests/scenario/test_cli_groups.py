"""`shoal group …` in this process: what the commands print, as text and JSON, and how they end."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.consumer import Membership
from shoal.core.describing import Block
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.core.retry import Policy
from tests.scenario.programs import Run, json_of


@pytest.fixture
def orders(hub: shoal.Hub) -> str:
    """A stream of two shards with three records in each."""
    hub.create_stream("orders", shards=2)
    for shard in (0, 1):
        hub.append("orders", shard, [b"a", b"b", b"c"])
    return "orders"


@pytest.fixture
def worker(hub: shoal.Hub, orders: str) -> Iterator[Membership]:
    """A consumer of group `billing` that holds both shards."""
    hub.create_group(orders, "billing")
    with hub.join_group(orders, "billing", "worker-a") as member:
        member.wait(0, timeout=20.0)
        yield member


def described(run: Run, group: str = "billing", *words: str) -> Any:
    return json_of(run("group", "describe", "orders", group, "--json", *words))


def checkpoints(run: Run, group: str = "billing") -> list[int]:
    return [shard["checkpoint"] for shard in described(run, group)["shards"]]


# --- Made, with all settings. -----------------------------------------------------------------------


def test_a_group_is_created_with_its_settings(run: Run, orders: str) -> None:
    made = json_of(
        run(
            *("group", "create", orders, "billing", "--not-in-order", "--timeout", "1m", "--json"),
            *("--handover-timeout", "90", "--strategy", "range", "--start", "latest", "--failure", "stop"),
        )
    )
    assert (made["stream"], made["group"], made["state"]) == ("orders", "billing", "empty")
    assert (made["in_order"], made["timeout_ms"], made["handover_timeout_ms"]) == (False, 60_000, 90_000)
    assert (made["strategy"], made["coordination"], made["delivery"]) == ("range", "coordinated", "exclusive")
    assert made["failure"] == "stop"
    assert (made["lag"], [shard["checkpoint"] for shard in made["shards"]]) == (0, [3, 3])
    assert {**described(run), "version": 0} == {**made, "version": 0}


def test_create_says_what_it_made(run: Run, orders: str) -> None:
    assert run("group", "create", orders, "billing").stdout.splitlines() == [
        "created group billing of orders, from earliest",
        "in order, coordinated, exclusive, strategy balanced, timeout 20s, hand-over timeout none, "
        "failure strict",
    ]


def test_a_leased_group_names_its_table(run: Run, orders: str) -> None:
    words = ("--coordination", "leased", "--lease-table", "mine")
    assert "leased in table mine" in run("group", "create", orders, "billing", *words).stdout
    found = described(run)
    assert (found["coordination"], found["lease_table"]) == ("leased", "mine")
    assert run("group", "update", orders, "billing", "--timeout", "5s").stdout.endswith("timeout 20s → 5s\n")
    run("group", "reset", orders, "billing", "--to", "latest", "--yes")
    assert checkpoints(run) == [3, 3]
    run("group", "delete", orders, "billing", "--yes")
    assert json_of(run("group", "list", "--json")) == []


def test_the_table_of_a_leased_group_may_be_in_another_database(
    run: Run, orders: str, hub: shoal.Hub, sqlite_url: str, tmp_path: Path
) -> None:
    leases = f"sqlite:///{tmp_path / 'leases.db'}"
    run("group", "create", orders, "billing", "--coordination", "leased", "--leases", leases)
    with shoal.connect(sqlite_url, leases=leases) as other, other.join_group(orders, "billing", "worker-a"):
        assert [each["name"] for each in described(run, "billing", "--leases", leases)["members"]] == [
            "worker-a"
        ]
        assert "worker-a" in run("group", "delete", orders, "billing", "--leases", leases, exits=4).stderr


def test_a_group_whose_leases_are_elsewhere_is_listed_beside_the_others(
    run: Run, orders: str, tmp_path: Path
) -> None:
    leases = f"sqlite:///{tmp_path / 'leases.db'}"
    run("group", "create", orders, "billing", "--coordination", "leased", "--leases", leases)
    run("group", "create", orders, "shipping")
    assert [(each["group"], each["state"]) for each in json_of(run("group", "list", "--json"))] == [
        ("billing", "elsewhere"),
        ("shipping", "empty"),
    ]
    assert "give --leases" in run("group", "list").stdout
    run("group", "describe", orders, "billing", exits=6)


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        (["earliest"], [0, 0]),
        (["latest"], [3, 3]),
        (["2020-01-31T08:00Z"], [0, 0]),
        ([f"{datetime.now(UTC).year + 1}-01-31T08:00Z"], [3, 3]),
        (["10m"], [0, 0]),
        (["1=2"], [0, 2]),
        (["0=1", "1=2"], [1, 2]),
    ],
)
def test_a_group_begins_where_it_is_told(run: Run, orders: str, start: list[str], wanted: list[int]) -> None:
    run("group", "create", orders, "billing", *(word for each in start for word in ("--start", each)))
    assert checkpoints(run) == wanted


def test_a_stream_may_have_more_groups_if_one_says_so(run: Run, orders: str) -> None:
    for n in range(5):
        run("group", "create", orders, f"group-{n}")
    assert "5 groups already" in run("group", "create", orders, "another", exits=4).stderr
    run("group", "create", orders, "another", "--groups-per-stream", "6")


# --- Looked at. -------------------------------------------------------------------------------------


def test_list_shows_the_groups_of_one_stream_or_of_all(run: Run, orders: str, worker: Membership) -> None:
    run("stream", "create", "shop/visits", "--shards", "3")
    assert "stream shop/visits has no groups" in run("group", "list", "shop/visits").stderr
    run("group", "create", "shop/visits", "audit")
    lines = run("group", "list").stdout.splitlines()
    (billing,) = (line.split() for line in lines if "billing" in line)
    assert billing[:7] == ["orders", "billing", "stable", "1", "2", "2", "6"]
    found = json_of(run("group", "list", "--json"))
    assert [(each["stream"], each["group"], each["lag"]) for each in found] == [
        ("orders", "billing", 6),
        ("shop/visits", "audit", 0),
    ]
    assert found[0]["lag_s"] > 0
    assert [each["group"] for each in json_of(run("group", "list", "shop/visits", "--json"))] == ["audit"]


def test_describe_shows_settings_members_and_shards(run: Run, orders: str, worker: Membership) -> None:
    worker.checkpoint({0: 2})
    shown = run("group", "describe", orders, "billing").stdout
    for words in ("billing of orders  stable", "1 member, 2 of 2 shards held, 4 records to come", "worker-a"):
        assert words in shown
    for words in ("timeout 20s", "already_alloc", "active", " ago", "in order, coordinated"):
        assert words in shown
    found = described(run)
    (member,) = found["members"]
    assert (member["name"], member["status"], member["shards"]) == ("worker-a", "active", 2)
    assert 0 <= time.time() * 1000 - member["since"] < 60_000
    first = found["shards"][0]
    assert (first["state"], first["owner"], first["checkpoint"], first["lag"]) == (
        "already_alloc",
        "worker-a",
        2,
        1,
    )
    assert first["epoch"] > 0
    assert first["waiting_for"] is None
    assert found["lag"] == 4


def test_describe_shows_who_is_waited_for_and_why(
    run: Run, orders: str, worker: Membership, hub: shoal.Hub
) -> None:
    hub.split_shard(orders, 0)
    with hub.join_group(orders, "billing", "worker-b"):
        shown = run("group", "describe", orders, "billing").stdout
        assert "shards 2 and 3 wait for its ancestors [0] to end" in shown
        assert "shard 1 waits for worker-a to let go of it; worker-b has it next" in shown
        states = {shard["state"]: shard for shard in described(run)["shards"]}
        assert states["transfer"]["next"] == "worker-b"
        assert states["transfer"]["waiting_for"] == "worker-a to let go of it"
        assert described(run)["state"] == "moving"


def test_shards_that_are_over_are_counted_apart(run: Run, orders: str, hub: shoal.Hub) -> None:
    hub.split_shard(orders, 0)
    run("group", "create", orders, "billing", "--start", "latest")
    shown = run("group", "describe", orders, "billing").stdout
    assert "0 of 3 shards held, 1 over, 0 records to come" in shown


def test_describe_shows_what_blocks_a_shard(
    run: Run, orders: str, hub: shoal.Hub, worker: Membership
) -> None:
    group = hub.service.groups.find(stream_name(orders), "billing")
    epoch = worker.leases[ShardId(1)].epoch
    block = Block(epoch=epoch, attempts=3, error="KeyError: [/odd]\n", since_ms=time.time_ns() // 1_000_000)
    hub.service.groups.block(group.id, ShardId(1), block)
    shown = run("group", "describe", orders, "billing").stdout
    assert re.search(r"shard 1 has been blocked for .*, 3 attempts: KeyError: \[/odd\]\\n\n", shown)
    free, blocked = (shard["blocked"] for shard in described(run)["shards"])
    assert free is None
    assert (blocked["error"], blocked["attempts"]) == ("KeyError: [/odd]\n", 3)


def test_what_is_shown_holds_no_control_characters(run: Run, orders: str, worker: Membership) -> None:
    shown = run("group", "list").stdout + run("group", "describe", orders, "billing").stdout
    assert "\x1b" not in shown + run("group", "history", orders, "billing").stdout


# --- Dead letters. ----------------------------------------------------------------------------------


@pytest.fixture
def letters(hub: shoal.Hub) -> list[bytes]:
    """Three records that a group gave up on, with what would act on a terminal or a table."""
    values = [b"zero", b"one\x1b[2J", b"two"]
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [shoal.Record(0, 0, b"[/%d]" % n, one) for n, one in enumerate(values)])

    def refuse(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        raise ValueError("[/odd]\x1b[2J")

    rules = shoal.FailureRules(policy=Policy.BEST_TRIED, max_attempts=1)
    shoal.Worker(hub, "orders", "billing", refuse, failure=rules, until="now").run()
    return values


def test_dead_letters_are_listed_and_shown(run: Run, letters: list[bytes]) -> None:
    shown = run("group", "dead", "list", "orders", "billing").stdout
    assert "\x1b" not in shown
    assert shown.count("ValueError: [/odd]\\x1b[2J") == 3
    assert "[/2]" in shown
    last = json_of(run("group", "dead", "list", "orders", "billing", "--limit", "1", "--json"))
    assert [(one["number"], one["offset"], one["value"]) for one in last] == [(2, 2, "two")]
    assert "value     one\\x1b[2J\n" in run("group", "dead", "show", "orders", "billing", "1").stdout
    one = json_of(run("group", "dead", "show", "orders", "billing", "1", "--json"))
    assert (one["key"], one["value"], one["attempts"]) == ("[/1]", "one\x1b[2J", 1)
    assert "number=7" in run("group", "dead", "show", "orders", "billing", "7", exits=3).stderr


def test_dead_letters_are_replayed_and_dropped(run: Run, letters: list[bytes], hub: shoal.Hub) -> None:
    done = run("group", "dead", "replay", "orders", "billing", "1")
    assert (done.stdout, done.stderr) == ("replayed 1 dead letters\n", "")
    assert [letter.number for letter in hub.dead_letters("orders", "billing")] == [0, 2]
    assert "--yes" in run("group", "dead", "drop", "orders", "billing", "0", exits=2).stderr
    hub.update_group("orders", "billing", failure="strict")
    done = run("group", "dead", "replay", "orders", "billing", "0")
    assert "only workers that are told best_tried get them" in done.stderr
    done = run("group", "dead", "drop", "orders", "billing", "--yes", "--json")
    assert json_of(done) == {"dropped": [2]}
    assert "has no dead letters" in run("group", "dead", "list", "orders", "billing").stderr
    assert hub.describe_stream("orders.billing.retry").shards[0].next_offset == 2


def test_what_is_to_be_tried_again_is_shown(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("orders", shards=1)
    hub.append("orders", 0, [b"one", b"two"])

    def refuse(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        raise ValueError("odd")

    rules = shoal.FailureRules(policy=Policy.BEST_TRIED, delays_s=(3600,))
    shoal.Worker(hub, "orders", "billing", refuse, failure=rules, until="now").run()
    line = "2 records to be tried again in orders.billing.retry: 2 after their delay, 0 now\n"
    assert line in run("group", "describe", "orders", "billing").stdout
    found = described(run)
    assert found["retrying"] == {"stream": "orders.billing.retry", "waiting": 2, "due": 0}
    assert json_of(run("group", "describe", "orders.billing.retry", "billing", "--json"))["retrying"] is None
    assert "; 2 come later\n" in run("stream", "describe", "orders.billing.retry").stdout
    assert json_of(run("stream", "describe", "orders.billing.retry", "--json"))["delayed"] == 2


# --- Changed. ---------------------------------------------------------------------------------------


def test_update_says_what_changed(run: Run, orders: str) -> None:
    run("group", "create", orders, "billing")
    words = ("--timeout", "30", "--handover-timeout", "5m", "--not-in-order")
    assert run("group", "update", orders, "billing", *words).stdout == (
        "updated group billing of orders: in_order yes → no, timeout 20s → 30s, handover_timeout none → 5m\n"
    )
    policy = run("group", "update", orders, "billing", "--failure", "strict")
    assert policy.stdout.endswith(": failure by order → strict\n")
    again = run("group", "update", orders, "billing", "--timeout", "30s")
    assert again.stdout.endswith("nothing changed, it was so already\n")
    done = json_of(run("group", "update", orders, "billing", "--handover-timeout", "none", "--json"))
    assert done["changed"] == {"handover_timeout_ms": {"from": 300_000, "to": None}}
    assert (done["in_order"], done["timeout_ms"], done["handover_timeout_ms"]) == (False, 30_000, None)


def test_update_wants_something_to_change(run: Run, orders: str) -> None:
    run("group", "create", orders, "billing")
    assert "--handover-timeout" in run("group", "update", orders, "billing", exits=2).stderr


# --- Reset. -----------------------------------------------------------------------------------------


def test_a_reset_goes_to_the_beginning_the_end_or_a_time(run: Run, orders: str) -> None:
    run("group", "create", orders, "billing")
    assert run("group", "reset", orders, "billing", "--to", "latest", "--yes").stdout == (
        "reset group billing of orders to latest: 0 records are to come\n"
    )
    assert checkpoints(run) == [3, 3]
    done = json_of(run("group", "reset", orders, "billing", "--to", "2020-01-31T08:00Z", "-y", "--json"))
    at_ms = int(datetime(2020, 1, 31, 8, tzinfo=UTC).timestamp() * 1000)
    assert done == {"stream": "orders", "group": "billing", "to": at_ms, "had_been_read": [], "lag": 6}
    assert checkpoints(run) == [0, 0]


def test_a_reset_names_shards_and_says_which_of_their_descendants_had_been_read(
    run: Run, orders: str, hub: shoal.Hub
) -> None:
    hub.split_shard(orders, 0)
    hub.append(orders, 2, [b"d"])
    hub.append(orders, 3, [b"e"])
    run("group", "create", orders, "billing", "--start", "latest")
    done = run("group", "reset", orders, "billing", "--shard", "0=1", "--shard", "1=2", "--yes")
    assert done.stdout.splitlines() == [
        "reset group billing of orders to offset 1 of shard 0, offset 2 of shard 1: 3 records are to come",
        "read already, and coming after: shards 2 and 3; what was read of them does not come again, "
        "unless they are reset too",
    ]
    assert checkpoints(run) == [1, 2, 1, 1]
    again = json_of(run("group", "reset", orders, "billing", "--shard", "0=0", "--yes", "--json"))
    assert (again["to"], again["had_been_read"]) == ({"0": 0}, [2, 3])


def test_a_reset_works_while_the_group_runs(run: Run, orders: str, worker: Membership) -> None:
    worker.checkpoint({0: 3, 1: 3})
    before = dict(worker.leases)
    run("group", "reset", orders, "billing", "--to", "earliest", "--yes")
    seen = 0
    deadline = time.monotonic() + 20
    while checkpoints(run) != [0, 0] or not all(
        lease.epoch > before[shard].epoch for shard, lease in worker.leases.items()
    ):
        assert time.monotonic() < deadline
        seen = worker.wait(seen, timeout=1.0)
        worker.release({lease.shard: None for lease in worker.leases.values() if not lease.is_wanted})
    assert described(run)["lag"] == 6


def test_a_reset_wants_a_yes_where_nobody_can_be_asked(run: Run, orders: str) -> None:
    run("group", "create", orders, "billing", "--start", "latest")
    assert "--yes" in run("group", "reset", orders, "billing", "--to", "earliest", exits=2).stderr
    assert checkpoints(run) == [3, 3]


# --- Deleted. ---------------------------------------------------------------------------------------


def test_delete_wants_a_yes_where_nobody_can_be_asked(run: Run, orders: str) -> None:
    run("group", "create", orders, "billing")
    assert "--yes" in run("group", "delete", orders, "billing", exits=2).stderr
    assert json_of(run("group", "delete", orders, "billing", "--yes", "--json")) == {
        "stream": "orders",
        "group": "billing",
        "deleted": True,
        "members": [],
    }
    run("group", "describe", orders, "billing", exits=3)


def test_a_group_in_use_is_deleted_only_by_force(run: Run, orders: str, worker: Membership) -> None:
    for words in ((), ("--yes",)):
        refused = run("group", "delete", orders, "billing", *words, exits=4).stderr
        assert "worker-a" in refused
        assert "--force" in refused
    assert run("group", "delete", orders, "billing", "--force").stdout == "deleted group billing of orders\n"
    assert json_of(run("group", "list", orders, "--json")) == []


# --- History. ---------------------------------------------------------------------------------------


def test_history_tells_what_happened_with_times(run: Run, orders: str, worker: Membership) -> None:
    run("group", "update", orders, "billing", "--timeout", "30s")
    lines = run("group", "history", orders, "billing").stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["joined", "granted", "granted", "updated"]
    assert all(datetime.fromisoformat(line.split()[0]).utcoffset() is not None for line in lines)
    assert lines[1].split()[2:] == ["shard", "0", "epoch", "1", "worker-a"]
    last = run("group", "history", orders, "billing", "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in last] == ["granted", "updated"]
    granted = json.loads(last[0])
    assert granted.pop("timestamp") > 0
    assert granted == {"kind": "granted", "consumer": "worker-a", "shard": 1, "epoch": 2, "detail": ""}


def test_a_group_without_a_history_says_so(run: Run, orders: str) -> None:
    run("group", "create", orders, "billing")
    quiet = run("group", "history", orders, "billing")
    assert (quiet.stdout, quiet.stderr) == ("", "note: nothing has happened in group billing of orders yet\n")
    assert run("group", "history", orders, "billing", "--json").stdout == ""


# --- Ends that scripts can tell apart. --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("create orders billing", 4, "has one of this name already"),
        ("create orders", 2, "GROUP"),
        ("create nothing new", 3, "shoal stream create nothing"),
        ("create orders a/b", 6, "group='a/b'"),
        ("create orders new --timeout soon", 6, "timeout='soon': seconds, or a number with a unit"),
        ("create orders new --timeout 2h", 6, "timeout=7200.0: seconds from 0.2 to 3600"),
        ("create orders new --handover-timeout 0", 6, "handover_timeout=0.0"),
        ("create orders new --strategy best", 6, "one of balanced, range, round_robin"),
        ("create orders new --coordination none", 2, "leased"),
        ("create orders new --delivery shared --in-order", 6, "in_order"),
        ("create orders new --lease-table mine", 6, "coordination='leased'"),
        ("create orders new --coordination leased --lease-table 1x", 6, "lease_table='1x'"),
        ("create orders new --coordination leased --strategy range", 6, "'balanced', or 'spread'"),
        ("create orders new --start yesterday", 6, "start='yesterday': earliest, latest, a time such as"),
        ("create orders new --start 7", 6, "start='7'"),
        ("create orders new --start 0=1 --start latest", 6, "such as 3=120"),
        ("create orders new --start 0=1 --start 0=2", 6, "shard 0 is named once"),
        ("create orders new --start 9=0", 3, "shards 0 to 1"),
        ("create orders new --start 0=4", 3, "ends at offset 3"),
        ("create orders new --groups-per-stream 0", 2, "--groups-per-stream"),
        ("list nothing", 3, "nothing"),
        ("describe orders nobody", 3, "shoal group create orders nobody"),
        ("describe nothing billing", 3, "shoal stream create nothing"),
        ("describe orders billing --watch often", 6, "watch='often'"),
        ("describe orders billing -w 0", 6, "seconds from 0.1"),
        ("update orders nobody --timeout 5s", 3, "nobody"),
        ("update orders billing --timeout 10ms", 6, "timeout=0.01"),
        ("update orders billing --handover-timeout never", 6, "handover_timeout='never'"),
        ("reset orders billing --yes", 2, "--to WHERE or --shard"),
        ("reset orders billing --yes --to latest --shard 0=1", 2, "--to WHERE or --shard"),
        ("reset orders billing --yes --to nowhere", 6, "to='nowhere'"),
        ("reset orders billing --yes --shard 0", 6, "shard='0': a shard with an offset, such as 3=120"),
        ("reset orders billing --yes --shard 0=-1", 6, "0=-1"),
        ("reset orders billing --yes --shard 9=0", 3, "shards 0 to 1"),
        ("reset orders billing --yes --shard 0=9", 3, "ends at offset 3"),
        ("reset orders nobody --yes --to latest", 3, "nobody"),
        ("delete orders nobody --yes", 3, "nobody"),
        ("delete orders nobody --force", 3, "nobody"),
        ("history orders nobody", 3, "nobody"),
        ("history orders nobody --follow", 3, "nobody"),
        ("history orders billing --limit 0", 2, "--limit"),
        ("history orders billing --limit 1001", 2, "--limit"),
        ("list --hub nonsense", 6, "nonsense"),
        ("nonsense", 2, "No such command"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_a_code(
    run: Run, orders: str, words: str, code: int, told: str
) -> None:
    run("group", "create", orders, "billing")
    assert told in run("group", *words.split(), exits=code).stderr
    assert [each["group"] for each in json_of(run("group", "list", "--json"))] == ["billing"]
    assert checkpoints(run) == [0, 0]


def test_groups_without_owners_are_made_shown_and_changed(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("jobs", shards=1)
    hub.append("jobs", 0, [b"a", b"b", b"c"])
    words = "group create jobs queue --delivery shared --visibility 5m --max-attempts 2 --key-ordered"
    made = run(*words.split()).output
    assert "shared, one record of a key at a time, visibility 5m, to the dead stream after 2 att" in made
    run("group", "create", "jobs", "screens", "--delivery", "broadcast", "--unused", "2d")
    consumer = shoal.SharedConsumer(hub, "jobs", "queue", "ada")
    received = consumer.receive(2)
    consumer.ack(received, 1)
    with shoal.BroadcastConsumer(hub, "jobs", "screens", "hall") as screen:
        assert screen.poll() is not None
    shown = run("group", "describe", "jobs", "queue").output
    assert "1 consumers with 1 records in flight, 2 records to come" in shown
    assert "ada" in shown
    queue = json_of(run("group", "describe", "jobs", "queue", "--json"))
    assert (queue["lag"], queue["shards"][0]["in_flight"], queue["consumers"][0]["name"]) == (2, 1, "ada")
    screens = json_of(run("group", "describe", "jobs", "screens", "--json"))
    assert (screens["positions"][0]["offsets"], screens["dropped"]) == ({"0": 3}, [])
    assert "unused positions are dropped after 2d" in run("group", "describe", "jobs", "screens").output
    assert [one["group"] for one in json_of(run("group", "list", "jobs", "--json"))] == [
        "queue",
        "screens",
    ]
    assert "max_attempts 2 → 9" in run("group", "update", "jobs", "queue", "--max-attempts", "9").output
    assert "ada" in run("group", "delete", "jobs", "queue", exits=4).stderr
    run("group", "delete", "jobs", "queue", "--force")
