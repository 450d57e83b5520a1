"""All shards of one member, case by case: who waits for whom, what is fetched, given up, let go of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from shoal.core import resharding
from shoal.core.budget import Budget
from shoal.core.crew import Crew, CrewRules
from shoal.core.delivery import Tenure
from shoal.core.draining import Drained
from shoal.core.errors import (
    InvalidInput,
    NotOwner,
    OffsetExpired,
    ProcessorFailed,
    ShoalError,
    StoreUnavailable,
)
from shoal.core.holding import Lease
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.orders import (
    Asked,
    AskIfDrained,
    Fail,
    LetGo,
    Open,
    Order,
    PersistAll,
    Read,
    ReadFailed,
    Retire,
    Run,
    Show,
    Skipped,
    Stuck,
    Tell,
    What,
)
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.core.tasks import Failure, Fetch, Initialize, Phase, Piece, Process, ProcessNothing, ShutDown

RULES = CrewRules(
    failure=FailureRules(backoff=Backoff(first_s=1.0, jitter=0)), budget=Budget(total=100, at_once=50)
)
ODD = Failure(kind="ValueError", text="odd")
ONE, TWO = ShardId(0), ShardId(1)


class Hands:
    """A crew of a stream with two shards, and a shell that does at once what it is told, but to wait."""

    def __init__(self, rules: CrewRules = RULES) -> None:
        self.crew = Crew(rules, 0)
        self.shards: tuple[Shard, ...] = resharding.first_shards(2, 0)
        self.leases: dict[ShardId, Lease] = {}
        self.now_ms = 0

    def lease(self, shard: ShardId, epoch: int, *, checkpoint: int = 0, is_wanted: bool = True) -> None:
        self.leases[shard] = Lease(
            shard=shard, epoch=epoch, checkpoint=checkpoint, deadline_ms=10**6, is_wanted=is_wanted
        )

    def turn(self, after_ms: int = 0) -> list[Order]:
        self.now_ms += after_ms
        return self.crew.advance(self.now_ms, self.leases, self.shards)

    def processing(self, shard: ShardId, epoch: int = 1) -> Tenure:
        """It is held, initialized, and reads."""
        self.lease(shard, epoch)
        self.come_back(self.turn())
        assert [type(order) for order in self.turn()] == [Read]
        return self.crew.held[shard]

    def give(self, tenure: Tenure, upto: int, *, is_end: bool = False) -> list[Order]:
        """Records up to there come; what follows."""
        wanted = Fetch(offset=tenure.fetched)
        pieces = [[Piece(range(tenure.fetched, upto), 10)]] if upto > tenure.fetched else [[]]
        self.crew.found(
            tenure, wanted, pieces, next_offset=upto, is_end=is_end, is_tail=not pieces[0], now_ms=self.now_ms
        )
        return self.turn()

    def come_back(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Run):
                self.crew.returned(order.tenure, order.task)


def is_finished(hands: Hands) -> bool:
    return hands.crew.is_finished


def told(orders: Sequence[Order]) -> list[tuple[What, int, int]]:
    return [
        (order.what, order.tenure.shard, order.tenure.epoch) for order in orders if isinstance(order, Tell)
    ]


def kinds(orders: Sequence[Order]) -> list[type]:
    return [type(order) for order in orders]


def tasks(orders: Sequence[Order]) -> list[type]:
    return [type(order.task) for order in orders if isinstance(order, Run)]


def test_a_lease_is_opened_once_under_its_epoch() -> None:
    hands = Hands()
    hands.lease(ONE, 5)
    orders = hands.turn()
    assert kinds(orders) == [Open, Tell, Run]
    assert told(orders) == [(What.OPENED, 0, 5)]
    assert hands.turn() == []


def test_what_was_let_go_of_does_not_begin_again_under_the_same_epoch() -> None:
    hands = Hands()
    tenure = hands.processing(ONE, 5)
    hands.lease(ONE, 5, is_wanted=False)
    orders = hands.turn()
    assert kinds(orders) == [Asked, Run]
    assert tasks(orders) == [ShutDown]
    hands.come_back(orders)
    (closed, letting) = hands.turn()
    assert told([closed]) == [(What.MOVED, 0, 5)]
    assert letting == LetGo(due=[(tenure, 0)])
    assert hands.turn() == [], "its lease is still there, and the release on its way"
    hands.crew.let_go_of([tenure])
    assert hands.turn() == []


def test_a_shard_that_comes_back_waits_for_the_user_code_of_its_earlier_tenure_and_then_begins() -> None:
    """The earlier one, when it is gone, takes nothing with it that is not its own."""
    hands = Hands()
    first = hands.processing(ONE, 5)
    (running,) = [order for order in hands.give(first, 3) if isinstance(order, Run)]
    hands.leases.clear()
    assert told(hands.turn()) == [(What.LOST, 0, 5)]
    hands.lease(ONE, 7)
    orders = hands.turn()
    assert kinds(orders) == [Open, Tell]
    second = hands.crew.held[ONE]
    assert second.phase is Phase.WAITING
    hands.crew.returned(first, running.task)
    (shutdown,) = hands.turn()
    hands.come_back([shutdown])
    orders = hands.turn()
    assert told(orders) == [(What.GONE, 0, 5)]
    assert hands.crew.held[ONE] is second
    assert tasks(orders) == [Initialize], "at once"


def test_a_child_does_not_begin_while_its_parent_is_being_finished_here() -> None:
    hands = Hands()
    parent = hands.processing(ONE, 1)
    hands.give(parent, 2)
    hands.shards = resharding.split(hands.shards, hands.shards[0], None, 0)
    hands.lease(ShardId(2), 2)
    orders = hands.turn()
    assert kinds(orders) == [Open, Tell]
    hands.crew.returned(parent, Process(lane=0, piece=Piece([0, 1]), attempt=1))
    hands.lease(ONE, 1, is_wanted=False)
    hands.come_back(hands.turn())
    orders = hands.turn()
    assert LetGo in kinds(orders)
    assert Run not in kinds(orders), "its release is on its way"
    hands.crew.let_go_of([parent])
    assert tasks(hands.turn()) == [Initialize]


def test_the_stream_is_looked_at_again_for_a_shard_that_is_not_known_and_for_one_that_is_gone() -> None:
    hands = Hands()
    hands.lease(ShardId(2), 1)
    assert hands.crew.wants_lineage(hands.leases, hands.shards)
    assert kinds(hands.turn()) == [Open, Tell], "nobody knows yet what it descends from"
    hands.shards = resharding.split(hands.shards, hands.shards[0], None, 0)
    assert not hands.crew.wants_lineage(hands.leases, hands.shards)
    assert tasks(hands.turn()) == [Initialize]
    assert hands.crew.wants_lineage({}, hands.shards)


def test_a_shard_that_seems_lost_while_a_save_is_on_its_way_may_have_ended() -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    orders = hands.give(tenure, 2)
    hands.shards = (replace(hands.shards[0], next_offset=2, status=ShardStatus.CLOSED), hands.shards[1])
    tenure.save(0, 2)
    tenure.saving += 1
    hands.leases.clear()
    assert not hands.crew.wants_lineage({}, hands.shards)
    assert hands.turn() == []
    tenure.saved(2)
    tenure.saving -= 1
    assert told(hands.turn()) == []
    hands.come_back(orders)
    hands.come_back(hands.turn())
    assert told(hands.turn()) == [(What.ENDED, 0, 1)]


def test_every_shard_fetches_its_share_of_the_budget_and_no_more() -> None:
    hands = Hands(replace(RULES, budget=Budget(total=100, at_once=80)))
    hands.lease(ONE, 1)
    hands.lease(TWO, 2)
    hands.come_back(hands.turn())
    reads = [order for order in hands.turn() if isinstance(order, Read)]
    assert [read.bytes_max for read in reads] == [50, 50]
    tenure = reads[0].tenure
    hands.crew.found(
        tenure, reads[0].wanted, [[Piece(range(5), 40)]], next_offset=5, is_end=False, is_tail=False, now_ms=0
    )
    assert kinds(hands.turn()) == [Run], "it has more than half of its share"


def test_nothing_is_fetched_while_there_is_nothing_new() -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    assert hands.give(tenure, 0) == []
    hands.crew.moved(TWO)
    assert hands.turn(400) == []
    hands.crew.moved(ONE)
    (read,) = hands.turn()
    assert isinstance(read, Read)
    hands.crew.moved(ONE)
    assert kinds(hands.give(tenure, 0)) == [Read], "it moved while it was read"


def test_with_an_interval_a_shard_whose_end_was_seen_is_not_read_again_before() -> None:
    hands = Hands(replace(RULES, fetch_interval_ms=1000))
    tenure = hands.processing(ONE)
    hands.give(tenure, 0)
    hands.crew.moved(ONE)
    assert kinds(hands.turn(999)) == []
    assert hands.crew.rest_ms(hands.now_ms) == 1
    assert kinds(hands.turn(1)) == [Read]
    hands.give(tenure, 5)
    assert tenure.is_fetching, "where more is known to be, nothing is waited for"


def test_user_code_is_told_after_a_while_that_there_is_nothing_new() -> None:
    hands = Hands(replace(RULES, idle_ms=300))
    tenure = hands.processing(ONE)
    assert hands.give(tenure, 0) == []
    assert hands.crew.rest_ms(hands.now_ms) == 300
    orders = hands.turn(300)
    assert tasks(orders) == [ProcessNothing]
    hands.come_back(orders)
    assert hands.turn(299) == []
    assert tasks(hands.turn(1)) == [ProcessNothing]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), NotOwner(shard=0, consumer="a", owner=None)])
def test_a_read_that_failed_is_tried_again_after_a_while(error: ShoalError) -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    follows = hands.crew.not_found(tenure, Fetch(offset=0), error, hands.now_ms)
    assert follows == [ReadFailed(tenure=tenure, error=error)]
    assert hands.turn() == []
    assert kinds(hands.turn(200)) == [Read]


def test_what_retention_took_is_skipped_only_if_the_user_said_so() -> None:
    error = OffsetExpired(stream="s", shard=0, offset=0, first_offset=4)
    patient, hasty = Hands(), Hands(replace(RULES, is_expired_skipped=True))
    tenure = patient.processing(ONE)
    assert kinds(patient.crew.not_found(tenure, Fetch(offset=0), error, 0)) == [ReadFailed]
    tenure = hasty.processing(ONE)
    follows = hasty.crew.not_found(tenure, Fetch(offset=0), error, 0)
    assert follows == [Skipped(tenure=tenure, records=4, offset=4)]
    (read,) = hasty.turn()
    assert isinstance(read, Read)
    assert read.wanted.offset == 4


def test_a_read_that_cannot_succeed_ends_the_crew() -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    error = InvalidInput("offset", -1, "no")
    follows = hands.crew.not_found(tenure, Fetch(offset=0), error, 0)
    assert follows == [Fail(error=error), Asked(tenure=tenure), Retire()]
    assert hands.crew.is_stopping


def test_a_failure_under_the_policy_stop_ends_the_crew() -> None:
    hands = Hands(replace(RULES, failure=FailureRules(policy=Policy.STOP)))
    tenure = hands.processing(ONE)
    (run,) = [order for order in hands.give(tenure, 2) if isinstance(order, Run)]
    follows = hands.crew.raised(tenure, run.task, ODD, 0, 0.5)
    assert kinds(follows) == [Fail, Asked, Retire]
    (failed, *_) = follows
    assert isinstance(failed, Fail)
    assert isinstance(failed.error, ProcessorFailed)


def test_a_stop_hands_everything_over_and_then_it_is_finished() -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    assert kinds(hands.crew.stop(hands.now_ms)) == [Asked, Retire]
    assert hands.crew.stop(hands.now_ms) == []
    hands.come_back(hands.turn())
    assert told(hands.turn()) == [(What.STOPPED, 0, 1)]
    assert not is_finished(hands), "the release is on its way"
    hands.crew.let_go_of([tenure])
    assert is_finished(hands)


def test_what_comes_while_it_stops_is_released_without_user_code() -> None:
    hands = Hands()
    hands.crew.stop(0)
    hands.lease(ONE, 3, checkpoint=9)
    orders = hands.turn()
    assert [kind for kind in kinds(orders) if kind is Run] == []
    (letting,) = [order for order in orders if isinstance(order, LetGo)]
    assert [at for _, at in letting.due] == [9]


def test_user_code_that_does_not_come_back_in_time_is_given_up_with_what_it_declared_done() -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    (run,) = [order for order in hands.give(tenure, 3) if isinstance(order, Run)]
    tenure.save(0, 1)
    hands.crew.stop(hands.now_ms, 1000)
    hands.crew.stop(hands.now_ms, 400)
    assert hands.turn(399) == []
    orders = hands.turn(1)
    assert told(orders) == [(What.LOST, 0, 1)]
    (letting,) = [order for order in orders if isinstance(order, LetGo)]
    assert letting.due == [(tenure, 1)]
    assert not is_finished(hands)
    hands.crew.let_go_of([tenure])
    assert is_finished(hands)
    hands.crew.returned(tenure, run.task)
    hands.come_back(hands.turn())
    assert told(hands.turn()) == [(What.GONE, 0, 1)]


def test_a_call_that_is_stuck_is_told_of_once_and_its_shard_given_up_if_the_user_said_so() -> None:
    reporting = Hands(replace(RULES, process_timeout_ms=100))
    reporting.give(reporting.processing(ONE), 2)
    assert kinds(reporting.turn(101)) == [Stuck]
    assert reporting.turn(101) == []
    releasing = Hands(replace(RULES, process_timeout_ms=100, is_stuck_released=True))
    releasing.give(releasing.processing(ONE), 2)
    assert kinds(releasing.turn(101)) == [Stuck, Tell, LetGo]


def test_only_so_many_calls_of_one_shard_may_hang_here_at_once() -> None:
    hands = Hands(replace(RULES, process_timeout_ms=100, is_stuck_released=True))
    for epoch in range(1, 5):
        tenure = hands.processing(ONE, epoch)
        hands.give(tenure, 2)
        assert LetGo in kinds(hands.turn(101))
        hands.crew.let_go_of([tenure])
        hands.leases.clear()
    hands.lease(ONE, 5)
    assert kinds(hands.turn()) == [Open, Tell]
    assert hands.turn(1000) == []


def test_what_was_declared_done_is_persisted_now_and_then() -> None:
    hands = Hands()
    assert hands.turn(59_999) == []
    assert hands.turn(1) == [PersistAll()]
    assert hands.turn(1) == []


def test_what_holds_a_shard_up_is_shown_at_once_and_then_now_and_then() -> None:
    hands = Hands()
    tenure = hands.processing(ONE)
    (run,) = [order for order in hands.give(tenure, 2) if isinstance(order, Run)]
    assert hands.crew.raised(tenure, run.task, ODD, hands.now_ms, 0.5) == []
    (shown,) = hands.turn()
    assert isinstance(shown, Show)
    assert shown.block is not None
    assert hands.crew.rest_ms(hands.now_ms) == 500
    orders = hands.turn(1000)
    assert kinds(orders) == [Run]
    hands.come_back(orders)
    assert [order.block for order in hands.turn() if isinstance(order, Show)] == [None]


def test_what_was_shown_before_stays_until_user_code_comes_back() -> None:
    hands = Hands(replace(RULES, shown={ONE: "ValueError: odd"}))
    tenure = hands.processing(ONE)
    given = hands.give(tenure, 3)
    assert not [order for order in given if isinstance(order, Show)], "whether it goes on now, nobody knows"
    hands.come_back(given)
    assert [order.block for order in hands.turn() if isinstance(order, Show)] == [None]


def test_it_asks_whether_all_is_drained_and_stops_when_it_is() -> None:
    hands = Hands(replace(RULES, limits={ONE: 2}))
    tenure = hands.processing(ONE)
    assert AskIfDrained not in kinds(hands.turn())
    orders = hands.give(tenure, 2)
    assert AskIfDrained not in kinds(orders), "user code has not come back"
    tenure.save(0, 2)
    hands.come_back(orders)
    assert hands.turn() == [AskIfDrained(here=[ONE])]
    assert hands.turn(1000) == [], "it is being asked"
    assert hands.crew.heard_if_drained(Drained.NOT_BY_OTHERS, hands.now_ms) == []
    assert hands.crew.rest_ms(hands.now_ms) == 200
    assert hands.turn(200) == [AskIfDrained(here=[ONE])]
    assert kinds(hands.crew.heard_if_drained(Drained.ALL, hands.now_ms)) == [Asked, Retire]


def test_who_has_not_declared_all_done_does_not_wait_for_others_to_be_drained() -> None:
    """They wait for it: its end may be when it saves."""
    hands = Hands(replace(RULES, limits={ONE: 2}))
    tenure = hands.processing(ONE)
    orders = hands.give(tenure, 2)
    tenure.save(0, 1)
    hands.come_back(orders)
    assert hands.turn() == [AskIfDrained(here=[ONE])]
    assert hands.crew.heard_if_drained(Drained.NOT_YET, hands.now_ms) == [], "the rest comes here"
    assert hands.turn(200) == [AskIfDrained(here=[ONE])]
    assert kinds(hands.crew.heard_if_drained(Drained.NOT_BY_OTHERS, hands.now_ms)) == [Asked, Retire]


def test_what_happened_to_one_shard_goes_on_without_a_look_at_the_others() -> None:
    hands = Hands()
    one, two = hands.processing(ONE), hands.processing(TWO, 2)
    pieces = [[Piece(range(3), 10)]]
    for tenure in (one, two):
        hands.crew.found(
            tenure, Fetch(offset=0), pieces, next_offset=3, is_end=False, is_tail=False, now_ms=0
        )
    orders = hands.crew.go_on([one], hands.now_ms)
    assert kinds(orders) == [Run, Read], "what came is handed out, and the next is read ahead"
    assert all(order.tenure is one for order in orders if isinstance(order, Run | Read))
    (run, _) = orders
    assert isinstance(run, Run)
    hands.crew.raised(one, run.task, ODD, hands.now_ms, 0.5)
    (shown,) = hands.crew.go_on([one], hands.now_ms)
    assert isinstance(shown, Show)
    assert shown.block is not None, "what holds it up is shown at once"
    assert kinds(hands.turn()) == [Run, Read], "the other one, when all are looked at"
