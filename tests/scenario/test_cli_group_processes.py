"""`shoal group …` as a process: following, watching, Ctrl-C, and a question at a terminal."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator

import pytest

import shoal
from tests.scenario.programs import PROGRAM, Start, finish


@pytest.fixture(autouse=True)
def _hub_of_the_test(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HUB", sqlite_url)


@pytest.fixture(autouse=True)
def _group(hub: shoal.Hub) -> None:
    hub.create_stream("orders", shards=2)
    hub.append("orders", 0, [b"a", b"b"])
    hub.create_group("orders", "billing", start="latest")


def test_a_history_is_followed_until_ctrl_c(hub: shoal.Hub, start: Start) -> None:
    hub.update_group("orders", "billing", timeout=30)
    follower = start("group", "history", "orders", "billing", "--follow", "--json")
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["kind"] == "updated"
    with hub.join_group("orders", "billing", "worker-a"):
        assert [json.loads(follower.stdout.readline())["kind"] for _ in range(3)] == [
            "joined",
            "granted",
            "granted",
        ]
    kinds = [json.loads(follower.stdout.readline())["kind"] for _ in range(3)]
    assert sorted(kinds) == ["left", "released", "released"]
    follower.send_signal(signal.SIGINT)
    assert finish(follower) == (130, b"", b"")


def test_a_follower_ends_with_its_group(hub: shoal.Hub, start: Start) -> None:
    hub.update_group("orders", "billing", timeout=30)
    follower = start("group", "history", "orders", "billing", "-f")
    assert follower.stdout is not None
    assert b"updated" in follower.stdout.readline()
    hub.delete_group("orders", "billing")
    code, out, err = finish(follower)
    assert (code, out) == (3, b"")
    assert err.startswith(b"error: group='billing'")


def test_a_watch_without_a_terminal_prints_one_look_after_the_other(hub: shoal.Hub, start: Start) -> None:
    watcher = start("group", "describe", "orders", "billing", "--watch", "100ms", "--json")
    assert watcher.stdout is not None
    assert json.loads(watcher.stdout.readline())["state"] == "empty"
    with hub.join_group("orders", "billing", "worker-a"):
        for line in watcher.stdout:
            if json.loads(line)["state"] == "stable":
                break
    watcher.send_signal(signal.SIGINT)
    code, _, err = finish(watcher)
    assert (code, err) == (130, b"")


Seat = tuple[Callable[..., subprocess.Popen[bytes]], Callable[[bytes], bytes], Callable[[bytes], None]]


@pytest.fixture
def terminal() -> Iterator[Seat]:
    """Starts the program at a terminal of 40 lines; reads until something is seen; types."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    started: list[subprocess.Popen[bytes]] = []

    def start_there(*words: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([PROGRAM, *words], stdin=theirs, stdout=theirs, stderr=theirs))
        return started[-1]

    def seen_until(words: bytes) -> bytes:
        seen = b""
        while words not in seen:
            seen += os.read(mine, 4096)
        return seen

    def typed(words: bytes) -> None:
        os.write(mine, words)

    yield start_there, seen_until, typed
    for process in started:
        process.kill()
        process.wait()
    os.close(mine)
    os.close(theirs)


def test_a_watch_on_a_terminal_redraws_its_table(hub: shoal.Hub, terminal: Seat) -> None:
    start_there, seen_until, _ = terminal
    watcher = start_there("group", "describe", "orders", "billing", "-w", "0.1")
    seen_until(b"not_alloc")
    with hub.join_group("orders", "billing", "worker-a"):
        assert b"\x1b[2K" in seen_until(b"already_alloc")
        watcher.send_signal(signal.SIGINT)
        seen_until(b"\x1b[?25h")  # The cursor is there again.
    assert watcher.wait(60) == 130


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_reset_asks_who_sits_at_a_terminal(
    hub: shoal.Hub, terminal: Seat, answer: bytes, code: int
) -> None:
    start_there, seen_until, typed = terminal
    with hub.join_group("orders", "billing", "worker-a"):
        process = start_there("group", "reset", "orders", "billing", "--shard", "0=1")
        asked = seen_until(b"[y/N]")
        assert b"Reset group billing of orders to offset 1 of shard 0, while worker-a uses it?" in asked
        typed(answer)
        assert process.wait(60) == code
        assert hub.describe_group("orders", "billing").lag == (1 if code == 0 else 0)


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_delete_asks_who_sits_at_a_terminal(hub: shoal.Hub, terminal: Seat, answer: bytes, code: int) -> None:
    start_there, seen_until, typed = terminal
    process = start_there("group", "delete", "orders", "billing")
    assert b"Delete group billing of orders with its checkpoints" in seen_until(b"[y/N]")
    typed(answer)
    assert process.wait(60) == code
    assert len(hub.list_groups("orders")) == code
