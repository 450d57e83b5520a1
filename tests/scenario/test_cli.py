"""The commands in this process: what they print, as text and JSON, and how they end."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import shoal
from shoal.cli import app
from shoal.cli.outage import why_not
from shoal.testing.serving import served
from tests.scenario.programs import Run, json_of


def tailed(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- Streams. ---------------------------------------------------------------------------------------


def test_a_stream_is_created_with_its_settings(run: Run) -> None:
    made = json_of(
        run(
            *("stream", "create", "shop/orders", "--shards", "3", "--retention", "7d", "--retention-bytes"),
            *("10GB", "--compression", "zstd", "--hash", "md5", "--schema", "amount:int64,customer:string"),
            "--json",
        )
    )
    assert made["stream"] == "shop/orders"
    assert (made["project"], made["name"]) == ("shop", "orders")
    assert (made["retention_ms"], made["retention_bytes"]) == (7 * 86_400_000, 10**10)
    assert (made["compression"], made["hash"]) == ("zstd", "md5")
    assert made["schema"] == {"amount": "int64", "customer": "string"}
    assert [shard["id"] for shard in made["shards"]] == [0, 1, 2]


def test_create_says_what_it_made(run: Run) -> None:
    assert run("stream", "create", "orders").stdout == "created stream orders with 4 shards\n"


def test_list_shows_streams_and_those_of_a_project(run: Run) -> None:
    assert "there are no streams" in run("stream", "list").stderr
    assert json_of(run("stream", "list", "--json")) == []
    run("stream", "create", "orders", "--schema", "at:timestamp[us]")
    run("stream", "create", "shop/orders", "--retention", "12h")
    shown = run("stream", "list").stdout
    assert "shop/orders" in shown
    assert "12h" in shown
    assert "timestamp[us]" in shown
    assert [each["stream"] for each in json_of(run("stream", "list", "--json"))] == ["orders", "shop/orders"]
    only = json_of(run("stream", "list", "--project", "shop", "--json"))
    assert [each["stream"] for each in only] == ["shop/orders"]


def test_describe_shows_shards_with_their_share_of_the_ring(run: Run) -> None:
    run("stream", "create", "orders")
    run("produce", "orders", given="a\nb\nc\n")
    run("stream", "split", "orders", "0")
    shown = run("stream", "describe", "orders").stdout
    assert "5 open of 6 shards" in shown
    for words in ("0000–4000", "c000–end", "12.5%", "closed", "100.0%", "3 records appended in all"):
        assert words in shown
    found = json_of(run("stream", "describe", "orders", "--json"))
    assert found["appended"] == found["records"] == 3
    assert sum(shard["share"] for shard in found["shards"] if shard["status"] == "open") == 1.0
    assert [shard["parents"] for shard in found["shards"]] == [[], [], [], [], [0], [0]]
    assert found["shards"][0]["end"] == found["shards"][1]["begin"]


def test_output_that_is_no_terminal_holds_no_control_characters(run: Run) -> None:
    run("stream", "create", "orders")
    shown = run("stream", "list").stdout + run("stream", "describe", "orders").stdout + run("--help").stdout
    assert "\x1b" not in shown


def test_shards_are_split_merged_and_cut_anew(run: Run) -> None:
    run("stream", "create", "orders", "--shards", "2")
    split = json_of(run("stream", "split", "orders", "0", "--json"))
    assert (split["closed"], [shard["id"] for shard in split["opened"]]) == ([0], [2, 3])
    at = json_of(run("stream", "split", "orders", "1", "--at", "c0" + "0" * 30, "--json"))
    assert at["opened"][1]["begin"] == "c0" + "0" * 30
    merged = json_of(run("stream", "merge", "orders", "3", "4", "--json"))
    assert (merged["closed"], [shard["id"] for shard in merged["opened"]]) == ([3, 4], [6])
    assert run("stream", "merge", "orders", "2").stdout.startswith("merged shards 2 and 6 into shard 7 ")
    assert run("stream", "split", "orders", "7").stdout.startswith("split shard 7 into shard 8 [0000–")
    assert json_of(run("stream", "reshard", "orders", "5", "--json"))["open_shards"] == 5
    assert run("stream", "reshard", "orders", "1").stdout.startswith("stream orders has 1 open shards")


def test_delete_wants_a_yes_where_nobody_can_be_asked(run: Run) -> None:
    run("stream", "create", "orders")
    assert "--yes" in run("stream", "delete", "orders", exits=2).stderr
    run("stream", "describe", "orders")
    assert json_of(run("stream", "delete", "orders", "--yes", "--json")) == {
        "stream": "orders",
        "deleted": True,
        "records": 0,
    }
    run("stream", "describe", "orders", exits=3)


# --- Ends that scripts can tell apart. --------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("stream create orders", 4, "there is one of this name already"),
        ("stream create a/b/c", 6, "stream='b/c'"),
        ("stream create new --shards 0", 6, "1 to 4096"),
        ("stream create new --shards many", 2, "--shards"),
        ("stream create new --retention 7", 6, "such as 90s"),
        ("stream create new --retention-bytes lots", 6, "such as 500MB"),
        ("stream create new --schema amount:nothing", 6, "amount"),
        ("stream create new --schema key:string", 6, "key"),
        ("stream create new --hash sha1", 2, "xxh64"),
        ("stream create", 2, "STREAM"),
        ("stream nonsense", 2, "No such command"),
        ("stream", 2, "Missing command"),
        ("stream list --project nowhere", 3, "nowhere"),
        ("stream describe nothing", 3, "nothing"),
        ("stream split nothing 0", 3, "nothing"),
        ("stream split orders 9", 3, "shards 0 to 3"),
        ("stream split orders 0 --at zz", 6, "zz"),
        ("stream split orders 0 --at 0", 6, "not on its edge"),
        ("stream merge orders 0 2", 6, "neighbours"),
        ("stream merge orders 3", 6, "no right neighbour"),
        ("stream reshard orders 5000", 6, "1 to 4096"),
        ("stream delete nothing --yes", 3, "nothing"),
        ("produce nothing", 3, "nothing"),
        ("produce orders --file /no/such/file", 2, "/no/such/file"),
        ("produce orders --key-separator : --json", 2, "--key-field"),
        ("produce orders --key-field a --format lines", 2, "--key-separator"),
        ("tail nothing", 3, "nothing"),
        ("tail orders --from sometime", 6, "sometime"),
        ("tail orders --shard 9", 3, "shards 0 to 3"),
        ("tail orders --shard 0 --from 5", 3, "ends at offset 0"),
        ("tail orders --max 0", 2, "--max"),
        ("tail orders --hub nonsense", 6, "nonsense"),
        ("tail orders --hub mongodb://x/y", 6, "mongodb"),
        ("tail orders --hub postgresql://127.0.0.1:1/none", 5, "cannot be reached"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_a_code(
    run: Run, words: str, code: int, told: str
) -> None:
    run("stream", "create", "orders")
    assert told in run(*words.split(), exits=code).stderr
    assert len(json_of(run("stream", "list", "--json"))) == 1


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    assert "Exit codes" in CliRunner().invoke(app, []).stdout
    assert "SHOAL_HUB" in run("tail", "--help").stdout
    assert run("--version").stdout == f"shoal {shoal.__version__}\n"


def test_a_file_of_someone_else_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear database, I am none.\n" * 100)
    run("stream", "list", "--hub", f"sqlite:///{path}", exits=6)
    assert path.read_text().startswith("Dear")


def test_a_traceback_is_shown_to_those_who_ask(sqlite_url: str) -> None:
    env = {"SHOAL_HUB": sqlite_url, "SHOAL_DEBUG": "1"}
    result = CliRunner().invoke(app, ["stream", "describe", "nothing"], env=env)
    assert result.exit_code == 3
    assert "Traceback" in result.stderr


# --- Producing. -------------------------------------------------------------------------------------


def test_lines_are_kept_byte_for_byte(run: Run) -> None:
    run("stream", "create", "orders", "--shards", "1")
    given = b"one\r\n\n  two \xff\x00\nthree without an end"
    sent = run("produce", "orders", given=given)
    assert sent.stdout.startswith("sent 4 records, ")
    assert run("tail", "orders", "--values").stdout_bytes == given + b"\n"


def test_a_key_comes_before_the_separator(run: Run) -> None:
    run("stream", "create", "orders")
    run("produce", "orders", "--key-separator", r"\t", given="ada\tone\tand more\nbob\ttwo\n")
    found = {each["key"]: each["value"] for each in tailed(run("tail", "orders", "--json"))}
    assert found == {"ada": "one\tand more", "bob": "two"}


def test_a_key_is_a_field_of_an_object(run: Run) -> None:
    run("stream", "create", "orders")
    given = '{"customer": {"id": 7}}\n\n{"customer": {"id": "x"}, "paid": true}\n'
    done = json_of(run("produce", "orders", "--json", "--key-field", "customer.id", given=given))
    assert (done["stream"], done["records"]) == ("orders", 2)
    found = {each["key"]: each["value"] for each in tailed(run("tail", "orders", "--json"))}
    assert found == {"7": '{"customer": {"id": 7}}', "x": '{"customer": {"id": "x"}, "paid": true}'}


def test_objects_fill_the_columns_of_a_typed_stream(run: Run, hub: shoal.Hub) -> None:
    schema = "amount:int64,customer:string,at:timestamp[us],day:date32"
    run("stream", "create", "orders", "--shards", "1", "--schema", schema)
    full = '{"amount": 5, "customer": "ada", "at": "2026-01-31T08:00:00", "day": "2026-01-31"}'
    given = f'{full}\n{{"amount": 6}}\n'
    run("produce", "orders", "--key-field", "amount", given=given)
    batch = hub.read("orders", 0, 0).to_arrow()
    assert batch.schema.field("at").type == pa.timestamp("us")
    assert batch.column("key").to_pylist() == [b"5", b"6"]
    assert batch.column("customer").to_pylist() == ["ada", None]
    first, second = tailed(run("tail", "orders", "--json"))
    assert first["value"] == json.loads(full)
    assert second["value"] == {"amount": 6, "customer": None, "at": None, "day": None}
    # What tail prints of a value, produce takes again.
    run("produce", "orders", given=run("tail", "orders", "--values").stdout)
    assert tailed(run("tail", "orders", "--json"))[2]["value"] == first["value"]


@pytest.mark.parametrize(
    ("words", "bad", "told"),
    [
        ("--json", "{", "not a JSON object"),
        ("--json", "[1]", "not an object"),
        ("--json", '{"a": "\xff', "not a JSON object"),
        ("--key-field id", '{"a": 1}', "no key field 'id'"),
        ("--key-field id", '{"id": null}', "no key field 'id'"),
        ("--key-field id.x", '{"id": 3}', "no key field 'id.x'"),
        ("--key-field id", '{"id": [1]}', "not text or an integer"),
        ("--key-field id", '{"id": true}', "not text or an integer"),
    ],
)
def test_a_bad_line_is_named_and_the_lines_before_it_are_sent(
    run: Run, words: str, bad: str, told: str
) -> None:
    run("stream", "create", "orders")
    good = '{"id": {"x": "a"}}' if "id.x" in words else '{"id": "a"}'
    result = run("produce", "orders", *words.split(), given=f"{good}\n{good}\n{bad}\n{good}\n", exits=6)
    assert "line 3=" in result.stderr
    assert told in result.stderr
    assert "the lines before it are sent" in result.stderr
    assert len(tailed(run("tail", "orders", "--json"))) == 2


def test_a_line_that_does_not_fit_the_columns_is_named(run: Run) -> None:
    run("stream", "create", "orders", "--schema", "amount:int64,at:timestamp[us]")
    for bad, told in (
        ('{"amount": "five"}', "int64"),
        ('{"price": 5}', "price"),
        ('{"at": "noon"}', "at"),
        ("five", "not a JSON object"),
    ):
        result = run("produce", "orders", given=f"{bad}\n", exits=6)
        assert "line 1=" in result.stderr
        assert "nothing was sent" in result.stderr
        assert told in result.stderr
    run("produce", "orders", "--format", "lines", given="5\n", exits=6)
    assert run("tail", "orders").stdout == ""


def test_a_line_without_the_separator_and_one_that_is_too_long_are_named(run: Run) -> None:
    run("stream", "create", "orders")
    assert "line 2=" in run("produce", "orders", "--key-separator", ":", given="a:b\nab\n", exits=6).stderr
    long = b"x" * 4_000_001
    assert "line 2=" in run("produce", "orders", given=b"a\n" + long + b"\nb\n", exits=6).stderr
    assert "limit" in run("produce", "orders", given=long * 2, exits=6).stderr


def test_no_input_is_no_records(run: Run) -> None:
    run("stream", "create", "orders")
    assert run("produce", "orders", given="").stdout.startswith("sent 0 records")


# --- Tailing. ---------------------------------------------------------------------------------------


def test_a_json_line_has_stable_fields_and_bytes_that_are_no_text_in_base64(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("shop/orders", shards=1)
    with hub.producer("shop/orders") as producer:
        headers: dict[str, str | bytes] = {"type": "text", "raw": b"\xfe"}
        producer.send("naïve", key="ada", timestamp=1_700_000_000_123, headers=headers)
        producer.send(b"\xff\x00", key=b"\xfe")
        producer.send(None)
    first, second, third = tailed(run("tail", "shop/orders", "--json"))
    fields = ["stream", "shard", "offset", "timestamp", "key", "value", "headers"]
    assert list(first)[:7] == list(second)[:7] == list(third) == fields
    assert first == {
        "stream": "shop/orders",
        "shard": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_123,
        "key": "ada",
        "value": "naïve",
        "headers": {"type": "text", "raw": None},
        "headers_base64": {"raw": base64.b64encode(b"\xfe").decode()},
    }
    assert (second["key"], second["value"]) == (None, None)
    assert base64.b64decode(second["key_base64"]) == b"\xfe"
    assert base64.b64decode(second["value_base64"]) == b"\xff\x00"
    assert (third["key"], third["value"]) == (None, None)


def test_text_for_people_cannot_act_on_their_terminal(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("orders", shards=1)
    with hub.producer("orders") as producer:
        producer.send(b"\x1b[2J\tred\nalert\xff \xc3\xa9", key=b"a\x07", timestamp=1_700_000_000_123)
    shown = run("tail", "orders").stdout
    assert shown == "0:0\t2023-11-14T22:13:20.123Z\ta\\x07\t\\x1b[2J\\tred\\nalert\\xff é\n"


def test_numbers_that_json_has_no_word_for_get_a_name(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("orders", shards=1, schema={"price": "float64", "raw": "binary"})
    with hub.producer("orders") as producer:
        producer.send({"price": float("nan"), "raw": b"ok"})
        producer.send({"price": float("-inf"), "raw": b"\xff"})
    first, second = tailed(run("tail", "orders", "--json"))
    assert first["value"] == {"price": "NaN", "raw": "ok"}
    assert second["value"] == {"price": "-Infinity", "raw": {"base64": "/w=="}}


def test_a_tail_starts_where_it_is_told(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("orders", shards=1)
    with hub.producer("orders") as producer:
        for n in range(10):
            producer.send(str(n), timestamp=1_700_000_000_000 + n * 1000)

    def values(*words: str) -> str:
        return run("tail", "orders", "--values", *words).stdout.replace("\n", "")

    assert values() == values("--from", "earliest") == values("--from", "2000-01-01") == "0123456789"
    assert values("--from", "latest") == values("--from", "10") == values("--from", "99") == ""
    assert values("--from", "7") == values("--from", "7", "--shard", "0") == "789"
    assert values("--from", "2023-11-14T22:13:25Z") == "56789"
    assert values("--from", "2023-11-14T22:13:25Z", "--max", "2") == "56"
    assert values("-n", "3") == "012"
    assert values("--from", "1h") == ""


def test_a_tail_reads_parents_before_children(run: Run) -> None:
    run("stream", "create", "orders", "--shards", "2")
    steps = (("split", "1"), ("reshard", "3"), ("split", "4"), ("reshard", "5"), ("reshard", "1"))
    for n, (act, what) in enumerate(steps):
        given = "".join(f"k{key}:{n}\n" for key in range(50))
        run("produce", "orders", "--key-separator", ":", given=given)
        run("stream", act, "orders", what)
    seen: dict[str, list[str]] = {}
    for each in tailed(run("tail", "orders", "--json")):
        seen.setdefault(each["key"], []).append(each["value"])
    assert len(seen) == 50
    assert set(map(tuple, seen.values())) == {("0", "1", "2", "3", "4")}


def test_what_retention_removed_is_an_error_unless_it_may_be_skipped(run: Run, hub: shoal.Hub) -> None:
    hub.create_stream("orders", shards=1, retention_bytes=1)
    for value in ("old", "new"):
        hub.append("orders", 0, [value] * 3)
    hub.enforce_retention("orders")
    first = hub.first_offset("orders", 0)
    assert first > 0
    result = run("tail", "orders", "--shard", "0", "--from", "0", exits=3)
    assert f"from offset {first} on" in result.stderr
    skipped = run("tail", "orders", "--shard", "0", "--from", "0", "--skip-expired")
    assert f"{first} records from offset 0 on have expired" in skipped.stderr


# --- The demo. --------------------------------------------------------------------------------------


def test_the_demo_tells_its_story_and_leaves_a_hub_as_it_was(run: Run, sqlite_url: str) -> None:
    shown = run("demo", "--fast", "--hub", sqlite_url).stdout
    assert "Nothing lost, nothing twice, every key in order" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    for words in (
        "6,000 invoices of 6,000 charges: 0 twice, 0 missing. 4 transactions broke in the middle",
        "Of 150 payments 50 were rolled back: 100 rows in the database, 100 records in the stream",
        "1 record waited, durable at once; it came when it was due, not before",
        "were one group, 2 shards and 2: 1,000 records were sent through the server, each was processed once",
        "kill -9, 100 more each 100 wait in line 100 in the outbox",
        "a server again, and a relay 200 stored 200 stored",
        "0 records twice, 0 keys of the strict one out of order",
        "through split, merge, reshard, deploy, outage",
    ):
        assert words in " ".join(shown.split())
    assert json_of(run("stream", "list", "--json")) == []


def test_without_the_servers_packages_the_demo_says_so_and_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shoal.server.starting", None)
    shown = run("demo", "--fast").stdout
    assert "left out: shoal serve needs the package" in shown
    assert "pip install 'shoal[server]'" in " ".join(shown.split())
    assert "Nothing lost, nothing twice, every key in order" in shown
    assert "outage" not in shown


def test_the_demo_kills_no_server_that_was_there_and_starts_none_that_asks_for_keys(
    run: Run, sqlite_url: str
) -> None:
    with served(sqlite_url) as url, shoal.connect(url) as hub:
        assert "This hub is a server" in str(why_not(hub))
    run("user", "create", "ada", "--store", sqlite_url)
    with shoal.connect(sqlite_url) as hub:
        assert "users are defined" in str(why_not(hub))


def test_the_demo_touches_no_stream_that_was_there(run: Run, sqlite_url: str) -> None:
    run("stream", "create", "demo/orders")
    run("produce", "demo/orders", given="mine\n")
    run("demo", "--hub", sqlite_url, exits=4)
    assert run("tail", "demo/orders", "--values").stdout == "mine\n"


def test_a_check_that_fails_makes_the_demo_fail(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.demo.read_all", lambda *_: iter(()))
    monkeypatch.setattr("shoal.cli.demo.why_not", lambda *_: "this takes long, and is told elsewhere")
    told = json_of(run("demo", "--json", exits=1))
    assert told["ok"] is False
    assert told["lost"] == told["sent"] > 0
