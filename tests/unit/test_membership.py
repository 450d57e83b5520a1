"""One member's row: who may beat, how silence adds up, and who bars whom."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import (
    HeartbeatOutdated,
    InvalidInput,
    NameTaken,
    NotOwner,
    ShoalError,
    UnknownConsumer,
)
from shoal.core.group import (
    Claim,
    Delivery,
    GroupSettings,
    Member,
    MemberStatus,
    ShardState,
    check_settings,
    handover_timeout_ms,
    interval_ms,
    timeout_ms,
)
from shoal.core.limits import GONE_MEMBERS_KEPT
from shoal.core.membership import (
    Beat,
    beaten,
    check_held,
    check_timing,
    departed,
    digest,
    is_dead,
    is_due,
    joined,
    may_judge,
    pruned,
    remembered,
    watched,
)
from shoal.core.model import ShardId

SETTINGS = GroupSettings(timeout_ms=1000)

CLAIMS = {
    claim.shard: claim
    for claim in (
        Claim(shard=ShardId(0), state=ShardState.ALREADY_ALLOC, epoch=5, owner="a-1", owner_epoch=5),
        Claim(shard=ShardId(1), state=ShardState.ALREADY_ALLOC, epoch=7, owner="b-1", owner_epoch=7),
        Claim(shard=ShardId(2), state=ShardState.OVER, epoch=7),
    )
}


def member(incarnation: str = "a-1", name: str = "a", **changes: object) -> Member:
    row = Member(incarnation=incarnation, name=name, timeout_ms=1000, interval_ms=250)
    return replace(row, **changes)  # type: ignore[arg-type]


def beat(number: int, timeout_ms: int = 1000, interval_ms: int = 250) -> Beat:
    return Beat(
        incarnation="a-1", number=number, timeout_ms=timeout_ms, interval_ms=interval_ms, held={}, seen=0
    )


# --- Beating. ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [MemberStatus.ACTIVE, MemberStatus.LEAVING])
def test_a_newer_heartbeat_raises_the_counter_and_ends_the_silence(status: MemberStatus) -> None:
    before = member(status=status, beat=4, stood_ms=999, assigned=7, held=5)
    after = beaten(SETTINGS, before, beat(6, timeout_ms=800, interval_ms=200))
    assert after == replace(before, beat=6, stood_ms=0, timeout_ms=800, interval_ms=200)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (None, UnknownConsumer),
        (member(status=MemberStatus.GONE), UnknownConsumer),
        (member(status=MemberStatus.BARRED), NameTaken),
        (member(beat=6), HeartbeatOutdated),
        (member(beat=7), HeartbeatOutdated),
    ],
)
def test_a_heartbeat_that_does_not_count_says_why(row: Member | None, error: type[ShoalError]) -> None:
    with pytest.raises(error):
        beaten(SETTINGS, row, beat(6))


@pytest.mark.parametrize(
    ("timeout", "interval", "field"),
    [
        (0, 1, "timeout"),
        (-5, 1, "timeout"),
        (1001, 250, "timeout"),
        (1000, 1000, "heartbeat_interval"),
        (1000, 2000, "heartbeat_interval"),
        (1000, 0, "heartbeat_interval"),
        (1000, -1, "heartbeat_interval"),
    ],
)
def test_timing_that_cannot_be_is_refused_by_name(timeout: int, interval: int, field: str) -> None:
    for act in (
        lambda: check_timing(SETTINGS, timeout, interval),
        lambda: beaten(SETTINGS, member(), beat(1, timeout, interval)),
    ):
        with pytest.raises(InvalidInput) as refused:
            act()
        assert refused.value.field == field


def test_who_has_not_heard_of_the_newest_settings_may_count_by_what_it_was_told_before() -> None:
    told_of_more = beat(6, timeout_ms=1600)
    assert beaten(SETTINGS, member(assigned=3), told_of_more).timeout_ms == 1600
    with pytest.raises(InvalidInput, match="timeout="):
        beaten(SETTINGS, member(assigned=told_of_more.seen), told_of_more)


def test_a_consumer_may_still_count_by_an_older_longer_timeout_until_it_has_stated_a_shorter_one() -> None:
    # The group's timeout was lowered from 2 s: what the consumer has stated is what it is watched by.
    old = member(timeout_ms=2000)
    assert beaten(SETTINGS, old, beat(1, timeout_ms=2000)).timeout_ms == 2000
    with pytest.raises(InvalidInput):
        beaten(SETTINGS, old, beat(1, timeout_ms=2001))
    shorter = beaten(SETTINGS, old, beat(1, timeout_ms=1000))
    with pytest.raises(InvalidInput):
        beaten(SETTINGS, shorter, beat(2, timeout_ms=2000))


@pytest.mark.parametrize(
    ("shard", "epoch"),
    [(0, 6), (1, 7), (2, 8), (3, 1)],
    ids=["an epoch not given yet", "another's", "an epoch not given yet, of a free shard", "no such shard"],
)
def test_a_report_of_what_was_never_the_members_is_refused(shard: int, epoch: int) -> None:
    with pytest.raises(NotOwner) as refused:
        check_held(member(), {ShardId(shard): epoch}, CLAIMS)
    assert (refused.value.shard, refused.value.consumer) == (shard, "a")


def test_a_report_of_what_was_taken_away_is_no_fault() -> None:
    check_held(member(), {ShardId(0): 5, ShardId(1): 6, ShardId(2): 7}, CLAIMS)


# --- Being watched. ---------------------------------------------------------------------------------


def test_silence_adds_up_over_observers_that_come_and_go() -> None:
    row = member()
    for elapsed_ms in (100, 200, 50):
        row = watched(row, elapsed_ms)
    assert row == member(stood_ms=350)


def test_one_look_adds_at_most_one_heartbeat_interval() -> None:
    # Whoever was away for an hour, suspended or cut off, has watched nobody meanwhile.
    assert watched(member(stood_ms=100), 3_600_000).stood_ms == 350


def test_a_clock_that_went_back_adds_nothing() -> None:
    assert watched(member(stood_ms=100), -50).stood_ms == 100


@given(st.lists(st.integers(-1000, 100_000), max_size=20))
def test_nobody_is_dead_before_as_much_was_watched_as_it_said_it_would_act(looks: list[int]) -> None:
    row, real_ms = member(), 0
    for elapsed_ms in looks:
        row = watched(row, elapsed_ms)
        real_ms += max(0, elapsed_ms)
        assert row.stood_ms <= real_ms
        assert is_dead(row) == (row.stood_ms >= 1000)
    assert not is_dead(row) or len(looks) >= 4


@given(st.integers(10, 125), st.lists(st.integers(0, 125), max_size=12))
def test_an_observer_that_waits_to_note_what_it_saw_notes_all_of_it(
    pause_ms: int, early_ms: list[int]
) -> None:
    """One silent member: with looks a pause apart, or less, no more is seen than may be added at once."""
    row, seen_ms, real_ms = member(), 0, 0
    for early in early_ms:
        elapsed_ms = max(1, pause_ms - early)
        seen_ms += elapsed_ms
        real_ms += elapsed_ms
        if is_due(row, seen_ms, pause_ms):
            assert seen_ms <= row.interval_ms
            row, seen_ms = watched(row, seen_ms), 0
    assert row.stood_ms == real_ms - seen_ms
    assert row.stood_ms == 0 or seen_ms == 0, "one whose silence counts is noted with every look"


def test_of_one_that_is_on_time_nothing_is_noted() -> None:
    row = member()
    assert not is_due(row, row.interval_ms // 2, row.interval_ms // 2)
    assert is_due(row, row.interval_ms, row.interval_ms // 2)
    assert is_due(replace(row, stood_ms=1), 1, 1)


@pytest.mark.parametrize(
    ("stood", "status", "dead"),
    [
        (999, MemberStatus.ACTIVE, False),
        (1000, MemberStatus.ACTIVE, True),
        (1000, MemberStatus.LEAVING, True),
        (1000, MemberStatus.BARRED, True),
        (5000, MemberStatus.GONE, False),
    ],
)
def test_a_member_is_dead_after_its_own_timeout_whatever_it_may_do(
    stood: int, status: MemberStatus, dead: bool
) -> None:
    assert is_dead(member(stood_ms=stood, status=status)) is dead


def test_a_member_that_counts_by_a_shorter_timeout_is_dead_sooner() -> None:
    assert is_dead(member(stood_ms=500, timeout_ms=500))
    assert not is_dead(member(stood_ms=500, timeout_ms=501))


# --- Joining. ---------------------------------------------------------------------------------------


def test_a_new_incarnation_is_an_active_member_that_has_not_beaten_yet() -> None:
    after = joined({}, member())
    assert after == {"a-1": member()}


def test_a_repeated_join_changes_nothing_whatever_timing_it_states() -> None:
    before = {"a-1": member(beat=9, stood_ms=10, assigned=3), "b-1": member("b-1", "b")}
    assert joined(before, member(timeout_ms=500, interval_ms=100)) == before


def test_a_repeated_join_of_one_that_is_leaving_does_not_call_it_back() -> None:
    before = {"a-1": member(status=MemberStatus.LEAVING)}
    assert joined(before, member()) == before


@pytest.mark.parametrize("status", [MemberStatus.ACTIVE, MemberStatus.LEAVING])
def test_a_newer_incarnation_bars_the_older_of_its_name_and_no_other(status: MemberStatus) -> None:
    before = {"a-1": member(status=status, beat=5), "b-1": member("b-1", "b")}
    after = joined(before, member("a-2"))
    assert after == {
        "a-1": member(status=MemberStatus.BARRED, beat=5),
        "b-1": before["b-1"],
        "a-2": member("a-2"),
    }
    assert before["a-1"].status is status


def test_one_that_is_gone_stays_gone_and_is_not_barred() -> None:
    before = {"a-1": member(status=MemberStatus.GONE)}
    assert joined(before, member("a-2"))["a-1"].status is MemberStatus.GONE


@pytest.mark.parametrize(
    ("status", "name", "error"),
    [
        (MemberStatus.GONE, "a", UnknownConsumer),
        (MemberStatus.BARRED, "a", NameTaken),
        (MemberStatus.ACTIVE, "another name", NameTaken),
    ],
)
def test_an_incarnation_that_is_gone_barred_or_of_another_name_does_not_come_back(
    status: MemberStatus, name: str, error: type[ShoalError]
) -> None:
    with pytest.raises(error):
        joined({"a-1": member(status=status)}, member(name=name))


@pytest.mark.parametrize("status", [MemberStatus.ACTIVE, MemberStatus.LEAVING])
def test_one_that_comes_back_after_it_was_expired_takes_nobodys_name(status: MemberStatus) -> None:
    # The process that joined under its name meanwhile is the newer one.
    before = {"a-1": member(status=MemberStatus.GONE), "a-2": member("a-2", status=status)}
    with pytest.raises(NameTaken):
        joined(before, member("a-3"), is_again=True)


@pytest.mark.parametrize("status", [MemberStatus.GONE, MemberStatus.BARRED])
def test_one_that_comes_back_after_it_was_expired_is_a_member_again_if_nobody_has_its_name(
    status: MemberStatus,
) -> None:
    before = {"a-1": member(status=status), "b-1": member("b-1", "b")}
    assert joined(before, member("a-3"), is_again=True) == {**before, "a-3": member("a-3")}


# --- Being forgotten. -------------------------------------------------------------------------------


def test_a_barred_member_is_gone_once_it_holds_nothing() -> None:
    members = {
        "a-1": member(status=MemberStatus.BARRED),
        "b-1": member("b-1", "b", status=MemberStatus.BARRED),
        "c-1": member("c-1", "c"),
        "d-1": member("d-1", "d", status=MemberStatus.LEAVING),
    }
    after = departed(members, ["a-1", None])
    assert after == {**members, "b-1": replace(members["b-1"], status=MemberStatus.GONE)}


def test_of_those_who_are_gone_only_the_last_are_remembered() -> None:
    gone = {
        f"g-{number}": member(f"g-{number}", "g", status=MemberStatus.GONE, assigned=1000 - number)
        for number in range(GONE_MEMBERS_KEPT + 2)
    }
    others = {
        status: member(status, status, status=MemberStatus(status), assigned=0)
        for status in ("active", "leaving", "barred")
    }
    after = pruned({**gone, **others})
    last = GONE_MEMBERS_KEPT + 1
    assert gone.keys() - after.keys() == {f"g-{last}", f"g-{last - 1}"}
    assert others.keys() <= after.keys()
    assert pruned(after) == after


@given(st.dictionaries(st.integers(0, 50).map(ShardId), st.integers(1, 50), max_size=5))
def test_a_digest_stands_for_a_report_in_any_order_and_fits_a_database(held: dict[ShardId, int]) -> None:
    number = digest(held)
    assert number == digest(dict(reversed(list(held.items()))))
    assert -(2**63) <= number < 2**63
    for shard, epoch in held.items():
        assert digest({**held, shard: epoch + 1}) != number
        assert digest({other: held[other] for other in held if other != shard}) != number


def test_only_a_report_that_the_group_agrees_with_is_remembered() -> None:
    mine = [CLAIMS[ShardId(0)]]
    assert remembered({ShardId(0): 5}, mine) == digest({ShardId(0): 5})
    assert remembered({}, []) == digest({})
    assert remembered({}, mine) == 0, "it has let go, and the group does not know"
    assert remembered({ShardId(0): 5}, []) == 0
    assert remembered({ShardId(0): 4}, mine) == 0


# --- Settings. --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, -1, 0.1, 86_400, float("inf"), float("nan"), True, "20", None])
def test_a_timeout_of_zero_a_day_or_no_number_is_refused(seconds: object) -> None:
    with pytest.raises(InvalidInput, match="timeout"):
        timeout_ms("timeout", seconds)


@pytest.mark.parametrize("seconds", [0, -1, 20, 21, float("nan"), True, "5", None])
def test_a_heartbeat_interval_not_shorter_than_the_timeout_is_refused(seconds: object) -> None:
    with pytest.raises(InvalidInput, match="heartbeat_interval"):
        interval_ms(seconds, 20_000)


@pytest.mark.parametrize("seconds", [0, -1, 100_000, float("inf"), float("nan"), True, "5"])
def test_a_handover_timeout_is_none_or_a_time_with_a_bound(seconds: object) -> None:
    with pytest.raises(InvalidInput, match="handover_timeout"):
        handover_timeout_ms(seconds)


def test_durations_are_kept_in_milliseconds() -> None:
    assert (timeout_ms("timeout", 0.2), timeout_ms("timeout", 3600)) == (200, 3_600_000)
    assert (interval_ms(5, 20_000), interval_ms(0.0001, 20_000)) == (5000, 1)
    assert (handover_timeout_ms(None), handover_timeout_ms(1.5)) == (None, 1500)


def test_in_order_cannot_be_shared() -> None:
    with pytest.raises(InvalidInput, match="in_order"):
        check_settings(GroupSettings(in_order=True, delivery=Delivery.SHARED))
    settings = GroupSettings(in_order=True)
    assert check_settings(settings) is settings


def test_a_server_that_was_away_judges_after_a_whole_timeout_of_its_own() -> None:
    silent = member(stood_ms=5_000)
    assert not may_judge(silent, 999)
    assert may_judge(silent, 1_000)
