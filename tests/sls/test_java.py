"""Aliyun's own Java consumer and client, unmodified, from Maven Central; without it, these are skipped."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from shoal import Hub
from shoal.remote.signing import Credentials
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.server.sls.records import SCHEMA
from shoal.testing.maven import COMPILER, Unreachable, compiled, jars
from shoal.testing.members import eventually
from shoal.testing.users import ALL, guarded
from tests.sls.relay import relayed
from tests.sls.running import STREAM, Reader, Start, held, lag, numbers, reading, running, send

CONSUMER = "com.aliyun.openservices loghub-client-lib 0.6.41"
"""The newest that is published; its configuration has no proxy yet."""
CLIENT = "com.aliyun.openservices aliyun-log 0.6.151"
FOLDER = Path(__file__).parent / "java"
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
"""A machine that lives for seconds is not worth what its second compiler costs."""

Consuming = Callable[..., AbstractContextManager[Reader]]


def class_path(part: str, program: str, folder: Path) -> str:
    try:
        return compiled(FOLDER / program, jars(part, is_whole=True), folder)
    except Unreachable as error:
        pytest.skip(f"not to be had from Maven Central: {part} or {COMPILER}: {error}")


@pytest.fixture(scope="module")
def consumer_path(java: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    return class_path(CONSUMER, "Consuming.java", tmp_path_factory.mktemp("consuming"))


@pytest.fixture
def consuming(consumer_path: str, url: str, tmp_path: Path) -> Iterator[Consuming]:
    """Starts consumers. Their endpoint has no port, and a project's name before it: so the name is one that
    their hosts file knows, and the way there is a proxy, which Java's sockets know how to use."""
    hosts = tmp_path / "hosts"
    hosts.write_text("192.0.2.1 proj.loghub.test\n")
    with relayed(url) as port:
        machine = [
            "java",
            *QUICK,
            f"-Djdk.net.hosts.file={hosts}",
            "-DsocksProxyHost=127.0.0.1",
            f"-DsocksProxyPort={port}",
            *("-cp", consumer_path),
        ]

        @contextmanager
        def start(*words: str) -> Iterator[Reader]:
            process = subprocess.Popen(
                [*machine, "Consuming", "loghub.test", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            with running(process) as reader:
                yield reader

        yield start


def test_javas_consumers_share_follow_a_split_in_order_and_one_takes_over_from_a_killed_one(
    hub: Hub, consuming: Consuming
) -> None:
    hub.create_stream(STREAM, shards=4, schema=SCHEMA)
    with consuming("g", "one", "in_order") as one, consuming("g", "two", "in_order") as two:
        eventually(lambda: held(hub) == [2, 2], "they share", 40)
        send(hub, numbers(0, 100))
        hub.split_shard(STREAM, 0)
        send(hub, numbers(100, 200))
        eventually(lambda: sorted(one.texts + two.texts, key=int) == numbers(0, 200), "all is read", 30)
        assert one.texts
        assert two.texts
        eventually(lambda: lag(hub) == 0, "all is saved", 20)
        one.kill()
        send(hub, numbers(200, 300))
        eventually(lambda: set(numbers(200, 300)) <= set(one.texts + two.texts), "it takes over", 30)
        eventually(lambda: held(hub) == [5], "it holds all", 20)
        two.stop()
        assert not [line for line in two.lines if "not saved" in line]


def test_children_of_a_shard_that_javas_consumer_passes_over_do_not_wait(
    hub: Hub, consuming: Consuming
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    send(hub, ["before"])
    hub.split_shard(STREAM, 0)
    with consuming("g", "one", "in_order", "end") as one:
        eventually(lambda: held(hub) == [2], "it holds the children", 30)
        assert one.texts == []


def test_javas_and_pythons_consumers_are_one_group_however_its_name_is_spelled(
    hub: Hub, url: str, start: Start, consuming: Consuming
) -> None:
    hub.create_stream(STREAM, shards=2, schema=SCHEMA)
    hub.create_group(STREAM, "g", timeout=2.0, in_order=False)
    # Java finds "g" when it looks for "G", so it creates none; and then speaks of "G".
    with reading(start, url, "g", "python") as python, consuming("G", "java") as java_one:
        eventually(lambda: held(hub) == [1, 1], "they share", 40)
        send(hub, numbers(0, 50))
        eventually(
            lambda: sorted(python.texts + java_one.texts, key=int) == numbers(0, 50), "all is read", 30
        )
        assert python.texts
        assert java_one.texts
    assert [group.name for group in hub.list_groups(STREAM)] == ["g"]


def test_calls_of_javas_client_through_its_proxy_setting_are_answered_in_both_versions(
    java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = class_path(CLIENT, "Calling.java", tmp_path)
    monkeypatch.setenv(VARIABLE, new_master_key())
    for version in ("V1", "V4"):
        with guarded(f"sqlite:///{tmp_path / version}.db") as door:
            door.key_of("ann", ALL, key=Credentials(key="id", secret="secret"))
            port = door.url.rpartition(":")[2]
            done = subprocess.run(
                ["java", *QUICK, "-cp", path, "Calling", port, "id", "secret", version],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.stdout.endswith("done\n"), done.stdout + done.stderr
