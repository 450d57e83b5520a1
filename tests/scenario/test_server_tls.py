"""A server that speaks TLS."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import InvalidInput, StoreUnavailable
from shoal.server.handshakes import AT_ONCE_MIN
from shoal.server.options import ServerOptions
from shoal.server.starting import open_server
from shoal.testing.members import eventually
from shoal.testing.serving import served


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=host"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("there is no openssl to make a certificate with")
    return certificate, key


@pytest.fixture
def trusted(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(files[0]))


class Silent:
    """Clients that connect to a server, and do not begin with TLS."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self._port, self._stack = int(url.rpartition(":")[2]), stack
        self._open: list[socket.socket] = []

    def come(self, count: int) -> None:
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            self._stack.callback(sock.close)
            sock.setblocking(False)
            self._open.append(sock)

    @property
    def open(self) -> int:
        self._open = [sock for sock in self._open if not _is_closed(sock)]
        return len(self._open)


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_it_speaks_tls_by_option(
    sqlite_url: str, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = files
    with served(sqlite_url, ServerOptions(port=0, certificate=certificate, key=key)) as url:
        assert url.startswith("https://")
        with pytest.raises(StoreUnavailable, match="certificate"):
            shoal.connect(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=1)
            hub.append("orders", 0, [b"x" * 100_000])
            assert len(hub.read("orders", 0, 0)) == 1


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\0"])
def test_who_does_not_begin_with_tls_is_cut_off_as_who_sends_no_head_is(
    sqlite_url: str, files: tuple[Path, Path], said: bytes
) -> None:
    options = ServerOptions(port=0, certificate=files[0], key=files[1], head_s=1)
    with (
        served(sqlite_url, options) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as sock,
    ):
        sock.sendall(said)
        assert sock.recv(65_536) in (b"", b"\x15\x03\x01\0\x02\x02F")  # The latter is TLS for the same.


@pytest.mark.usefixtures("trusted")
def test_those_who_have_not_begun_count_among_connections_and_keep_nobody_out(
    sqlite_url: str, files: tuple[Path, Path], stack: ExitStack
) -> None:
    most = AT_ONCE_MIN + 20
    options = ServerOptions(
        port=0, certificate=files[0], key=files[1], head_s=600, connections_max=most, stop_s=5
    )
    with served(sqlite_url, options) as url, shoal.connect(url) as first:
        first.create_stream("orders", shards=1)
        silent = Silent(url, stack)
        silent.come(2 * most)
        eventually(lambda: silent.open < most, "only so many are kept")
        for _ in range(3):
            with shoal.connect(url) as another:
                another.append("orders", 0, [b"x"])
            silent.come(most)
        assert len(first.read("orders", 0, 0)) == 3
        eventually(lambda: silent.open < most, "only so many are kept")
        assert silent.open >= AT_ONCE_MIN


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_pass_phrase(
    sqlite_url: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = files
    encrypted = tmp_path / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:hush", "-out", encrypted], check=True
    )
    with pytest.raises(InvalidInput, match=r"key=.*encrypted.*openssl pkey -in ") as raised:
        open_server(sqlite_url, ServerOptions(port=0, certificate=certificate, key=encrypted), version="1")
    assert "\n" not in str(raised.value)
