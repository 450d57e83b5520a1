"""A store asked directly about groups: what it refuses of those who decided on what has changed since."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

import pytest
from sqlalchemy import select

import shoal
from shoal import Hub
from shoal.core.balance import STRATEGIES
from shoal.core.checkpoint import Save
from shoal.core.errors import GroupInUse
from shoal.core.events import Expire, Forgotten, Join, Letting, Release
from shoal.core.group import Group, Member, MemberStatus, Note
from shoal.core.holding import Assignment
from shoal.core.limits import EPOCH_JUMP
from shoal.core.membership import Beat, watched
from shoal.core.model import ShardId, StreamInfo
from shoal.core.names import stream_name
from shoal.core.ownership import step
from shoal.hub.groups import LocalGroups
from shoal.hub.leased import LeasedGroups
from shoal.hub.local import LocalHub
from shoal.lease_port import draw
from shoal.ports import Fence, Newcomer, Touch
from shoal.store.sql.database import Database
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.migration import migrate
from shoal.store.sql.store import SQLStore
from shoal.store.sql.tables import EPOCHS, PRODUCER_EPOCHS, SCHEMA_VERSION, sequences
from shoal.testing.members import eventually, hand_over, holds

STREAM = "orders"


@pytest.fixture
def sql_store(store_url: str) -> Iterator[SQLStore]:
    store = SQLStore.open(store_url)
    yield store
    store.close()


@pytest.fixture
def hub(sql_store: SQLStore) -> Hub:
    """A hub on the store, which watches no group unless someone joins."""
    hub = Hub(LocalHub(sql_store, keeper_interval_s=3600), "a hub on the store")
    hub.create_stream(STREAM, shards=2)
    return hub


class SlowStore(SQLStore):
    """Takes a while to answer who the members are, and remembers how much time was then added to them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.added: list[tuple[int, float]] = []
        self._answered_s: dict[tuple[int, int], float] = {}
        """When it answered first that the one member is at this beat, and has stood for so long."""

    def load_members(self, group_id: int) -> list[Member]:
        found = super().load_members(group_id)
        threading.Event().wait(0.3)
        for member in found:
            self._answered_s.setdefault((member.beat, member.stood_ms), time.monotonic())
        return found

    def add_watches(self, group_id: int, watches: Sequence[tuple[Member, Member]]) -> None:
        now_s = time.monotonic()
        self.added += [
            (after.stood_ms - before.stood_ms, now_s - self._answered_s[before.beat, before.stood_ms])
            for before, after in watches
        ]
        super().add_watches(group_id, watches)


class LateStore(SQLStore):
    """Something happens between a hub's looking at a group and its deleting it."""

    meanwhile: Callable[[], object] | None = None

    def delete_group(self, group_id: int, rule: Callable[[Sequence[Member]], None] | None = None) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        super().delete_group(group_id, rule)


def joined(hub: Hub, name: str, timeout: float = 10.0) -> int:
    """A group with one member, which has beaten once; the group's id."""
    hub.create_group(STREAM, "billing", timeout=timeout)
    newcomer = Newcomer(name=name, incarnation=f"{name}-1", interval_ms=int(timeout * 400))
    group_id = hub.service.groups.join(stream_name(STREAM), "billing", newcomer).group_id
    hub.service.groups.beat(stream_name(STREAM), group_id, beat(name, 1, timeout))
    return group_id


def beat(name: str, number: int, timeout: float = 10.0, seen: int = 0) -> Beat:
    timeout_ms = int(timeout * 1000)
    interval_ms = int(timeout * 400)
    return Beat(
        incarnation=f"{name}-1",
        number=number,
        timeout_ms=timeout_ms,
        interval_ms=interval_ms,
        held={},
        seen=seen,
    )


def loaded(store: SQLStore, group_id: int) -> tuple[Group, StreamInfo]:
    found = store.load_group(group_id)
    assert found is not None
    return found


# --- Watches. ---


def test_a_watch_is_added_only_to_a_row_that_is_as_the_observer_saw_it(hub: Hub, sql_store: SQLStore) -> None:
    hub.create_group(STREAM, "billing")
    group, stream = loaded(sql_store, hub.list_groups(STREAM)[0].id)
    join = Join(name="anna", incarnation="anna-1", timeout_ms=10_000, interval_ms=2500)
    stepped = step(group, join, stream.shards, STRATEGIES)  # Not through the hub, which would watch it too.
    assert sql_store.save_group(group, stepped.group, stepped.notes, 1)
    group_id = group.id
    sql_store.touch([Touch(stream=stream_name(STREAM), group_id=group_id, act=beat("anna", 5))], 1)
    (row,) = sql_store.load_members(group_id)
    assert row.beat == 5
    stale = [
        replace(row, beat=row.beat - 1),
        replace(row, beat=row.beat + 1),
        replace(row, stood_ms=row.stood_ms + 1),
        replace(row, incarnation="another"),
    ]
    sql_store.add_watches(group_id, [(before, watched(before, 100)) for before in stale])
    assert sql_store.load_members(group_id) == [row]
    for _ in range(2):  # The second saw the same, and has watched the same time.
        sql_store.add_watches(group_id, [(row, watched(row, 100))])
        assert sql_store.load_members(group_id) == [replace(row, stood_ms=row.stood_ms + 100)]


def test_a_member_that_has_beaten_since_is_not_buried(hub: Hub, sql_store: SQLStore) -> None:
    group_id = joined(hub, "anna")
    group, stream = loaded(sql_store, group_id)
    anna = group.members["anna-1"]
    silent = replace(group, members={"anna-1": replace(anna, stood_ms=anna.timeout_ms)})
    stepped = step(silent, Expire(incarnation="anna-1", beat=anna.beat), stream.shards, STRATEGIES)
    assert stepped.group.members["anna-1"].status is MemberStatus.GONE
    touch = Touch(stream=stream_name(STREAM), group_id=group_id, act=beat("anna", 2))
    (answer,) = sql_store.touch([touch], 1)
    assert isinstance(answer, Assignment)
    assert not sql_store.save_group(silent, stepped.group, stepped.notes, 1)
    after, _ = loaded(sql_store, group_id)
    assert (after.version, after.members["anna-1"].status) == (group.version, MemberStatus.ACTIVE)
    assert [claim.owner for claim in after.claims] == ["anna-1", "anna-1"]


def test_a_release_that_was_thought_out_before_a_checkpoint_was_saved_does_not_put_it_back(
    hub: Hub, sql_store: SQLStore
) -> None:
    hub.append(STREAM, 0, [b"x"] * 10)
    group_id = joined(hub, "anna")
    group, stream = loaded(sql_store, group_id)
    epoch = group.claims[0].epoch
    letting = Letting(shard=ShardId(0), epoch=epoch, checkpoint=4)
    release = Release(incarnation="anna-1", lettings=[letting])
    stepped = step(group, release, stream.shards, STRATEGIES)
    assert stepped.let_go == [0]
    hub.checkpoint(STREAM, "billing", 0, 7, epoch=epoch)
    assert not sql_store.save_group(group, stepped.group, stepped.notes, 1)
    after, stream = loaded(sql_store, group_id)
    assert (after.version, after.claims[0].checkpoint, after.claims[0].epoch) == (group.version, 7, epoch)
    again = replace(release, lettings=[replace(letting, checkpoint=9)])
    stepped = step(after, again, stream.shards, STRATEGIES)
    assert sql_store.save_group(after, stepped.group, stepped.notes, 1)
    assert loaded(sql_store, group_id)[0].claims[0].checkpoint == 9


def test_steps_and_watches_of_the_same_members_never_wait_for_each_other_in_a_circle(
    hub: Hub, sql_store: SQLStore
) -> None:
    hub.create_group(STREAM, "billing")
    group, stream = loaded(sql_store, hub.list_groups(STREAM)[0].id)
    for place in range(12):  # Whoever joins later comes earlier by its name.
        name = f"{'mlkjihgfedcba'[place]}"
        join = Join(name=name, incarnation=f"{name}-1", timeout_ms=10_000, interval_ms=2500)
        stepped = step(group, join, stream.shards, STRATEGIES)
        assert sql_store.save_group(group, stepped.group, stepped.notes, place)
        group, _ = loaded(sql_store, group.id)

    def change_all() -> None:
        before = group
        for _ in range(60):
            members = {who: replace(one, assigned=one.assigned + 1) for who, one in before.members.items()}
            after = replace(before, version=before.version + 1, members=members)
            assert sql_store.save_group(before, after, [], 1)
            before = after

    def watch_all() -> None:
        for _ in range(60):
            rows = sql_store.load_members(group.id)
            sql_store.add_watches(group.id, [(row, watched(row, 1)) for row in rows])

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(change_all), pool.submit(watch_all)]:
            done.result()


def test_time_counts_from_when_the_answer_came_not_from_when_it_was_asked_for(store_url: str) -> None:
    store = SlowStore.open(store_url)
    assert isinstance(store, SlowStore)
    with Hub(LocalHub(store, keeper_interval_s=3600), "a hub on a slow store") as hub:
        hub.create_stream(STREAM, shards=2)
        joined(hub, "anna", timeout=1.0)
        eventually(lambda: len(store.added) >= 2, "the watch has added twice")
    for added_ms, could_watch_s in store.added:
        assert added_ms <= could_watch_s * 1000


# --- Deleting, and what is kept at hand. ---


def test_a_group_that_someone_joins_while_it_is_being_deleted_is_not_deleted(store_url: str) -> None:
    store = LateStore.open(store_url)
    assert isinstance(store, LateStore)
    with Hub(LocalHub(store, keeper_interval_s=3600), "a hub on the store") as hub:
        hub.create_stream(STREAM, shards=2)
        hub.create_group(STREAM, "billing")
        newcomer = Newcomer(name="anna", incarnation="anna-1")
        store.meanwhile = lambda: hub.service.groups.join(stream_name(STREAM), "billing", newcomer)
        with pytest.raises(GroupInUse, match="anna"):
            hub.delete_group(STREAM, "billing")
        assert [member.name for member in hub.describe_group(STREAM, "billing").members] == ["anna"]
        hub.delete_group(STREAM, "billing", force=True)
        assert hub.list_groups(STREAM) == []


def test_what_a_hub_keeps_of_groups_is_bounded_and_it_finds_what_it_dropped(
    hub: Hub, sql_store: SQLStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.hub.groups._KNOWN", 2)
    groups = hub.service.groups
    assert isinstance(groups, LocalGroups)
    hub.create_group(STREAM, "leased", coordination="leased")
    group_id = groups.find(stream_name(STREAM), "leased").id
    with hub.join_group(STREAM, "leased", "anna") as anna:
        holds(anna, [0, 1])
        hub.append(STREAM, 0, [b"a", b"b"])
        for name in ("g0", "g1", "g2"):
            hub.create_group(STREAM, name)
            groups.find(stream_name(STREAM), name)
            assert len(groups._kinds) <= 2
        epoch = anna.leases[ShardId(0)].epoch
        groups.save(stream_name(STREAM), group_id, [Save(shard=ShardId(0), epoch=epoch, offset=2)])
        assert hub.describe_group(STREAM, "leased").shards[0].checkpoint == 2
        groups.check_read(stream_name(STREAM), ShardId(0), Fence(group_id, epoch, is_leased=True))


def test_a_reset_follows_what_was_split_since_the_stream_was_looked_at(hub: Hub, sql_store: SQLStore) -> None:
    hub.append(STREAM, 0, [b"a", b"b"])
    hub.create_group(STREAM, "leased", coordination="leased")
    before = sql_store.load_stream(stream_name(STREAM))
    group = hub.service.groups.find(stream_name(STREAM), "leased")
    groups = LeasedGroups(sql_store, sql_store)
    leased = groups.opened(group)
    with hub.join_group(STREAM, "leased", "anna") as anna:
        holds(anna, [0, 1])
        hub.split_shard(STREAM, 0)
        anna.checkpoint({0: 2})
        holds(anna, [1, 2, 3])
        for shard in (2, 3):
            hub.append(STREAM, shard, [b"c"])
            anna.checkpoint({shard: 1})
        eventually(lambda: leased.table.load(leased.key, ShardId(0)) is None, "its row is cleaned up")
        groups.rewind(group, before, {ShardId(0): 1}, "a reset")
        let_go: set[int] = set()

        def is_free() -> bool:
            let_go.update(hand_over(anna))
            return let_go == {2, 3}

        eventually(is_free, "what came of it is let go of")
        holds(anna, [0, 1])
        assert anna.leases[ShardId(0)].checkpoint == 1


def test_a_reset_removes_a_row_that_was_made_by_mistake_below_what_it_names(
    hub: Hub, sql_store: SQLStore
) -> None:
    hub.append(STREAM, 0, [b"a"])
    hub.create_group(STREAM, "leased", coordination="leased")
    group = hub.service.groups.find(stream_name(STREAM), "leased")
    groups = LeasedGroups(sql_store, sql_store)
    leased = groups.opened(group)
    with hub.join_group(STREAM, "leased", "anna") as anna:
        holds(anna, [0, 1])
        for parent, saved, held in ((0, (3,), [1, 2, 3]), (2, (4, 5), [1, 3, 4, 5])):
            hub.split_shard(STREAM, parent)
            anna.checkpoint({parent: 1})
            holds(anna, held)
            for shard in held[-2:]:
                hub.append(STREAM, shard, [b"b"])
            anna.checkpoint(dict.fromkeys(saved, 1))
        eventually(lambda: {r.shard for r in leased.table.list(leased.key)} == {1, 3, 4, 5}, "cleaned up")
    number = draw(leased.table, leased.key, 1)[0]
    like = leased.table.load(leased.key, ShardId(4))
    assert like is not None
    mistake = replace(
        like, shard=ShardId(2), born=number, revision=number, checkpoint=0, parents=(ShardId(0),), epoch=0
    )
    assert leased.table.create(mistake)
    groups.rewind(group, sql_store.load_stream(stream_name(STREAM)), {ShardId(0): 0}, "a reset")
    made = leased.table.load(leased.key, ShardId(2))
    assert made is not None
    assert (made.is_over, made.checkpoint) == (True, 1)
    with hub.join_group(STREAM, "leased", "bert") as bert:
        holds(bert, [0, 1])


# --- A store that forgot. ---


def test_a_beat_that_has_seen_more_than_the_store_knows_is_told_apart_and_counts_for_nothing(
    hub: Hub, sql_store: SQLStore
) -> None:
    group_id = joined(hub, "anna")
    group, _ = loaded(sql_store, group_id)
    for seen, is_forgotten in ((group.version, False), (group.version + 1, True)):
        act = beat("anna", 2, seen=seen)
        (answer,) = sql_store.touch([Touch(stream=stream_name(STREAM), group_id=group_id, act=act)], 1)
        assert isinstance(answer, Forgotten) == is_forgotten
    assert loaded(sql_store, group_id)[0].members["anna-1"].beat == 2


def test_when_the_store_forgot_nothing_is_granted_for_one_timeout_and_epochs_jump(
    hub: Hub, sql_store: SQLStore
) -> None:
    timeout = 0.6
    group_id = joined(hub, "anna", timeout)
    group, _ = loaded(sql_store, group_id)
    began = time.monotonic()
    groups = hub.service.groups
    answer = groups.beat(stream_name(STREAM), group_id, beat("anna", 2, timeout, seen=group.version + 7))
    assert answer.granted is not None
    assert [(one.is_wanted, one.is_extended) for one in answer.granted] == [(False, False)] * 2
    after, _ = loaded(sql_store, group_id)
    assert after.version > group.version + 7
    assert after.distrust_ms > 0
    groups.leave(group_id, "anna-1", ())
    with hub.join_group(STREAM, "billing", "bert") as bert:
        holds(bert, [0, 1])
        assert time.monotonic() - began >= timeout
        assert all(lease.epoch > group.epoch + EPOCH_JUMP for lease in bert.leases.values())


# --- Epochs. ---


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION - 1])
def test_the_sequence_of_epochs_is_there_before_anyone_wants_one(store_url: str, version: int) -> None:
    database = Database(dialect_for(store_url))
    if version:
        migrate(database, durable=True, upto=version)
    for _ in range(2):
        shoal.connect(store_url).close()
        with database.read() as connection:
            rows = sorted(tuple(row) for row in connection.execute(select(sequences)))
            assert rows == [(EPOCHS, 0), (PRODUCER_EPOCHS, 0)]
    database.close()


def test_the_first_epochs_ever_can_be_given_in_several_groups_at_once(
    fresh_store_url: Callable[[], str],
) -> None:
    for _ in range(2):
        url = fresh_store_url()
        with ExitStack() as stack:
            hubs = [stack.enter_context(shoal.connect(url)) for _ in range(4)]
            hubs[0].create_stream(STREAM, shards=2)
            for place in range(len(hubs)):
                hubs[0].create_group(STREAM, f"g{place}")
            together = threading.Barrier(len(hubs))

            def join(place: int) -> set[int | None]:
                together.wait()  # noqa: B023 - of this round
                with hubs[place].join_group(STREAM, f"g{place}", "anna"):  # noqa: B023
                    return {shard.epoch for shard in hubs[place].describe_group(STREAM, f"g{place}").shards}  # noqa: B023

            with ThreadPoolExecutor(len(hubs)) as threads:
                assert list(threads.map(join, range(len(hubs)))) == [{1, 2}] * len(hubs)
            # A group that is made later begins above all of them.
            hubs[0].create_group(STREAM, "later")
            with hubs[0].join_group(STREAM, "later", "anna"):
                epochs = {shard.epoch for shard in hubs[0].describe_group(STREAM, "later").shards}
            assert epochs == {3, 4}


def test_lines_of_history_that_come_at_once_have_times_in_their_order(sql_store: SQLStore, hub: Hub) -> None:
    # A consumer of a leased group asks the clock, another one too, and is the first to be written down.
    hub.create_group(STREAM, "billing", coordination="leased")
    group_id = hub.service.groups.find(stream_name(STREAM), "billing").id
    ticks = count(1)

    def tell(_: int) -> None:
        sql_store.add_notes(group_id, [Note(kind="take")], lambda: next(ticks))

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(tell, range(40)))
    times = [at_ms for at_ms, note in sql_store.history(group_id, 100) if note.kind == "take"]
    assert times == list(range(1, 41))
