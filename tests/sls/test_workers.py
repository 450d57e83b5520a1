"""Workers of Aliyun's own consumer library: alone, together, killed, and in one group with ours."""

from itertools import count
from pathlib import Path

import pytest

from shoal import Batch, Checkpointer, Hub, Worker
from shoal.remote.signing import Credentials
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.server.sls.records import SCHEMA
from shoal.testing.members import eventually
from shoal.testing.users import ALL, guarded, of_the_document
from tests.sls.running import STREAM, Reader, Start, held, lag, numbers, reading, send, stop


def test_one_worker_gets_every_log_and_its_checkpoint_is_the_groups(hub: Hub, url: str, start: Start) -> None:
    hub.create_stream(STREAM, shards=2, schema=SCHEMA)
    send(hub, numbers(0, 50))
    with reading(start, url, "g", "one") as one:
        eventually(lambda: sorted(one.texts, key=int) == numbers(0, 50), "it gets there", 20)
        eventually(lambda: lag(hub) == 0, "it gets there", 20)
        one.stop()
    with reading(start, url, "g", "one") as again:
        eventually(lambda: "started" in again.lines, "it gets there", 20)
        send(hub, ["50"])
        eventually(lambda: again.texts == ["50"], "it gets there", 20)


def test_aliyuns_workers_and_ours_are_members_of_one_group(hub: Hub, url: str, start: Start) -> None:
    hub.create_stream(STREAM, shards=4, schema=SCHEMA)
    hub.create_group(STREAM, "g", timeout=2.0, in_order=False)
    seen: list[str] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.extend(dict(row["contents"])["text"].decode() for row in batch.to_arrow().to_pylist())
        checkpointer.save()

    with reading(start, url, "g", "theirs") as theirs:
        eventually(lambda: held(hub) == [4], "it gets there", 30)
        ours = Worker(hub, STREAM, group="g", processor=process, name="ours").start()
        try:
            eventually(lambda: held(hub) == [2, 2], "it gets there", 30)
            send(hub, numbers(0, 100))
            eventually(lambda: sorted(seen + theirs.texts, key=int) == numbers(0, 100), "it gets there", 30)
            assert seen
            assert theirs.texts
        finally:
            ours.stop()
        eventually(lambda: held(hub) == [4], "it gets there", 30)


@pytest.mark.parametrize("where", ["begin", "end"])
def test_children_of_an_empty_or_passed_over_parent_are_consumed_in_order(
    where: str, hub: Hub, url: str, start: Start
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    if where == "end":
        send(hub, ["before"])
    hub.split_shard(STREAM, 0)
    with reading(start, url, "g", "one", "in_order", where) as one:
        eventually(lambda: held(hub) == [2], "it gets there", 30)
        if where == "end":  # The children were there before the group: what it sees first is its start.
            probes = count(1000)
            eventually(lambda: begun(hub, one, next(probes)) == {1, 2}, "it has begun in both", 20)
        send(hub, numbers(0, 20))
        eventually(lambda: set(numbers(0, 20)) <= set(one.texts), "every one of them comes", 20)
        assert "before" not in one.texts


def begun(hub: Hub, one: Reader, probe: int) -> set[int]:
    """The shards of which a consumer was given something, after one more record."""
    send(hub, [str(probe)])
    return {shard for _, shard, _ in one.seen}


@pytest.mark.parametrize("words", [[], ["in_order"]])
def test_a_consumer_that_begins_at_the_end_loses_nothing_when_shards_are_split_and_merged(
    words: list[str], hub: Hub, url: str, start: Start
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    send(hub, ["before"])
    with reading(start, url, "g", "one", "end", *words) as one:
        eventually(lambda: held(hub) == [1], "it has the shard", 30)
        probes = count(1000)
        eventually(lambda: begun(hub, one, next(probes)) == {0}, "it has begun", 20)
        hub.split_shard(STREAM, 0)
        send(hub, numbers(0, 20))
        hub.merge_shards(STREAM, 1, 2)
        send(hub, numbers(20, 40))
        eventually(lambda: set(numbers(0, 40)) <= set(one.texts), "every one of them comes", 30)
        eventually(lambda: lag(hub) == 0, "all is saved", 20)
        assert "before" not in one.texts


def test_a_worker_of_aliyuns_makes_its_own_settings_those_of_the_group_when_it_starts(
    hub: Hub, url: str, start: Start
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    hub.create_group(STREAM, "g", in_order=True, timeout=20.0)
    with reading(start, url, "g", "one", "in_order"):
        eventually(lambda: held(hub) == [1], "it has joined", 30)
        found = hub.describe_group(STREAM, "g").settings
        assert (found.in_order, found.timeout_ms) == (True, 2000)
    with reading(start, url, "g", "two"):
        eventually(lambda: not hub.describe_group(STREAM, "g").settings.in_order, "it is told so", 30)


def test_a_batch_that_fails_is_passed_over_by_the_client_and_one_that_goes_back_comes_again(
    hub: Hub, url: str, start: Start
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    with reading(start, url, "g", "one", "raise=boom", "again=back") as one:
        for text, is_seen in (("a", True), ("boom", False), ("b", True), ("back", True), ("c", True)):
            send(hub, [text])
            line = text if is_seen else "raised"
            eventually(lambda line=line: line in (*one.texts, *one.lines), f"{text} is processed", 20)  # type: ignore[misc]
        assert one.texts == ["a", "b", "back", "back", "c"]
        eventually(lambda: lag(hub) == 0, "the group is past what failed", 20)
        one.stop()


def test_a_worker_that_drains_ends_by_itself_at_what_was_the_end(hub: Hub, url: str, start: Start) -> None:
    hub.create_stream(STREAM, shards=2, schema=SCHEMA)
    send(hub, numbers(0, 50))
    with reading(start, url, "g", "one", "drain") as one:
        one.ended()
        assert sorted(one.texts, key=int) == numbers(0, 50)
    assert lag(hub) == 0


def test_a_worker_that_drains_in_order_reads_what_comes_after_a_shard_that_it_passes_over(
    hub: Hub, url: str, start: Start
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA)
    hub.create_group(STREAM, "g", timeout=2.0, in_order=True)
    send(hub, ["before"])
    hub.split_shard(STREAM, 0)
    send(hub, numbers(0, 20))
    # It begins behind the last record of the first shard, and where the others do: they are younger than
    # the group.
    with reading(start, url, "g", "one", "in_order", "end", "drain") as one:
        one.ended()
        assert sorted(one.texts, key=int) == numbers(0, 20)
    assert lag(hub) == 0


def test_the_documents_policy_is_enough_for_aliyuns_workers(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    policy = of_the_document("acs:log:cn-hangzhou:1234:project/proj/logstore/store", "g")
    with guarded(f"sqlite:///{tmp_path / 'shoal.db'}") as door, door.hub_of("admin", ALL) as hub:
        door.key_of("consumer", policy, key=Credentials(key="id", secret="secret"))
        hub.create_stream(STREAM, shards=4, schema=SCHEMA)
        hub.split_shard(STREAM, 0)
        # The second finds the group, and updates it to what it is.
        with reading(start, door.url, "g", "one", "in_order") as one:
            eventually(lambda: len(held(hub)) == 1, "the first has come", 30)
            with reading(start, door.url, "g", "two", "in_order") as two:
                eventually(lambda: held(hub) == [2, 3], "they share", 30)
                send(hub, numbers(0, 100))
                eventually(lambda: set(one.texts + two.texts) == set(numbers(0, 100)), "all is read", 30)
                eventually(lambda: lag(hub) == 0, "all is saved", 20)
                stop(one, two)
