"""Pages of other sites, in a browser on the machine of a server without users: none gets anything done."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.server.options import ServerOptions
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.server.sites import is_own_name
from shoal.testing.serving import served
from shoal.testing.users import ALL, guarded
from tests.scenario.asking import asked
from tests.sls.asking import asked as sls_asked

OWN = "logs.example.com"
NAMES = [
    "127.0.0.1",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "127.8.9.10",
    OWN,
    "a." + OWN,
    "a.localhost",
    "a.127.0.0.1",
]
OTHERS = [
    "evil.example",
    "a.evil.example",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "10.0.0.1",
    "192.168.0.1",
]
MAKE = b'{"logstoreName":"made","shardCount":1}'


@pytest.fixture
def url(sqlite_url: str) -> Iterator[str]:
    with served(sqlite_url, ServerOptions(port=0, sls_hosts=(OWN,))) as url:
        yield url


def streams(url: str) -> int:
    with shoal.connect(url) as hub:
        return len(hub.list_streams())


@pytest.mark.parametrize("port", ["", ":7400"])
def test_a_name_of_this_machine_is_one_whatever_project_stands_before_it(port: str) -> None:
    for name in NAMES:
        assert is_own_name(name + port, [OWN]), name
    for name in [*OTHERS, "", "a", "[::2]", "[::1", "127.1", "localhost."]:
        assert not is_own_name(name + port, [OWN]), name


@pytest.mark.parametrize("host", OTHERS)
def test_a_page_whose_own_name_leads_here_is_refused(url: str, host: str) -> None:
    port = url.rpartition(":")[2]
    given: list[dict[str, Any]] = [
        {"Origin": f"http://{host}:{port}"},
        {"Accept-Language": "en"},
        {"Accept-Language": ""},
        {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"},
        {"Sec-Fetch-Mode": "cors"},
    ]
    for headers in given:
        status, told = asked(url, "/v1/hub/list_projects", Host=f"{host}:{port}", **headers)
        assert (status, told["error"]) == (421, "InvalidInput")
        assert f"Host='{host}:{port}'" in told["text"]
        assert "--sls-host" in told["text"]
        told = sls_asked(url, "POST", "/logstores", MAKE, host=f"a.{host}:{port}", **headers)
        assert told == (400, "ParameterInvalid")
    for path in ("/readyz", "/metrics"):
        assert asked(url, path, method="GET", Host=host, **given[1])[0] == 421
    assert streams(url) == 0


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "http://[", "", "é"])
def test_a_page_of_another_site_is_refused(url: str, origin: str) -> None:
    host = url.removeprefix("http://")
    status, told = asked(url, "/v1/hub/list_projects", Host=host, Origin=origin)
    assert (status, told["error"]) == (403, "InvalidInput")
    assert told["text"].startswith("Origin=")
    assert sls_asked(url, "POST", "/logstores", MAKE, "a.localhost", Origin=origin) == (
        400,
        "ParameterInvalid",
    )
    assert asked(url, "/metrics", method="GET", Origin=origin)[0] == 403
    assert streams(url) == 0


@pytest.mark.parametrize("host", NAMES)
def test_programs_on_this_machine_and_the_servers_own_pages_are_served(url: str, host: str) -> None:
    for origin in (f"http://{host}", f"https://{OWN}"):
        assert asked(url, "/v1/hub/list_projects", Host=host)[0] == 200
        assert asked(url, "/v1/hub/list_projects", Host=host, Origin=origin)[0] == 200
    assert sls_asked(url, "GET", "/", host=host) in ((200, ""), (404, "ProjectNotExist"))
    assert asked(url, "/healthz", method="GET", Host="evil.example")[0] == 200


def test_who_takes_the_server_for_a_proxy_or_names_no_host_is_no_page(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    for head in (
        b"GET http://proj.any.test/logstores HTTP/1.1\r\nHost: proj.any.test\r\nConnection: close\r\n\r\n",
        b"POST /v1/hub/list_projects HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    ):
        with closing(socket.create_connection((host, int(port)), timeout=20)) as sock:
            sock.sendall(head)
            assert sock.recv(65_536).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 "))  # No such project.


def test_a_client_of_ours_is_served_under_any_name(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **settings: Any) -> Any:
        return known("127.0.0.1" if host == "shoal.example" else host, *more, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with served(sqlite_url) as url:
        other = url.replace("127.0.0.1", "shoal.example")
        with shoal.connect(other) as hub:
            assert hub.list_streams() == []


def test_aliyuns_clients_are_served_under_any_name(url: str) -> None:
    agent: dict[str, Any] = {"User-Agent": "log-python-sdk-v-0.9.12"}
    for host in OTHERS:
        assert sls_asked(url, "GET", "/", host=host, **agent)[0] in (200, 404)
    assert sls_asked(url, "POST", "/logstores", MAKE, host="proj.loghub.local", **agent)[0] == 404


def test_where_users_are_defined_or_anyone_is_allowed_names_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    store = f"sqlite:///{tmp_path / 'one.db'}"
    with guarded(store) as door, door.hub_of("admin", ALL):
        assert asked(door.url, "/readyz", method="GET", Host="evil.example", Origin="null")[0] == 200
        assert asked(door.url, "/v1/hub/list_projects", Host="evil.example", Origin="null")[0] == 401
    options = ServerOptions(host="0.0.0.0", port=0)  # noqa: S104 - that is what is tested
    with served(f"sqlite:///{tmp_path / 'two.db'}", options, allow_anyone=True) as url:
        assert asked(url, "/v1/hub/list_projects", Host="any.example")[0] == 200
        assert (
            asked(url, "/v1/hub/list_projects", Host="any.example", Origin="http://other.example")[0] == 403
        )
