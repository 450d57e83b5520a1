"""A server as its operators and its users see it. What the calls mean, the contract says."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.errors import (
    HubClosed,
    InvalidInput,
    InvalidUrl,
    OffsetExpired,
    ProducerFenced,
    UnknownStream,
)
from shoal.core.lease import InstanceRow
from shoal.core.names import stream_name
from shoal.hub.local import LocalHub
from shoal.native.calls import CALLS
from shoal.ports import Newcomer
from shoal.server.metrics import lag_text
from shoal.server.options import ServerOptions
from shoal.server.starting import open_server
from shoal.testing.members import eventually
from shoal.testing.serving import ServerProcess, served
from tests.scenario.asking import asked, figure


@pytest.fixture
def url(sqlite_url: str) -> Iterator[str]:
    with served(sqlite_url) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        yield hub


def test_health_figures_and_the_document_are_there(url: str, hub: Hub) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing")
    hub.append("orders", 0, [b"a", b"b"])
    assert len(hub.read("orders", 0, 0)) == 2
    with pytest.raises(UnknownStream):
        hub.read("missing", 0, 0)
    assert asked(url, "/healthz", method="GET")[1]["status"] == "ok"
    assert asked(url, "/readyz", method="GET")[1]["status"] == "ready"
    assert asked(url, "/v1/hub/append", method="GET")[0] == 405
    figures = asked(url, "/metrics", method="GET")[1].decode()
    for line in (
        "shoal_server_appended_records_total 2.0",
        "shoal_server_read_records_total 2.0",
        'shoal_group_lag_records{group="billing",shard="0",stream="orders"} 2.0',
        'shoal_server_requests_total{call="hub.read",status="404"} 1.0',
        'shoal_server_request_seconds_count{call="hub.append"} 1.0',
        "shoal_server_moves_total 0.0",
        "shoal_server_expiries_total 0.0",
    ):
        assert line in figures
    document = asked(url, "/v1/openapi.json", method="GET")[1]
    assert set(document["paths"]) == {call.path for call in CALLS.values()}
    text = json.dumps(document)
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    assert document["security"] == [{"signature": []}, {}]
    assert document["components"]["securitySchemes"]["signature"]["name"] == "Authorization"


def test_figures_count_moves_expiries_and_fenced_attempts(url: str, hub: Hub) -> None:
    def count(name: str) -> float:
        text = asked(url, "/metrics", method="GET")[1].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=2.0)
    older = hub.producer("orders", name="till", linger_s=0)
    older.send(b"a", key=b"a").result()
    with hub.producer("orders", name="till", linger_s=0) as newer:
        newer.send(b"b", key=b"a").result()
        with pytest.raises(ProducerFenced):
            older.send(b"c", key=b"a").result()
    with pytest.raises(ProducerFenced):
        older.close()
    assert count('shoal_server_fenced_total{error="ProducerFenced"}') == 1
    silent = Newcomer(name="silent", incarnation="silent-1")
    hub.service.groups.join(stream_name("orders"), "billing", silent)
    with hub.join_group("orders", "billing", "anna") as anna:
        eventually(lambda: len(anna.leases) == 2, "who is silent has lost its shard", 20)
    assert count("shoal_server_expiries_total") >= 1
    assert count("shoal_server_moves_total") >= 2


def test_figures_say_how_many_groups_they_leave_out(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub:
        for stream, groups in (("orders", 3), ("bills", 2)):
            hub.create_stream(stream, shards=1)
            for number in range(groups):
                hub.create_group(stream, f"group-{number}")
        service = hub.service
        assert isinstance(service, LocalHub)
        for shown, beyond in ((4, 1.0), (5, 0.0)):
            text = lag_text(service, shown).decode()
            assert text.count("\nshoal_group_lag_records{") == shown
            assert f"\nshoal_groups_not_shown {beyond}\n" in text
        text = lag_text(service, within_s=-1).decode()
        assert "\nshoal_group_lag_records{" not in text, "there is no time for any of them"
        assert "\nshoal_groups_not_shown 1.0\n" in text, "nor to count them"


def test_figures_show_what_comes_later(url: str, hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    hub.create_stream("bills", shards=1)
    with hub.producer("orders") as producer:
        for _ in range(3):
            producer.send(b"later", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    figures = asked(url, "/metrics", method="GET")[1].decode()
    assert 'shoal_stream_delayed_records{stream="orders"} 3.0' in figures
    assert 'stream="bills"' not in figures


def test_the_clients_request_id_is_answered_and_one_that_no_log_can_hold_is_not(url: str) -> None:
    assert asked(url, "/v1/hub/stats", b'{"name":"x"}', X_Request_Id="abc-1")[1]["request"] == "abc-1"
    assert (
        asked(url, "/v1/hub/stats", b'{"name":"x"}', X_Request_Id="a b\t" * 50)[1]["request"] != "a b\t" * 50
    )


def test_a_url_names_a_server_and_its_settings_are_not_ours_to_choose(url: str) -> None:
    for wrong in ("http://", "http://host:port", "http://user@host:7400", f"{url}/path"):
        with pytest.raises(InvalidUrl):
            shoal.connect(wrong)
    with pytest.raises(InvalidInput, match="shoal serve"):
        shoal.connect(url, groups_per_stream=9)
    hub = shoal.connect(url)
    assert repr(hub) == f"<Hub {url}>"
    hub.close()
    with pytest.raises(HubClosed):
        hub.list_projects()


def test_rows_made_for_a_group_that_another_server_has_deleted_are_removed(sqlite_url: str) -> None:
    with (
        served(sqlite_url) as one,
        served(sqlite_url) as two,
        shoal.connect(one) as here,
        shoal.connect(two) as there,
    ):
        here.create_stream("orders", shards=1)
        here.create_group("orders", "billing", coordination="leased")
        (group,) = here.list_groups("orders")
        leased = here.service.groups.leased(group)
        there.delete_group("orders", "billing")
        row = InstanceRow(
            group=leased.key, name="late", incarnation="late-1", counter=1, timeout_ms=1000, interval_ms=250
        )
        leased.table.create(row)
        assert leased.table.instances(leased.key) == []
        with shoal.connect(sqlite_url) as near:  # Whatever a server says, none is in the table.
            local = near.service.groups._leased.opened(group)  # type: ignore[attr-defined]
            assert local.table.instances(leased.key) == []


def test_beyond_this_machine_it_serves_only_if_told_to(sqlite_url: str) -> None:
    with pytest.raises(RuntimeError, match="no user is defined, so anyone who reaches it"):
        ServerProcess(sqlite_url, "--listen", "0.0.0.0:0").start()
    server = ServerProcess(sqlite_url)
    server.start()
    written = server.end()
    assert "serves this machine alone at http://127.0.0.1:" in written
    assert "no user is defined" in written
    assert written.rstrip().endswith("stopped")


def test_what_was_fetched_ahead_is_not_read_once_it_has_been_removed(hub: Hub) -> None:
    hub.create_stream("orders", shards=1)
    for _ in range(6):
        hub.append("orders", 0, [b"x" * 1000] * 10)
    for offset in (0, 10):
        assert len(hub.read("orders", 0, offset, max_records=10)) == 10
    hub.set_retention("orders", retention_bytes=1)
    assert hub.enforce_retention("orders")[0].first_offset == 50
    with pytest.raises(OffsetExpired):
        hub.read("orders", 0, 20, max_records=10)


@pytest.mark.parametrize(
    "limits", [{}, {"max_records": 7}, {"max_records": 250}, {"max_bytes": 20_000}, {"max_bytes": 3_000_000}]
)
def test_who_reads_on_finds_what_an_embedded_hub_finds_read_by_read(
    sqlite_url: str, hub: Hub, limits: dict[str, Any]
) -> None:
    hub.create_stream("orders", shards=1)
    for size, count in ((100_000, 30), (10, 1000), (1000, 100), (500_000, 10), (1, 1)):
        hub.append("orders", 0, [b"%d" % i + b"x" * size for i in range(count)])
    hub.split_shard("orders", 0)
    end = hub.describe_stream("orders").shards[0].next_offset
    with shoal.connect(sqlite_url) as embedded:
        offset, is_end = 0, False
        while offset < end:
            found, expected = (one.read("orders", 0, offset, **limits) for one in (hub, embedded))
            assert found.to_arrow().equals(expected.to_arrow())
            assert (found.next_offset, found.tail, found.end_of_shard) == (
                expected.next_offset,
                expected.tail,
                expected.end_of_shard,
            )
            offset, is_end = found.next_offset, found.end_of_shard
    assert is_end


def test_one_answer_holds_so_many_reads_and_bytes(url: str, hub: Hub) -> None:
    hub.create_stream("orders", shards=1, compression="none")
    for _ in range(4):
        hub.append("orders", 0, [b"small"] * 10)
    for _ in range(6):
        hub.append("orders", 0, [bytes(3_000_000)])
    read = {"name": "default/orders", "shard": 0, "further": 1_000_000}

    def ends(offset: int, limits: dict[str, int]) -> list[int]:
        status, answer = asked(
            url, "/v1/hub/read", json.dumps({**read, "offset": offset, "limits": limits}).encode()
        )
        assert status == 200
        label = json.loads(answer[4 : 4 + int.from_bytes(answer[:4], "big")])
        return [label["end"], *(one["end"] for one in label["further"])]

    assert ends(0, {"max_records": 2}) == [2, 4, 6, 8, 10, 12, 14, 16]
    assert ends(40, {}) == [41, 42, 43]


@pytest.mark.parametrize("is_closed", [False, True])
def test_who_reads_to_the_end_sees_what_was_appended_or_closed_before_it_came_there(
    url: str, hub: Hub, is_closed: bool
) -> None:
    hub.create_stream("orders", shards=1)
    for _ in range(3):
        hub.append("orders", 0, [b"x"] * 10)
    for offset in (0, 10):
        batch = hub.read("orders", 0, offset, max_records=10)
        assert batch.next_offset < batch.tail
    eventually(lambda: figure(url, "reads_total") >= 3, "the last one is fetched ahead")
    if is_closed:
        hub.split_shard("orders", 0)
    else:
        hub.append("orders", 0, [b"news"])
    batch = hub.read("orders", 0, 20, max_records=10)
    assert (batch.next_offset, batch.tail, batch.end_of_shard) == (30, 30 if is_closed else 31, is_closed)


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_certificate_that_cannot_be_used_is_refused_before_it_is_said_that_it_serves(
    sqlite_url: str, tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "certificate.pem"
    if text is not None:
        path.write_text(text)
    options = ServerOptions(port=0, certificate=path, key=path)
    with pytest.raises(InvalidInput, match=r"certificate\.pem': it cannot be used with the key"):
        open_server(sqlite_url, options, version="1")
