"""Workers in both kinds of group: what processors are given and told, what is saved, what failures lead to.

Defends invariants 3, 4 and 5 of the design with real workers: keys in order through joins, stops, splits and
merges; nothing lost; nothing that was declared done comes again in a planned hand-over.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
import xxhash

import shoal
from shoal import Batch, Checkpointer, Hub, Processor, Reason
from shoal.core.errors import InvalidInput, NameTaken, ProcessorFailed, UnknownGroup, UnknownStream
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.testing.contract.workers import GROUP, Make, WorkerSuite, record_of
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, append_numbers, checkpoints, save_nothing, save_now

KEYS = [b"k%d" % number for number in range(24)]
AT_ONCE = Backoff(first_s=0.02, max_s=0.05)


class WorkerContract(WorkerSuite):
    # --- Order, hand-overs, endings. ---

    def test_keys_stay_in_order_and_nothing_saved_comes_again_through_joins_stops_splits_and_merges(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=3)
        diary = Diary()
        sent = 0
        with hub.producer(orders, linger_s=0) as producer:

            def send() -> None:
                nonlocal sent
                for _ in range(3):
                    for key in KEYS:
                        producer.send(b"%d" % sent, key=key)
                        sent += 1
                producer.flush()

            send()
            anna = work(diary.processor("anna"), "anna").start()
            diary.wait_for(sent)
            bert = work(diary.processor("bert"), "bert").start()
            send()
            eventually(lambda: {len(anna.shards), len(bert.shards)} == {1, 2}, "both hold their share")
            hub.split_shard(orders, 0)
            send()
            hub.merge_shards(orders, 1, 2)
            send()
            carl = work(diary.processor("carl"), "carl").start()
            send()
            # Who stops while it has the parent ends it by stopping, if it has done all of it.
            eventually(lambda: diary.reasons(shard=0)[-1:] == [Reason.ENDED], "the parent ends")
            anna.stop()
            send()
            diary.wait_for(sent)
            eventually(lambda: len(bert.shards) + len(carl.shards) == 3, "all open shards are held")
            bert.stop()
            carl.stop()
        values = diary.values()
        assert len(values) == sent, "each record once"
        for key, given in diary.by_key().items():
            assert [int(value) for value in given] == sorted(int(value) for value in given), key
        assert set(diary.reasons(shard=0)) <= {Reason.ENDED, Reason.MOVED}
        assert diary.reasons(shard=0)[-1] is Reason.ENDED
        assert hub.describe_group(orders, GROUP).lag == 0
        assert all(may_save for *_, may_save in diary.endings)

    def test_each_ending_tells_its_reason_and_has_its_rights(self, hub: Hub, orders: str, work: Make) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(3))
        diary = Diary()
        told: list[tuple[str, int]] = []
        hold = threading.Event()
        hold.set()

        def wait_and_save(_: Batch, checkpointer: Checkpointer) -> None:
            hold.wait(20)
            if checkpointer.shard != 1 or checkpointer.position() < 3:
                checkpointer.save(persist=False)

        anna = work(
            diary.processor("anna", wait_and_save), listener=lambda what, shard, _: told.append((what, shard))
        ).start()
        diary.wait_for(6)
        hub.split_shard(orders, 0)
        eventually(lambda: diary.reasons("anna", 0) == [Reason.ENDED], "it ends")
        eventually(lambda: set(anna.shards) == {1, 2, 3}, "the children are held")
        bert = work(diary.processor("bert"), "bert").start()
        eventually(lambda: Reason.MOVED in diary.reasons("anna"), "one moves")
        eventually(lambda: len(bert.shards) == 1 and len(anna.shards) == 2, "and has arrived")
        bert.stop()
        eventually(lambda: len(anna.shards) == 3, "it comes back")
        assert diary.reasons("bert") == [Reason.STOPPED]
        hold.clear()
        append_numbers(hub, orders, 1, [3])
        diary.wait_for(7)
        anna.stop(timeout=0.3)
        assert diary.reasons("anna").count(Reason.STOPPED) == 2
        assert not anna.is_running
        hold.set()
        eventually(lambda: diary.reasons("anna", 1)[-1:] == [Reason.LOST], "too late, and told so")
        for _, shard, reason, may_save in diary.endings:
            assert may_save == (reason is not Reason.LOST), (shard, reason)
        assert [what for what, shard in told if shard == 0] == ["opened", "ended"]
        assert [what for what, shard in told if shard == 1][-3:] == ["opened", "lost", "gone"]
        assert checkpoints(hub, orders, GROUP)[1] == 3

    def test_another_of_the_same_name_ends_the_older_one_and_gets_its_shards(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(3))
        diary = Diary()
        older = work(diary.processor("older", save_now)).start()
        diary.wait_for(3)
        newer = work(diary.processor("newer", save_now)).start()
        assert older.wait(20), "it ends by itself"
        with pytest.raises(NameTaken):
            older.stop()
        append_numbers(hub, orders, 0, range(3, 6))
        diary.wait_for(6)
        eventually(lambda: len(newer.shards) == 2, "it has all")
        assert diary.offsets(0) == list(range(6))

    def test_a_group_that_is_reset_begins_again_and_what_was_on_its_way_does_not_count(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        for shard in (0, 1):
            append_numbers(hub, orders, shard, range(5))
        diary = Diary()
        worker = work(diary.processor()).start()
        diary.wait_for(10)
        hub.checkpoint(orders, GROUP, 1, 2, force=True)
        diary.wait_for(13)
        assert diary.offsets(1) == [0, 1, 2, 3, 4, 2, 3, 4]
        hub.reset_group(orders, GROUP, to="earliest")
        diary.wait_for(23)
        worker.stop()
        assert checkpoints(hub, orders, GROUP) == {0: 5, 1: 5}
        assert diary.offsets(0) == [*range(5)] * 2

    # --- Checkpoints. ---

    def test_what_is_saved_for_later_is_persisted_after_a_while_and_before_a_hand_over(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(4))
        diary = Diary()
        worker = work(diary.processor(), persist_interval=0.4).start()
        diary.wait_for(4)
        eventually(lambda: checkpoints(hub, orders, GROUP) == {0: 4}, "it is persisted in the background")
        worker.stop()
        lazy = work(diary.processor(), "lazy", persist_interval=600).start()
        append_numbers(hub, orders, 0, range(4, 6))
        diary.wait_for(6)
        assert checkpoints(hub, orders, GROUP) == {0: 4}
        lazy.stop()
        assert checkpoints(hub, orders, GROUP) == {0: 6}
        assert diary.offsets(0) == list(range(6))

    def test_what_was_never_saved_is_never_persisted_and_part_of_a_batch_is_part(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(10))
        given: list[list[int]] = []

        class Careless(Processor):
            def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
                offsets = []
                for record in batch:
                    offsets.append(record.offset)
                    if record.offset == 3:
                        assert checkpointer.save(persist=False) == 4
                        assert checkpointer.position() == 4
                given.append(offsets)

        for name in ("anna", "bert"):
            given.clear()
            worker = work(Careless, name, persist_interval=0.1, batch_records=5).start()
            eventually(lambda: bool(given) and given[-1][-1] == 9, "it has seen all")
            eventually(lambda: checkpoints(hub, orders, GROUP) == {0: 4}, "persisted in the background")
            worker.stop()
            assert checkpoints(hub, orders, GROUP) == {0: 4}
            assert [offset for offsets in given for offset in offsets] == list(
                range(0 if name == "anna" else 4, 10)
            )

    def test_process_may_go_back_and_gets_the_same_again_before_what_follows(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(10))
        diary = Diary()

        def back_once(batch: Batch, checkpointer: Checkpointer) -> int | None:
            if batch.next_offset == 10 and len(diary.batches) < 4:
                return 3
            return None if batch.next_offset < 10 else checkpointer.save() * 0 + 10

        # The budget is so small that what was read ahead fills it: what is wanted again needs no room.
        work(diary.processor(work=back_once), batch_records=4, ahead_bytes=300).start()
        diary.wait_for(17)
        assert diary.offsets(0) == [*range(10), *range(3, 10)]
        eventually(lambda: checkpoints(hub, orders, GROUP) == {0: 10}, "it is saved")
        append_numbers(hub, orders, 0, [10])
        diary.wait_for(18)

    # --- What a processor may be, and where it begins and ends. ---

    def test_a_processor_is_a_function_a_decorated_one_a_factory_or_a_class(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(3))
        append_numbers(hub, orders, 1, range(3))
        seen: list[str] = []

        def function(batch: Batch, checkpointer: Checkpointer) -> None:
            seen.extend(["function"] * len(batch))
            checkpointer.save()

        @shoal.processor
        def decorated(batch: Batch, checkpointer: Checkpointer) -> None:
            seen.extend(["decorated"] * len(batch))
            checkpointer.save()

        class Made(Processor):
            def __init__(self, what: str = "class") -> None:
                self.what, self.shard = what, -1

            def initialize(self, shard: int) -> None:
                assert self.shard == -1, "an object for each shard"
                self.shard = shard

            def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
                assert batch.shard == self.shard == checkpointer.shard
                assert checkpointer.epoch > 0
                seen.extend([self.what] * len(batch))
                checkpointer.save()

        kinds: dict[str, object] = {
            "function": function,
            "decorated": decorated,
            "class": Made,
            "factory": lambda: Made("factory"),
        }
        for group, kind in kinds.items():
            work(kind, group=group, until="now").run()
            assert checkpoints(hub, orders, group) == {0: 3, 1: 3}
        assert {what: seen.count(what) for what in kinds} == dict.fromkeys(kinds, 6)
        for wrong in (Made(), 7, None, lambda batch: batch, _of_three):
            with pytest.raises(InvalidInput):
                work(wrong)

    def test_start_positions_and_until_now(self, hub: Hub, orders: str, work: Make) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(5))
        append_numbers(hub, orders, 1, range(5))
        starts: dict[str, object] = {
            "earliest": "earliest",
            "latest": "latest",
            "offsets": {0: 3, 1: 5},
            "past": datetime(2020, 1, 1, tzinfo=UTC),
        }
        wanted = {"earliest": 10, "latest": 0, "offsets": 2, "past": 10}
        for group, start in starts.items():
            diary = Diary()
            worker = work(diary.processor(), group=group, start=start, until="now").start()
            assert worker.wait(20), "it ends by itself"
            assert len(diary.values()) == wanted[group], group
            assert not worker.is_running
            assert worker.error is None
        hub.split_shard(orders, 0)
        append_numbers(hub, orders, 2, range(2))
        diary = Diary()
        work(diary.processor(), group="latest", until="now").run()
        assert len(diary.values()) == 2, "a shard born later is read from its beginning"
        worker = work(save_nothing, group="another", until="now").start()
        assert worker.wait(20)
        assert worker.stats.records == 12
        assert checkpoints(hub, orders, "another") == {0: 5, 1: 0, 2: 0, 3: 0}, (
            "drained is not saved, but for the end of what has ended"
        )

    def test_two_that_save_at_their_end_do_not_wait_for_each_other_to_be_drained(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(5))
        append_numbers(hub, orders, 1, range(5, 10))
        given: list[int] = []
        go = threading.Event()

        class Late(Processor):
            def process(self, batch: Batch, _: Checkpointer) -> int | None:
                if not go.wait(0.02):
                    return batch.first_offset
                given.extend(int(record.value) for record in batch)
                return None

            def shutdown(self, checkpointer: Checkpointer, _: Reason) -> None:
                checkpointer.save(persist=False)

        anna, bert = (work(Late, name, until="now").start() for name in ("anna", "bert"))
        eventually(lambda: len(anna.shards) == len(bert.shards) == 1, "each has one")
        go.set()
        assert anna.wait(20)
        assert bert.wait(20)
        assert sorted(given) == list(range(10)), "each once"
        assert checkpoints(hub, orders, GROUP) == {0: 5, 1: 5}

    def test_a_group_is_made_if_there_is_none_unless_the_user_says_not_to(
        self, hub: Hub, orders: str, work: Make, coordination: str
    ) -> None:
        hub.create_stream(f"{orders}-of-others", shards=1)
        with pytest.raises(UnknownStream):
            work(save_now).start()
        hub.create_stream(orders, shards=1)
        refused = work(save_now, create_group=False)
        with pytest.raises(UnknownGroup):
            refused.start()
        assert not refused.is_running
        refused.stop()
        rules = FailureRules(policy=Policy.STOP)
        with work(save_now, "bert", timeout=3.0, in_order=False, failure=rules) as worker:
            eventually(lambda: worker.shards == {0: "processing"}, "it works")
            with pytest.raises(InvalidInput):
                worker.start()
        (group,) = hub.list_groups(orders)
        assert (group.settings.coordination, group.settings.timeout_ms) == (coordination, 3000)
        assert (group.settings.in_order, group.settings.failure) == (False, Policy.STOP)
        with work(save_now, "carl", create_group=False):
            pass

    def test_empty_batches_come_when_asked_for_and_may_go_back(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        append_numbers(hub, orders, 0, range(3))
        given: list[tuple[int, int]] = []

        def process(batch: Batch, checkpointer: Checkpointer) -> int | None:
            given.append((len(batch), batch.next_offset))
            checkpointer.save(persist=False)
            return 1 if given.count((0, 3)) == 2 and (2, 3) not in given else None

        work(process, call_when_idle=0.05).start()
        eventually(lambda: given.count((0, 3)) >= 4, "empty batches")
        assert given[0] == (3, 3)
        assert given[1:4] == [(0, 3), (0, 3), (2, 3)], "back to 1 from an empty batch"

    # --- Failures. ---

    def test_strict_tries_again_in_place_and_nothing_overtakes(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(9))
        append_numbers(hub, orders, 1, range(9))
        diary = Diary()
        fails = 4
        allow = threading.Event()

        def fail_at_4(batch: Batch, checkpointer: Checkpointer) -> None:
            for record in batch:
                if batch.shard == 0 and record.offset == 4 and not allow.is_set():
                    raise ValueError("not yet")
                checkpointer.save(persist=False)

        rules = FailureRules(policy=Policy.STRICT, backoff=AT_ONCE)
        worker = work(diary.processor(work=fail_at_4), failure=rules, batch_records=3).start()
        eventually(lambda: worker.stats.failures >= fails, "it is tried again and again")
        eventually(lambda: len(diary.offsets(1)) == 9, "the other shard goes on")
        allow.set()
        eventually(lambda: worker.stats.records >= 17, "all is processed")
        offsets = diary.offsets(0)
        assert offsets[:3] == [0, 1, 2]
        assert offsets[-5:] == [4, 5, 6, 7, 8], "what was saved before the failure did not come again"
        assert offsets[3:6] == [3, 4, 5]
        assert all(after in (before + 1, 4) for before, after in pairwise(offsets))
        worker.stop()
        assert checkpoints(hub, orders, GROUP) == {0: 9, 1: 9}

    def test_the_stop_policy_ends_the_worker_with_its_error_and_keeps_what_was_done(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        append_numbers(hub, orders, 0, range(6))
        diary = Diary()

        def fail_at_3(batch: Batch, checkpointer: Checkpointer) -> None:
            for record in batch:
                if record.offset == 3:
                    raise RuntimeError("no more")
                checkpointer.save(persist=False)

        worker = work(diary.processor(work=fail_at_3), failure=FailureRules(policy=Policy.STOP))
        with pytest.raises(ProcessorFailed) as caught:
            worker.run()
        assert (caught.value.shard, caught.value.kind, caught.value.text) == (0, "RuntimeError", "no more")
        assert worker.error is caught.value
        assert set(diary.reasons()) == {Reason.STOPPED}
        assert checkpoints(hub, orders, GROUP) == {0: 3, 1: 0}
        assert hub.describe_group(orders, GROUP).members == ()

    # --- Lanes. ---

    def test_lanes_keep_each_key_in_order_and_the_checkpoint_at_the_finished_prefix(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        count = 120
        hub.append(orders, 0, [record_of(b"%d" % n, KEYS[n % len(KEYS)]) for n in range(count)])
        diary = Diary()
        allow = threading.Event()
        names: set[str] = set()

        def hold_up_key_0(batch: Batch, checkpointer: Checkpointer) -> None:
            names.add(threading.current_thread().name)
            for record in batch:
                if record.key == KEYS[0] and record.offset >= 48:
                    allow.wait(20)
            checkpointer.save()

        worker = work(
            diary.processor(work=hold_up_key_0), parallelism=4, batch_records=10, failure=FailureRules()
        ).start()
        lanes_at_rest = sum(_lane_of(key) != _lane_of(KEYS[0]) for key in KEYS) * count // len(KEYS)
        diary.wait_for(lanes_at_rest)
        eventually(lambda: worker.stats.records >= lanes_at_rest, "the other lanes go on")
        held = checkpoints(hub, orders, GROUP)[0]
        assert held <= 48, "nothing past what is not done"
        allow.set()
        eventually(lambda: checkpoints(hub, orders, GROUP) == {0: count}, "all is done and saved")
        worker.stop()
        assert len(diary.values()) == count
        assert len(names) > 1
        for key, given in diary.by_key().items():
            assert [int(value) for value in given] == sorted(map(int, given)), key

    @pytest.mark.parametrize("lanes_after", [4, 3, 1])
    def test_what_lanes_have_done_beyond_the_checkpoint_does_not_come_again_after_a_move(
        self, hub: Hub, orders: str, work: Make, lanes_after: int
    ) -> None:
        hub.create_stream(orders, shards=1)
        count = 120
        hub.append(orders, 0, [record_of(b"%d" % n, KEYS[n % len(KEYS)]) for n in range(count)])
        done: set[int] = set()

        def fail_on_key_0(batch: Batch, checkpointer: Checkpointer) -> None:
            for record in batch:
                if record.key == KEYS[0]:
                    raise ValueError("not yet")
            done.update(record.offset for record in batch)
            checkpointer.save(persist=False)

        rules = FailureRules(backoff=Backoff(first_s=60))
        worker = work(fail_on_key_0, parallelism=4, batch_records=1, failure=rules).start()
        lanes_at_rest = sum(_lane_of(key) != _lane_of(KEYS[0]) for key in KEYS) * count // len(KEYS)
        eventually(lambda: len(done) >= lanes_at_rest, "the other lanes go on to the end")
        worker.stop()
        assert checkpoints(hub, orders, GROUP) == {0: 0}
        again = Diary()
        with work(again.processor(work=save_now), parallelism=lanes_after, failure=FailureRules()):
            again.wait_for(count - len(done))
            eventually(lambda: checkpoints(hub, orders, GROUP) == {0: count}, "all is done and saved")
        assert sorted(int(value) for value in again.values()) == sorted(set(range(count)) - done)

    def test_what_holds_a_shard_up_is_shown_until_it_does_no_more(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"x"])
        is_mended = threading.Event()

        def fail(_: Batch, checkpointer: Checkpointer) -> None:
            if not is_mended.is_set():
                raise ValueError("the table is not there")
            checkpointer.save()

        def shown() -> str | None:
            block = hub.describe_group(orders, GROUP).shards[0].blocked
            return None if block is None else block.error

        with work(fail, failure=FailureRules(backoff=Backoff(first_s=0.02, max_s=0.1))):
            eventually(lambda: shown() == "ValueError: the table is not there", "it is shown")
            is_mended.set()
            eventually(lambda: shown() is None, "and shown no more")

    @pytest.mark.parametrize("settings", [{"in_order": True}, {"in_order": False}, {"failure": "best_tried"}])
    def test_without_a_policy_of_its_own_a_worker_has_its_groups(
        self, hub: Hub, orders: str, work: Make, coordination: str, settings: dict[str, Any]
    ) -> None:
        is_set_aside = settings != {"in_order": True}
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [b"bad", b"good"])
        hub.create_group(orders, GROUP, coordination=coordination, **settings)
        seen = Diary()

        def fail(batch: Batch, checkpointer: Checkpointer) -> None:
            for record in batch:
                if record.value == b"bad":
                    raise ValueError("bad")
            checkpointer.save()

        with work(seen.processor(work=fail)) as worker:
            if is_set_aside:
                eventually(lambda: worker.stats.retries == 1, "it is set aside")
                eventually(lambda: checkpoints(hub, orders, GROUP) == {0: 2}, "and the rest goes on")
            else:
                eventually(lambda: worker.stats.failures >= 2, "it is tried again in place")
                assert checkpoints(hub, orders, GROUP) == {0: 0}


def _of_three(batch: object, checkpointer: object, more: object) -> None:
    raise AssertionError(f"{batch}, {checkpointer}, {more}: it fits nothing")


def _lane_of(key: bytes) -> int:
    """Of four: what `wire.lanes` says, by another way."""

    return int(xxhash.xxh64_intdigest(key, 42) % 4)
