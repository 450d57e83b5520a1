"""The machine of a shared shard, against a model that keeps every record by itself, and by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import StoreCorrupt
from shoal.core.limits import SHARE_RECORDS_HELD, SHARE_SPANS_MAX
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.share import ShareRules, ShareState, forgotten, is_over, outlook, passed, step
from shoal.core.share_acts import Granted, How, Receive, Reopen, Restart, Settle, Settled, Why
from shoal.core.spans import Range, Span, carve, put_back, ranges_of, records, without
from shoal.wire.share_form import decoded, encoded

RULES = ShareRules(max_attempts=3)
BY_KEY = ShareRules(max_attempts=3, key_ordered=True)
VISIBILITY = 100


_AT: dict[int, tuple[ShareState, int]] = {}
"""When each state was made, on the one clock of these tests. They are kept, so that none is mistaken."""


def left(state: ShareState, at: int) -> dict[int, int]:
    """What one who has watched all the time knows."""
    since = at - _AT.get(id(state), (state, 0))[1]
    return {pledge: rest - since for pledge, rest in state.left.items()}


def stepped(
    state: ShareState, act: Receive | Settle | Reopen | Restart, shard: Shard, rules: ShareRules, at: int
) -> tuple[ShareState, Granted | Settled]:
    after, answer = step(state, act, shard, rules, left(state, at))
    if after is not state:
        _AT[id(after)] = (after, at)
    return after, answer


def a_shard(end: int, *, first: int = 0, is_open: bool = True) -> Shard:
    status = ShardStatus.OPEN if is_open else ShardStatus.CLOSED
    return Shard(id=ShardId(0), begin=0, end=1, status=status, first_offset=first, next_offset=end)


def receive(
    state: ShareState, count: int, at: int = 0, *, who: str = "ada", end: int = 1_000_000
) -> tuple[ShareState, Granted]:
    act = Receive(consumer=who, max_records=count, visibility_ms=VISIBILITY)
    after, answer = stepped(state, act, a_shard(end), RULES, at)
    assert isinstance(answer, Granted)
    return after, answer


def settle(
    state: ShareState, hold: int, ranges: list[Range], how: How = How.ACK, at: int = 0, *, who: str = "ada",
    for_ms: int = 0,
) -> tuple[ShareState, Settled]:  # fmt: skip
    act = Settle(consumer=who, hold=hold, ranges=ranges, how=how, for_ms=for_ms)
    after, answer = stepped(state, act, a_shard(1_000_000), RULES, at)
    assert isinstance(answer, Settled)
    return after, answer


# --- Against a model. -------------------------------------------------------------------------------


@dataclass
class _One:
    """A record by itself."""

    key: int
    attempts: int = 0
    hold: int = 0
    at: int = 0
    fate: str = ""


class _Model:
    """Every record, one by one; shares no code with the machine."""

    def __init__(self, keys: list[int], rules: ShareRules) -> None:
        self.records = [_One(key) for key in keys]
        self.seen = 0
        self.clock = 0
        self.holds = 0
        self.rules = rules

    def passes(self, clock: int) -> None:
        self.clock = max(self.clock, clock)
        for one in self.records:
            if one.at and one.at <= self.clock:
                one.hold = one.at = 0

    def receive(self, count: int, end: int) -> tuple[list[int], list[int]]:
        given: list[int] = []
        doomed: list[int] = []
        busy: set[int] = set()
        for offset, one in enumerate(self.records[:end]):
            if one.fate:
                continue
            if len(given) + len(doomed) == count and offset >= self.seen:
                break
            is_blocked = self.rules.key_ordered and one.key and one.key in busy
            busy.add(one.key)
            if one.hold or one.at or is_blocked or len(given) + len(doomed) == count:
                continue
            (doomed if one.attempts >= self.rules.max_attempts else given).append(offset)
        for offset in given:
            self.records[offset].attempts += 1
        for offset in given + doomed:
            self.records[offset].hold, self.records[offset].at = self.holds + 1, self.clock + VISIBILITY
        self.holds += bool(given or doomed)
        return given, doomed

    def settle(self, hold: int, offsets: list[int], how: How, for_ms: int) -> int:
        taken = 0
        for offset in offsets:
            one = self.records[offset]
            if one.fate or not hold or one.hold != hold:
                continue
            if how is How.RELEASE and one.attempts >= self.rules.max_attempts:
                continue
            taken += 1
            if how in (How.ACK, How.DEAD):
                one.fate = how.value
            elif how in (How.EXTEND, How.DOOM):
                one.attempts = one.attempts % 1000 + 1000 * (how is How.DOOM or one.attempts >= 1000)
                one.at = self.clock + max(1, for_ms)
            else:
                is_later = for_ms and how is How.RELEASE
                one.hold, one.at = 0, self.clock + for_ms if is_later else 0
                one.attempts -= how is How.RETURN
        return taken


ACTS = st.one_of(
    st.tuples(st.just("receive"), st.integers(1, 6), st.integers(0, 20)),
    st.tuples(
        st.just("settle"),
        st.integers(0, 12),
        st.sets(st.integers(0, 19), min_size=1, max_size=8),
        st.sampled_from(list(How)),
        st.sampled_from([0, 1, 30]),
    ),
    st.tuples(st.just("time"), st.integers(1, 150)),
)


@settings(max_examples=200, deadline=None)
@given(
    keys=st.lists(st.integers(0, 3), min_size=20, max_size=20),
    acts=st.lists(ACTS, max_size=40),
    by_key=st.booleans(),
)
def test_the_machine_does_what_a_model_of_single_records_does(
    keys: list[int], acts: list[tuple[object, ...]], by_key: bool
) -> None:
    rules = BY_KEY if by_key else RULES
    model, state, clock, end = _Model(keys, rules), ShareState(), 0, 0
    for act in acts:
        match act:
            case ("time", int(passing)):
                clock += passing
                continue
            case ("receive", int(count), int(upto)):
                end = max(end, upto)
                model.passes(clock)
                asked = Receive(consumer="ada", max_records=count, visibility_ms=VISIBILITY, keys=(0, keys))
                state, answer = stepped(state, asked, a_shard(end), rules, clock)
                assert isinstance(answer, Granted)
                got = [o for part in answer.given for o in range(part.low, part.high)]
                dead = [o for part in answer.doomed for o in range(part.low, part.high)]
                assert (got, dead) == model.receive(count, end)
                model.seen = state.next
                for part in answer.given:
                    assert all(
                        model.records[o].attempts % 1000 == part.attempts for o in range(part.low, part.high)
                    )
            case ("settle", int(hold), set(offsets), How() as how, int(for_ms)):
                model.passes(clock)
                wanted = Settle(consumer="ada", hold=hold, ranges=ranges_of(offsets), how=how, for_ms=for_ms)
                state, settled = stepped(state, wanted, a_shard(end), rules, clock)
                assert isinstance(settled, Settled)
                assert settled.taken == model.settle(hold, sorted(offsets), how, for_ms)
                assert settled.taken + records([part for part, _ in settled.refused]) + records(
                    [(one.low, one.high) for one in settled.doomed]
                ) == len(offsets)
            case _:
                raise AssertionError(act)
        _check_equal(state, model, clock)
        assert decoded(encoded(state), version=state.version, news=state.news) == state


def _check_equal(state: ShareState, model: _Model, clock: int) -> None:
    fates = {one: fate for one, fate in enumerate(record.fate for record in model.records) if fate}
    unsettled = {offset for span in state.open for offset in range(span.low, span.high)}
    assert unsettled.isdisjoint(fates)
    assert unsettled | fates.keys() == set(range(state.next))
    assert (state.acknowledged, state.dead) == (
        sum(fate == "ack" for fate in fates.values()),
        sum(fate == "dead" for fate in fates.values()),
    )
    for span in state.open:
        for offset in range(span.low, span.high):
            one = model.records[offset]
            at = clock + left(state, clock)[span.pledge] if span.pledge else 0
            assert (span.hold, at, span.attempts) == (one.hold, one.at, one.attempts)
    lows = [span.low for span in state.open]
    assert lows == sorted(lows)
    assert set(state.holders) == {span.hold for span in state.open if span.hold}


SPANS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2)), max_size=6)


@given(SPANS, st.sets(st.integers(0, 60), max_size=20))
def test_what_is_carved_out_and_what_is_left_is_what_there_was(
    made: list[tuple[int, int, int]], offsets: set[int]
) -> None:
    spans, place = [], 0
    for gap, length, hold in made:
        spans.append(Span(place + gap, place + gap + length, hold=hold))
        place += gap + length
    ranges = ranges_of(offsets)
    if not ranges:
        return
    carved = carve(tuple(spans), ranges)
    before = {o for span in spans for o in range(span.low, span.high)}
    cut = {o for span in carved.parts for o in range(span.low, span.high)}
    missing = {o for low, high in carved.missing for o in range(low, high)}
    assert cut == before & offsets
    assert missing == offsets - before
    back = put_back(carved, carved.parts)
    assert {(o, s.hold) for s in back for o in range(s.low, s.high)} == {
        (o, s.hold) for s in spans for o in range(s.low, s.high)
    }
    left = without([(span.low, span.high) for span in spans], ranges)
    assert {o for low, high in left for o in range(low, high)} == before - offsets


# --- By hand. ---------------------------------------------------------------------------------------


def test_ack_of_what_was_never_received_is_refused_and_changes_nothing() -> None:
    state, granted = receive(ShareState(), 5)
    after, answer = settle(state, granted.hold, [(5, 7)])
    assert after == state
    assert answer == Settled(refused=(((5, 7), Why.NEVER),))
    assert settle(state, granted.hold + 1, [(0, 1)])[1].refused == (((0, 1), Why.NEVER),)
    assert settle(state, 0, [(0, 1)])[1].refused == (((0, 1), Why.OTHER),)


def test_a_second_ack_is_refused_and_the_first_stands() -> None:
    state, granted = receive(ShareState(), 5)
    state, _ = settle(state, granted.hold, [(1, 3)])
    after, answer = settle(state, granted.hold, [(0, 5)])
    assert (answer.taken, answer.refused) == (3, (((1, 3), Why.SETTLED),))
    assert after.acknowledged == 5


def test_ack_after_expiry_is_refused_whether_or_not_another_has_the_record_by_then() -> None:
    state, granted = receive(ShareState(), 2)
    assert settle(state, granted.hold, [(0, 2)], at=VISIBILITY)[1].refused == (((0, 2), Why.EXPIRED),)
    state, again = receive(state, 1, at=VISIBILITY, who="bob")
    assert again.given[0].attempts == 2
    after, answer = settle(state, granted.hold, [(0, 1)], at=VISIBILITY)
    assert (after.acknowledged, answer.refused) == (0, (((0, 1), Why.EXPIRED),))


def test_ack_by_another_consumer_is_refused() -> None:
    state, granted = receive(ShareState(), 2)
    assert settle(state, granted.hold, [(0, 2)], who="bob")[1].refused == (((0, 2), Why.OTHER),)


def test_a_consumer_that_never_acks_gets_each_record_as_often_as_allowed_and_then_it_is_doomed() -> None:
    state, at = ShareState(), 0
    for attempt in range(1, RULES.max_attempts + 1):
        state, granted = receive(state, 1, at, end=1)
        assert granted.given[0].attempts == attempt
        at += VISIBILITY
    state, granted = receive(state, 1, at, end=1)
    assert (granted.given, granted.doomed[0].attempts) == ((), RULES.max_attempts)
    state, answer = settle(state, granted.hold, [(0, 1)], How.DEAD, at)
    assert (state.dead, state.start, answer.taken) == (1, 1, 1)


def test_a_release_after_the_last_attempt_stays_held_until_it_is_buried() -> None:
    state, at = ShareState(), 0
    for _ in range(RULES.max_attempts - 1):
        state, granted = receive(state, 1, at, end=1)
        state, answer = settle(state, granted.hold, [(0, 1)], How.RELEASE, at)
        assert answer.taken == 1
    state, granted = receive(state, 1, at, end=1)
    state, answer = settle(state, granted.hold, [(0, 1)], How.RELEASE, at)
    assert (answer.taken, answer.doomed[0].low) == (0, 0)
    assert receive(state, 1, at, end=1)[1].given == ()
    state, _ = settle(state, granted.hold, [(0, 1)], How.DEAD, at)
    assert state.start == 1


def test_a_record_that_was_rejected_is_never_handed_out_again_even_if_its_burial_was_cut_short() -> None:
    state, granted = receive(ShareState(), 1, end=1)
    state, answer = settle(state, granted.hold, [(0, 1)], How.DOOM, for_ms=50)
    assert answer.taken == 1
    state, later = receive(state, 1, 50, who="bob", end=1)
    assert (later.given, later.doomed) == ((), ((0, 1, 1),))


def test_all_or_nothing_touches_nothing_if_one_record_is_refused() -> None:
    """So that dead letters can be written in the same commit: for each of them, or for none."""
    state, granted = receive(ShareState(), 4)
    state, _ = settle(state, granted.hold, [(1, 2)])
    whole = Settle(consumer="ada", hold=granted.hold, ranges=[(0, 4)], how=How.DEAD, is_whole=True)
    after, answer = stepped(state, whole, a_shard(4), RULES, 0)
    assert after == state
    assert answer == Settled(refused=(((1, 2), Why.SETTLED),))
    after, answer = stepped(state, replace(whole, ranges=[(0, 1), (2, 4)]), a_shard(4), RULES, 0)
    assert answer == Settled(taken=3)
    assert (after.dead, after.open) == (3, ())


def test_a_delayed_release_comes_back_when_its_time_has_come() -> None:
    state, granted = receive(ShareState(), 1, end=1)
    state, _ = settle(state, granted.hold, [(0, 1)], How.RELEASE, for_ms=70)
    assert receive(state, 1, 69, end=1)[1].hold == 0
    assert outlook(state, a_shard(1), left(state, 10)) == (False, 60, False)
    assert receive(state, 1, 70, end=1)[1].given == ((0, 1, 2),)


def test_an_extension_counts_from_when_it_is_asked_for() -> None:
    state, granted = receive(ShareState(), 2, end=2)
    state, answer = settle(state, granted.hold, [(0, 1)], How.EXTEND, 90, for_ms=VISIBILITY)
    assert answer.taken == 1
    _, others = receive(state, 5, 150, who="bob", end=2)
    assert others.given == ((1, 2, 2),)


def test_a_wait_gets_shorter_by_what_any_observer_tells_and_never_longer() -> None:
    state, _ = receive(ShareState(), 1)
    shard = a_shard(5)
    assert passed(state, shard, {1: 40}).left == {1: 40}
    assert passed(passed(state, shard, {1: 40}), shard, {1: 70}).left == {1: 40}
    assert passed(state, shard, {2: 0}) is state, "of another wait it knows nothing"
    assert passed(state, shard, {1: 0}).open == (Span(0, 1, 1),)


def test_ten_thousand_gaps_stop_what_is_new_and_lose_nothing() -> None:
    state, granted = receive(ShareState(), 2 * SHARE_SPANS_MAX)
    state, _ = settle(
        state, granted.hold, [(offset, offset + 1) for offset in range(1, 2 * SHARE_SPANS_MAX, 2)]
    )
    assert len(state.open) == SHARE_SPANS_MAX
    assert len(encoded(state)) < 4_000, "equal distances compress"
    full, nothing = receive(state, 10)
    assert (nothing.given, nothing.is_full) == ((), True)
    assert outlook(full, a_shard(1_000_000), {}).is_full
    assert full.unsettled(a_shard(1_000_000)) == 1_000_000 - SHARE_SPANS_MAX
    freed, _ = settle(full, granted.hold, [(0, 1)])
    assert freed.news == full.news + 1
    assert receive(freed, 10)[1].given == ((2 * SHARE_SPANS_MAX, 2 * SHARE_SPANS_MAX + 10, 1),)
    back, returned = receive(full, 3, VISIBILITY)
    assert [part.low for part in returned.given] == [0, 2, 4], "what ran out comes although it is full"
    assert back.start == 0


def test_no_more_is_in_flight_than_the_bound() -> None:
    state, _ = receive(ShareState(), SHARE_RECORDS_HELD - 5)
    state, some = receive(state, 10)
    assert sum(part.high - part.low for part in some.given) == 5
    assert receive(state, 10)[1].is_full


def test_retention_that_overtakes_is_counted_and_ends_what_it_took() -> None:
    state, granted = receive(ShareState(), 10)
    state, _ = settle(state, granted.hold, [(0, 2)])
    shard = a_shard(100, first=6)
    after, answer = stepped(
        state, Settle(consumer="ada", hold=granted.hold, ranges=[(0, 10)], how=How.ACK), shard, RULES, 0
    )
    assert isinstance(answer, Settled)
    assert (after.lost, answer.taken) == (4, 4)
    later = passed(after, a_shard(100, first=30), {})
    assert (later.lost, later.next, later.start) == (4 + 20, 30, 30)


def test_one_record_of_a_key_is_in_flight_at_a_time_and_a_record_without_key_waits_for_none() -> None:
    keys = [7, 7, 0, 8, 7, 0]
    shard = a_shard(6)
    asked = Receive(consumer="ada", max_records=10, visibility_ms=VISIBILITY, keys=(0, keys))
    state, granted = stepped(ShareState(), asked, shard, BY_KEY, 0)
    assert isinstance(granted, Granted)
    assert [part.low for part in granted.given] == [0, 2, 3, 5]
    assert stepped(state, asked, shard, BY_KEY, 0)[1] == Granted()
    state, _ = stepped(
        state,
        Settle(consumer="ada", hold=granted.hold, ranges=[(0, 1)], how=How.RELEASE, for_ms=50),
        shard,
        BY_KEY,
        0,
    )
    assert stepped(state, asked, shard, BY_KEY, 0)[1] == Granted(), (
        "the first of the key comes before the second"
    )
    state, again = stepped(state, asked, shard, BY_KEY, 50)
    assert isinstance(again, Granted)
    state, _ = stepped(
        state, Settle(consumer="ada", hold=again.hold, ranges=[(0, 1)], how=How.ACK), shard, BY_KEY, 50
    )
    _, second = stepped(state, asked, shard, BY_KEY, 50)
    assert isinstance(second, Granted)
    assert [part.low for part in second.given] == [1]


def test_keys_that_do_not_reach_the_next_record_are_asked_for() -> None:
    asked = Receive(consumer="ada", max_records=10, visibility_ms=VISIBILITY, keys=(0, [1, 2]))
    state, granted = stepped(ShareState(), asked, a_shard(5), BY_KEY, 0)
    assert isinstance(granted, Granted)
    assert (len(granted.given), granted.wants_keys, state.next) == (2, True, 2)
    late = replace(asked, keys=(3, [1, 2]))
    assert stepped(state, late, a_shard(5), BY_KEY, 0)[1] == Granted(wants_keys=True)


def test_a_closed_shard_is_over_when_all_is_settled_and_that_is_news() -> None:
    state, granted = receive(ShareState(), 3, end=3)
    shut = a_shard(3, is_open=False)
    act = Settle(consumer="ada", hold=granted.hold, ranges=[(0, 3)], how=How.ACK)
    after, _ = stepped(state, act, shut, RULES, 0)
    assert not is_over(state, shut)
    assert is_over(after, shut)
    assert after.news == state.news + 1


def test_a_reset_ends_every_hold_and_hands_everything_out_again() -> None:
    state, granted = receive(ShareState(), 5)
    state, _ = settle(state, granted.hold, [(0, 3)])
    state, _ = stepped(state, Restart(offset=1), a_shard(10), RULES, 0)
    assert settle(state, granted.hold, [(3, 5)])[1].refused[0][1] is Why.NEVER
    assert receive(state, 100, end=10)[1].given == ((1, 10, 1),)


def test_dead_records_can_be_opened_again_and_others_are_left_alone() -> None:
    state, granted = receive(ShareState(), 5)
    state, _ = settle(state, granted.hold, [(1, 3)], How.DEAD)
    state, answer = stepped(state, Reopen(ranges=[(0, 2), (50, 51)]), a_shard(100), RULES, 0)
    assert answer == Settled(taken=1)
    assert (state.dead, state.open[1]) == (1, Span(1, 2))
    assert receive(state, 1, who="bob")[1].given == ((1, 2, 1),)


def test_after_the_store_forgot_no_number_comes_again() -> None:
    old, _ = receive(ShareState(), 1)
    seen, granted = receive(old, 1)
    after, later = receive(forgotten(old, seen.version), 1)
    assert later.hold > granted.hold
    assert after.version > seen.version


def test_a_row_that_cannot_be_read_says_so() -> None:
    for broken in (b"", b"9[]", b"1{", b"2nonsense", b"1[[1,2],{},[],[],[],[],[],[]]"):
        with pytest.raises(StoreCorrupt):
            decoded(broken, version=1, news=0)
