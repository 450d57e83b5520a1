"""Random histories of one shard in a worker's hands, with one lane and with several.

Defends invariants 3, 4 and 5 for a single tenure: a lane gets its records in order, a failed one again before
anything after it, none is passed over, also when its processor is lost; the checkpoint never covers what was
not declared done. The same for user code that comes for its records, seeks, pauses and resumes.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.budget import Budget
from shoal.core.crew import Crew, CrewRules
from shoal.core.delivery import Tenure
from shoal.core.errors import LeaseLost
from shoal.core.model import ShardId
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.core.tasks import (
    Failure,
    Fetch,
    Phase,
    Piece,
    Process,
    Reason,
    Release,
    SetAside,
    ShutDown,
    StopWorker,
    Task,
)

END = 30


@dataclass
class Shard:
    """A closed shard of END records, and user code that fails as it is told."""

    tenure: Tenure
    lanes: int
    rules: FailureRules
    now_ms: int = 0
    running: dict[int, Task] = field(default_factory=dict)
    given: dict[int, list[int]] = field(default_factory=dict)
    """Offsets that each lane finished, in order, each once."""
    aside: list[int] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    """Offsets that user code came back from, whatever it wanted again later."""
    ever_aside: set[int] = field(default_factory=set)
    declared: dict[int, int] = field(default_factory=dict)
    released: Release | None = None

    def lane_of(self, offset: int) -> int:
        return offset * 7 % self.lanes

    def turn(self) -> None:
        for action in self.tenure.advance(self.now_ms):
            if isinstance(action, Release):
                assert self.released is None, "released twice"
                assert not self.running, "released while user code runs"
                self.released = action
            else:
                assert not isinstance(action, StopWorker)
                assert action.lane not in self.running, "two calls at once on one lane"
                self.running[action.lane] = action
                if isinstance(action, Process):
                    self.check_order(action)

    def check_order(self, process: Process) -> None:
        done = self.given.setdefault(process.lane, [])
        mine = [o for o in range(END) if self.lane_of(o) == process.lane and o not in self.aside]
        wanted = [o for o in mine if o not in done]
        offsets = list(process.piece.offsets)
        assert offsets == wanted[: len(offsets)], f"lane {process.lane}: {offsets} while {wanted} are due"

    def fetch(self, count: int) -> None:
        wanted = self.tenure.wanted
        if wanted is None:
            return
        if wanted.lane is not None:
            self.fetch_again(wanted, count)
            return
        upto = min(END, wanted.offset + count)
        pieces = []
        for lane in range(self.lanes):
            mark = self.tenure.lanes[lane].handed
            offsets = [o for o in range(max(mark, wanted.offset), upto) if self.lane_of(o) == lane]
            pieces.append([Piece(offsets, len(offsets))] if offsets else [])
        self.tenure.is_fetching = True
        self.tenure.got(pieces, upto, is_end=upto == END)

    def fetch_again(self, wanted: Fetch, count: int) -> None:
        """What a lane went back for, or a part of it."""
        assert wanted.lane is not None
        assert wanted.until is not None
        upto = min(wanted.until, wanted.offset + count)
        offsets = [o for o in range(wanted.offset, upto) if self.lane_of(o) == wanted.lane]
        self.tenure.is_fetching = True
        self.tenure.got_again(wanted.lane, [Piece(offsets, len(offsets))] if offsets else [], upto)

    def go_back(self, lane: int, steps: int) -> None:
        """User code of a lane returns, and wants its last records once more."""
        action = self.running[lane]
        if not isinstance(action, Process):
            return
        del self.running[lane]
        back_to = max(0, action.piece.next - steps)
        self.finished.update(o for o in action.piece.offsets if o < back_to)
        self.given[lane] = [o for o in self.given[lane] + list(action.piece.offsets) if o < back_to]
        # What was set aside before comes again too: whoever goes back says so.
        self.aside = [o for o in self.aside if self.lane_of(o) != lane or o < back_to]
        self.tenure.returned(lane, back_to=back_to)

    def bereave(self, lane: int) -> None:
        """The processor of a lane is gone, and what it had not declared done with it."""
        if self.tenure.phase is not Phase.PROCESSING or isinstance(self.running.get(lane), SetAside):
            return
        machine = self.tenure.lanes[lane]
        if lane not in self.running and (machine.queue or machine.missing is not None):
            return  # Its next task says so.
        self.running.pop(lane, None)
        self.given[lane] = [o for o in self.given.get(lane, []) if o < machine.done]
        self.tenure.bereft(lane)

    def finish(self, lane: int, *, saves: bool) -> None:
        """User code of a lane returns."""
        action = self.running.pop(lane)
        if isinstance(action, Process):
            self.given[lane] += action.piece.offsets
            self.finished.update(action.piece.offsets)
            if saves and self.tenure.reason is Reason.LOST:
                with pytest.raises(LeaseLost):
                    self.tenure.save(lane, action.piece.next)
            elif saves:
                self.declared[lane] = self.tenure.save(lane, action.piece.next)
        if isinstance(action, SetAside):
            self.aside.append(action.offset)
            self.ever_aside.add(action.offset)
        self.tenure.returned(lane)
        if saves and isinstance(action, Process) and self.tenure.reason is not Reason.LOST:
            assert self.tenure.save(lane, None) >= action.piece.next

    def fail(self, lane: int, reached: int | None, kind: str, *, is_outage: bool) -> None:
        if isinstance(self.running[lane], SetAside):
            return
        action = self.running.pop(lane)
        if isinstance(action, ShutDown) and action.reason is Reason.ENDED:
            # What was not declared done comes again, set aside or not.
            done = [each.done for each in self.tenure.lanes]
            for each, offsets in self.given.items():
                self.given[each] = [o for o in offsets if o < done[each]]
            self.aside = [o for o in self.aside if o < done[self.lane_of(o)]]
        if isinstance(action, Process) and reached is not None:
            reached = action.piece.offsets[reached % len(action.piece.offsets)]
        self.tenure.raised(
            lane, Failure(kind=kind, text="", reached=reached, is_outage=is_outage), self.now_ms, 0.5
        )

    def check_checkpoint(self) -> None:
        """Below the checkpoint everything was finished and declared, or set aside."""
        for each in self.tenure.lanes:
            assert each.queued_bytes == sum(piece.bytes for piece in each.queue)
        for offset in range(min(self.tenure.checkpoint, END)):
            lane = self.lane_of(offset)
            is_done = offset in self.finished and offset < self.declared.get(lane, 0)
            assert is_done or offset in self.ever_aside, (
                f"checkpoint {self.tenure.checkpoint} passes {offset}"
            )


@settings(max_examples=120, deadline=None, phases=[Stage.explicit, Stage.reuse, Stage.generate])
@given(
    data=st.data(),
    lanes=st.sampled_from([1, 1, 2, 3]),
    policy=st.sampled_from([Policy.STRICT, Policy.BEST_TRIED]),
)
def test_nothing_is_passed_over_or_overtaken(data: st.DataObject, lanes: int, policy: Policy) -> None:
    rules = FailureRules(policy=policy, backoff=Backoff(first_s=0.01, jitter=0), outage_after=3)
    shard = Shard(Tenure(ShardId(0), 5, 0, rules, lanes=lanes), lanes, rules)
    shard.tenure.begin()
    stop = data.draw(st.sampled_from([None, None, Reason.MOVED, Reason.STOPPED, Reason.LOST]))
    stop_after = data.draw(st.integers(0, 60))
    for turn in range(120):
        shard.turn()
        shard.check_checkpoint()
        if turn == stop_after and stop is not None:
            shard.tenure.lose(None) if stop is Reason.LOST else shard.tenure.ask(stop)
            continue
        what = data.draw(
            st.sampled_from(
                ["finish", "finish", "save", "save", "fail", "fetch", "fetch", "time", "back", "bereave"]
            )
        )
        lane = data.draw(st.sampled_from(sorted(shard.running))) if shard.running else None
        if what == "fetch":
            shard.fetch(data.draw(st.integers(1, 9)))
        elif what == "bereave":
            shard.bereave(data.draw(st.integers(0, lanes - 1)))
        elif what == "time":
            shard.now_ms += data.draw(st.integers(1, 50))
        elif lane is not None and what == "fail":
            shard.fail(
                lane,
                data.draw(st.none() | st.integers(0, 8)),
                data.draw(st.sampled_from(["A", "B"])),
                is_outage=data.draw(st.booleans()),
            )
        elif lane is not None and what == "back":
            shard.go_back(lane, data.draw(st.integers(0, 12)))
        elif lane is not None:
            shard.finish(lane, saves=what == "save")
    _heal(shard)
    if stop is None or shard.tenure.reason is Reason.ENDED:
        assert shard.released is not None
        assert shard.released.checkpoint == END
        seen = sorted([o for offsets in shard.given.values() for o in offsets] + shard.aside)
        assert seen == list(range(END))
    else:
        assert shard.released is not None
        assert (shard.released.checkpoint is None) == (shard.tenure.reason is Reason.LOST)


def _heal(shard: Shard) -> None:
    """User code returns from now on."""
    for _ in range(400):
        shard.now_ms += 1000
        shard.turn()
        shard.fetch(5)
        for lane in list(shard.running):
            shard.finish(lane, saves=True)
        shard.check_checkpoint()
        if shard.released is not None:
            assert shard.tenure.phase is Phase.STOP_COMPLETED
            return
    raise AssertionError(f"it never ends: {shard.tenure.phase}, {shard.running}")


@dataclass
class Polled:
    """A closed shard of END records, whose user code comes for them, and goes where it likes."""

    tenure: Tenure
    at: int = 0
    """What it is to be given next."""
    now_ms: int = 0
    offered: Process | None = None
    is_withdrawn: bool = False
    """Something happened since the offer that may have taken it back."""
    in_hand: Process | None = None
    asked: Fetch | None = None
    declared: int = 0
    released: Release | None = None

    def turn(self) -> None:
        for action in self.tenure.advance(self.now_ms):
            if isinstance(action, Release):
                assert self.released is None
                assert self.in_hand is None, "released while user code has something in its hands"
                self.released = action
            elif isinstance(action, Process):
                assert self.in_hand is None, "offered while user code is at work"
                self.offered, self.is_withdrawn = action, False
            else:
                assert not isinstance(action, StopWorker)
                self.tenure.returned(action.lane)

    def ask(self) -> None:
        """A read begins."""
        wanted = self.tenure.wanted
        if wanted is not None:
            self.tenure.fetching()
            self.asked = wanted

    def answer(self, count: int, crew: Crew) -> None:
        """It ends."""
        if self.asked is None:
            return
        wanted, self.asked = self.asked, None
        upto = min(END if wanted.until is None else wanted.until, wanted.offset + count)
        pieces = [Piece(range(wanted.offset, upto), 1)] if upto > wanted.offset else []
        crew.found(
            self.tenure, wanted, [pieces], next_offset=upto, is_end=upto == END, is_tail=False, now_ms=0
        )

    def take(self) -> None:
        if self.offered is None:
            return
        offered, self.offered = self.offered, None
        is_taken = self.tenure.take(offered, self.now_ms)
        assert is_taken or self.is_withdrawn, "what was offered is gone without a reason"
        assert not self.tenure.take(offered, self.now_ms), "given out twice"
        if is_taken:
            assert offered.piece.first == self.at, f"{offered.piece} while {self.at} is due"
            self.in_hand, self.at = offered, offered.piece.next

    def come_back(self, *, saves: bool) -> None:
        if self.in_hand is not None:
            if saves:
                self.declare(self.in_hand.piece.next)
            self.in_hand = None
            self.tenure.returned(0)

    def declare(self, offset: int) -> None:
        self.declared = max(self.declared, offset)
        if self.tenure.reason is Reason.LOST or self.tenure.phase is Phase.STOP_COMPLETED:
            with pytest.raises(LeaseLost):
                self.tenure.save(0, offset)
        else:
            self.tenure.save(0, offset)

    def seek(self, offset: int) -> None:
        if self.tenure.reason is None:
            self.tenure.seek(offset)
            self.at, self.is_withdrawn = offset, True

    def check(self) -> None:
        assert self.tenure.checkpoint <= self.declared, "what nobody declared done is done"
        if self.tenure.reason is None:
            assert self.tenure.position == self.at


ACTS = ["ask", "answer", "take", "back", "save", "seek", "pause", "resume", "declare", "turn"]


def _act(shard: Polled, crew: Crew, what: str, data: st.DataObject) -> None:
    match what:
        case "answer":
            shard.answer(data.draw(st.integers(0, 9)), crew)
        case "back" | "save":
            shard.come_back(saves=what == "save")
        case "seek":
            shard.seek(data.draw(st.integers(0, END)))
        case "pause":
            shard.is_withdrawn = True
            shard.tenure.pause()
        case "resume":
            shard.tenure.resume()
        case "declare":
            shard.declare(data.draw(st.integers(0, shard.tenure.lanes[0].handed)))
        case _:
            {"ask": shard.ask, "take": shard.take, "turn": shard.turn}[what]()


@settings(max_examples=150, deadline=None, phases=[Stage.explicit, Stage.reuse, Stage.generate])
@given(data=st.data())
def test_who_comes_for_records_gets_them_from_where_it_wants_to_go_on(data: st.DataObject) -> None:
    rules = FailureRules()
    shard = Polled(Tenure(ShardId(0), 5, 0, rules, is_on_demand=True))
    crew = Crew(CrewRules(failure=rules, budget=Budget(total=1000, at_once=1000)), 0)
    shard.tenure.begin()
    stop = data.draw(st.sampled_from([None, Reason.MOVED, Reason.STOPPED, Reason.LOST]))
    stop_after = data.draw(st.integers(0, 60))
    for turn in range(80):
        if turn == stop_after and stop is not None:
            shard.is_withdrawn = True
            shard.tenure.lose(None) if stop is Reason.LOST else shard.tenure.ask(stop)
        _act(shard, crew, data.draw(st.sampled_from(ACTS)), data)
        shard.check()
    shard.tenure.resume()
    for _ in range(100):
        if shard.released is not None:
            break
        shard.turn()
        shard.ask()
        shard.answer(7, crew)
        shard.take()
        shard.come_back(saves=True)
        if shard.tenure.reason is None:
            shard.declare(shard.tenure.position)  # Where it leapt to the end, nothing comes that says so.
        shard.check()
    assert shard.released is not None, f"it never ends: {shard.tenure.phase}"
    if shard.tenure.reason is Reason.ENDED:
        assert shard.released.checkpoint == END
