"""Who owns which shard: the rules of one coordinated group, as one pure step.

A group is a value. `step` takes it with one event and the stream's shards as of the same moment, and returns
the next value and what happened. A keeper (SQL rows, the simulator) stores it by compare-and-set on the
version, and decides nothing. Heartbeats that change nothing do not come here: see `membership`.

Invariants: a shard has at most one holder, and changes hands only after a release by the holder, or after the
holder was silent for the timeout, or after its hand-over was given up and its deadline has passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from shoal.core import claims as machine
from shoal.core.balance import SPREAD, Strategy, checked, in_turn
from shoal.core.checkpoint import check_forward
from shoal.core.claims import (
    ALREADY_ALLOC,
    NOT_ALLOC,
    OVER,
    TRANSFER,
    WAIT,
    By,
    is_at_end,
    kept,
    moved,
    vacated,
)
from shoal.core.errors import (
    NameTaken,
    NotOwner,
    StrategyRefused,
    UnknownConsumer,
    text_of,
)
from shoal.core.events import (
    Event,
    Expire,
    Forgotten,
    Join,
    Leave,
    Letting,
    Release,
    Retire,
    Rewind,
    Sync,
    Update,
    Watched,
)
from shoal.core.group import (
    AS_SAVED,
    RULES,
    Claim,
    Group,
    GroupSettings,
    Member,
    MemberStatus,
    Note,
    ShardState,
    Timers,
)
from shoal.core.limits import EPOCH_JUMP
from shoal.core.membership import check_coordinated, check_timing, departed, is_dead, joined, pruned
from shoal.core.model import Shard, ShardId

Strategies = Mapping[str, Strategy]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """The group after a step, and what happened. The same group: nothing did."""

    group: Group
    notes: Sequence[Note] = ()
    let_go: Sequence[ShardId] = ()
    """Of a release: the shards that were the member's to let go of."""
    had_been_read: Sequence[ShardId] = ()
    """Of a rewind in an in-order group: descendants of which something had been read."""


def step(
    group: Group, event: Event, shards: Sequence[Shard], strategies: Strategies, *, stream: str = ""
) -> Stepped:
    """Apply one event. Same arguments, same answer. `stream` is named in refusals."""
    work = _Work(group=group, shards=shards, stream=stream)
    had_been_read: Sequence[ShardId] = ()
    let_go: Sequence[ShardId] = ()
    match event:
        case Join():
            _join(work, event)
        case Retire():
            _retire(work, event.incarnation)
        case Release():
            let_go = _release(work, event.incarnation, event.lettings)
        case Leave():
            let_go = _leave(work, event)
        case Expire():
            _expire(work, event)
        case Rewind():
            had_been_read = _rewind(work, event)
        case Update():
            _update(work, event.settings)
        case Watched():
            _watch(work, event.elapsed_ms, event.seen)
        case Forgotten():
            _distrust(work, event.seen)
        case Sync():
            pass
        case _:
            assert_never(event)
    _follow_stream(work)
    _assign_if_possible(work, strategies, event)
    return Stepped(group=work.finished(), notes=tuple(work.notes), let_go=let_go, had_been_read=had_been_read)


@dataclass(slots=True, kw_only=True)
class _Work:
    """A step under way: the group's parts, to be changed in place and put together again at the end."""

    group: Group
    shards: Sequence[Shard]
    stream: str
    claims: list[Claim] = field(init=False)
    members: dict[str, Member] = field(init=False)
    settings: GroupSettings = field(init=False)
    epoch: int = field(init=False)
    distrust_ms: int = field(init=False)
    notes: list[Note] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.claims = list(self.group.claims)
        self.members = dict(self.group.members)
        self.settings = self.group.settings
        self.epoch = self.group.epoch
        self.distrust_ms = self.group.distrust_ms

    def name(self, incarnation: str | None) -> str | None:
        member = self.members.get(incarnation) if incarnation is not None else None
        return member.name if member is not None else incarnation

    def note(
        self, kind: str, claim: Claim | None = None, consumer: str | None = None, detail: str = ""
    ) -> None:
        self.notes.append(
            Note(
                kind=kind,
                consumer=self.name(consumer),
                shard=None if claim is None else claim.shard,
                epoch=None if claim is None or not claim.epoch else claim.epoch,
                detail=detail,
            )
        )

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def grant(self, claim: Claim, incarnation: str, by: By) -> None:
        """The one place where a shard gets an owner, and with it a new epoch."""
        epoch = self.next_epoch()
        self.claims[claim.shard] = given = replace(
            vacated(moved(claim, by, ALREADY_ALLOC)), owner=incarnation, owner_epoch=epoch, epoch=epoch
        )
        self.note("granted", given, incarnation)

    def held_by(self, incarnation: str) -> list[Claim]:
        return [claim for claim in self.claims if claim.owner == incarnation]

    def is_candidate(self, incarnation: str | None) -> bool:
        member = self.members.get(incarnation) if incarnation is not None else None
        return member is not None and member.status is MemberStatus.ACTIVE

    def finished(self) -> Group:
        """The group after the step; the version rises only if something changed."""
        group = self.group
        members = departed(self.members, (claim.owner for claim in self.claims))
        touched: set[str | None] = set()
        before = [*group.claims, *[None] * (len(self.claims) - len(group.claims))]
        changed = [
            (old, new) for old, new in zip(before, self.claims, strict=True) if new is not old and new != old
        ]
        for old, new in changed:
            if old is None or _as_answered(old) != _as_answered(new):
                touched |= {new.owner, None if old is None else old.owner}
        if self.settings != group.settings:
            touched |= members.keys()
        is_same = (
            not changed
            and members == group.members
            and self.settings == group.settings
            and (self.epoch, self.distrust_ms) == (group.epoch, group.distrust_ms)
        )
        if is_same:
            return group
        version = group.version + 1
        for key, member in members.items():
            if key in touched or group.members.get(key) is None or member.status != group.members[key].status:
                members[key] = replace(member, assigned=version)
        return replace(
            group,
            version=version,
            epoch=self.epoch,
            settings=self.settings,
            members=pruned(members),
            claims=tuple(self.claims),
            distrust_ms=self.distrust_ms,
        )


def _as_answered(claim: Claim) -> tuple[str | None, int, ShardState, bool]:
    """What the owner is told of it. Its watches and who is next are none of that."""
    return (claim.owner, claim.owner_epoch, claim.state, claim.is_extended)


# --- Events. ----------------------------------------------------------------------------------------


def _join(work: _Work, event: Join) -> None:
    check_coordinated(work.settings)
    if event.incarnation not in work.members:
        check_timing(work.settings, event.timeout_ms, event.interval_ms)
    newcomer = Member(
        incarnation=event.incarnation,
        name=event.name,
        timeout_ms=event.timeout_ms,
        interval_ms=event.interval_ms,
    )
    after = joined(work.members, newcomer, is_again=event.is_again)
    for key, member in after.items():
        if key in work.members and member.status is not work.members[key].status:
            work.note("barred", consumer=key, detail="a newer process has joined under its name")
    is_new = event.incarnation not in work.members
    work.members = after
    if is_new:
        work.note("joined", consumer=event.incarnation)


def _retire(work: _Work, incarnation: str) -> None:
    member = _living(work, incarnation)
    if member.status is MemberStatus.ACTIVE:
        work.members[incarnation] = replace(member, status=MemberStatus.LEAVING)
        work.note("leaving", consumer=incarnation)


def _living(work: _Work, incarnation: str) -> Member:
    member = work.members.get(incarnation)
    if member is None or member.status is MemberStatus.GONE:
        raise UnknownConsumer(incarnation)
    if member.status is MemberStatus.BARRED:
        raise NameTaken(member.name)
    return member


def _release(work: _Work, incarnation: str, lettings: Sequence[Letting]) -> list[ShardId]:
    """Barred ones may release too: letting go is never refused. What is not theirs is passed over."""
    let_go = []
    for letting in lettings:
        claim = _find_claim(work, letting.shard, incarnation)
        if claim.owner != incarnation or claim.owner_epoch != letting.epoch:
            continue  # A repeat, or it was taken away: it is not theirs, which is all they wanted.
        if letting.checkpoint is not None and not claim.is_fenced:
            claim = _saved(work, claim, letting.checkpoint)
        work.note("released", claim, incarnation)
        _free(work, claim)
        let_go.append(claim.shard)
    return let_go


def _find_claim(work: _Work, shard: ShardId, incarnation: str) -> Claim:
    if not 0 <= shard < len(work.claims):
        raise NotOwner(shard=shard, consumer=work.name(incarnation) or incarnation, owner=None)
    return work.claims[shard]


def _saved(work: _Work, claim: Claim, checkpoint: int) -> Claim:
    """The claim with its owner's last checkpoint."""
    check_forward(work.stream, work.shards[claim.shard], claim.checkpoint, checkpoint)
    return replace(claim, checkpoint=checkpoint, is_told=True)


def _free(work: _Work, claim: Claim) -> None:
    """The holder is gone from this shard: on to its end, its next consumer, its new beginning, or nobody."""
    if claim.restart is not None:
        _begin_anew(work, claim)
        return
    by = By.OWNER_GONE if claim.state is ALREADY_ALLOC else By.OWNER_GONE_IN_TRANSFER
    if is_at_end(work.shards[claim.shard], claim.checkpoint):
        _end(work, claim)
    elif claim.state is TRANSFER and work.is_candidate(claim.next) and _may_grant(work):
        assert claim.next is not None
        work.grant(claim, claim.next, By.HANDED_OVER)
    else:
        work.claims[claim.shard] = vacated(moved(claim, by, NOT_ALLOC))


def _begin_anew(work: _Work, claim: Claim) -> None:
    assert claim.restart is not None
    ended = machine.ended_shards(work.shards, work.claims)
    waits = (
        work.settings.in_order
        and claim.is_bound
        and any(parent not in ended for parent in work.shards[claim.shard].parents)
    )
    begun = vacated(moved(claim, By.ANEW, WAIT if waits else NOT_ALLOC))
    work.claims[claim.shard] = replace(begun, checkpoint=claim.start, restart=None)


def _end(work: _Work, claim: Claim) -> None:
    work.claims[claim.shard] = over = vacated(moved(claim, By.ENDED, OVER))
    work.note("ended", over, claim.owner)


def _leave(work: _Work, event: Leave) -> list[ShardId]:
    member = work.members.get(event.incarnation)
    if member is None or member.status is MemberStatus.GONE:
        return []  # A repeat.
    work.members[event.incarnation] = replace(member, status=MemberStatus.GONE)  # So that nothing comes back.
    let_go = _release(work, event.incarnation, event.lettings)
    work.note("left", consumer=event.incarnation)
    rest = [claim.shard for claim in work.held_by(event.incarnation)]
    _bury(work, member)
    return [*let_go, *rest]


def _expire(work: _Work, event: Expire) -> None:
    """Only if the counter still stands where it stood when the watch ran out."""
    member = work.members.get(event.incarnation)
    if member is None or member.beat != event.beat or not is_dead(member):
        return
    work.note(
        "expired",
        consumer=event.incarnation,
        detail=f"silent for its timeout of {member.timeout_ms / 1000:g} s",
    )
    _bury(work, member)


def _bury(work: _Work, member: Member) -> None:
    work.members[member.incarnation] = replace(member, status=MemberStatus.GONE)
    for claim in work.held_by(member.incarnation):
        _free(work, claim)


def _rewind(work: _Work, event: Rewind) -> list[ShardId]:
    """Forced checkpoints, and in an in-order group what follows for the shards that come after them."""
    _follow_stream(work)  # A shard born since the last step can be named, too.
    ended_before = machine.ended_shards(work.shards, work.claims)
    for shard, offset in sorted(event.positions.items()):
        claim = replace(work.claims[shard], epoch=work.next_epoch(), is_told=True)
        work.note("rewound", claim, claim.owner, f"{event.why}: from {claim.checkpoint} to {offset}")
        if claim.owner is not None:
            _ask_back(work, claim, restart=offset)
        else:
            work.claims[shard] = replace(claim, checkpoint=offset)
    family = (
        machine.lineage_of(work.shards, event.positions) if work.settings.in_order else set(event.positions)
    )
    read = []
    for place in sorted(family):
        claim = work.claims[place]
        is_named = place in event.positions
        if not is_named and claim.checkpoint > 0:  # An empty one may be over, and was never read.
            read.append(claim.shard)
        if claim.owner is not None:
            if not is_named:
                # A forced checkpoint that still waits for the owner to let go is not forgotten.
                restart = AS_SAVED if claim.restart is None else claim.restart
                _ask_back(work, replace(claim, epoch=work.next_epoch()), restart=restart)
        elif claim.state is not OVER or (is_named and not is_at_end(work.shards[place], claim.checkpoint)):
            _restart_free(work, claim, ended_before)
    return read


def _ask_back(work: _Work, claim: Claim, restart: int) -> None:
    """The lease ends: the owner is fenced at once, and the machine begins anew when it has let go."""
    if claim.state is ALREADY_ALLOC:
        claim = moved(claim, By.TAKEN_BACK, TRANSFER)
    work.claims[claim.shard] = replace(claim, restart=restart)


def _restart_free(work: _Work, claim: Claim, ended_before: set[ShardId]) -> None:
    """A machine that nobody holds begins anew. Its parents, with smaller ids, did so before it."""
    ended = machine.ended_shards(work.shards, work.claims) & ended_before
    waits = (
        work.settings.in_order
        and claim.is_bound
        and any(parent not in ended for parent in work.shards[claim.shard].parents)
    )
    if claim.state is OVER and not waits:
        work.claims[claim.shard] = moved(claim, By.FORCED_BACK, NOT_ALLOC)
        work.note("reopened", claim)
    else:
        work.claims[claim.shard] = moved(claim, By.ANEW, WAIT if waits else NOT_ALLOC)


def _update(work: _Work, settings: GroupSettings) -> None:
    if settings == work.settings:
        return
    _follow_stream(work)  # What was born before is not bound by what is said now.
    if work.settings.in_order and not settings.in_order:
        work.claims = [replace(claim, is_bound=False) if claim.is_bound else claim for claim in work.claims]
    work.settings = settings
    work.note("updated", detail=f"in_order={settings.in_order}, timeout={settings.timeout_ms / 1000:g} s")


def _watch(work: _Work, elapsed_ms: int, seen: Timers) -> None:
    """Time passes for hand-overs that have a bound, and for a group that waits out a store's forgetting.

    Each by itself, and only where the observer saw it as it still is: what another has added to meanwhile, or
    what began since, this one has not watched.
    """
    if seen.distrust == (work.distrust_ms, work.epoch):
        work.distrust_ms = max(0, work.distrust_ms - _at_most_an_interval(work, None, elapsed_ms))
    bound = work.settings.handover_timeout_ms
    for claim in work.claims:
        if claim.timer is None or claim.timer != seen.handovers.get(claim.shard):
            continue
        if claim.owner is None or (bound is None and not claim.lapse_ms):
            continue
        waited = claim.handover_ms + _at_most_an_interval(work, claim.owner, elapsed_ms)
        if claim.lapse_ms:
            _lapse(work, claim, waited)
        elif bound is not None and waited >= bound:
            owner = work.members.get(claim.owner)
            lapse = owner.timeout_ms if owner is not None else work.settings.timeout_ms
            work.claims[claim.shard] = replace(claim, handover_ms=0, lapse_ms=lapse)
            work.note("frozen", claim, claim.owner, f"has not let go within {bound / 1000:g} s")
        else:
            work.claims[claim.shard] = replace(claim, handover_ms=waited)


def _at_most_an_interval(work: _Work, incarnation: str | None, elapsed_ms: int) -> int:
    intervals = [
        member.interval_ms
        for key, member in work.members.items()
        if member.is_watched and incarnation in {None, key}
    ]
    return max(0, min([elapsed_ms, *intervals]))


def _lapse(work: _Work, claim: Claim, waited: int) -> None:
    """The deadline that was no longer extended has passed: the owner holds it no more."""
    if waited < claim.lapse_ms:
        work.claims[claim.shard] = replace(claim, handover_ms=waited)
        return
    work.note("forced", claim, claim.owner, "its deadline passed after the hand-over timeout")
    _free(work, claim)


def _distrust(work: _Work, seen: int) -> None:
    """The store forgot commits: wait until every deadline it forgot has passed, and jump over its epochs."""
    if seen <= work.group.version:
        return
    longest = max([work.settings.timeout_ms, *(member.timeout_ms for member in work.members.values())])
    work.distrust_ms = max(work.distrust_ms, longest)
    work.epoch += EPOCH_JUMP
    # Versions jump as well: a step that was thought out before the store forgot must not meet its own again.
    work.group = replace(work.group, version=seen + EPOCH_JUMP)
    for claim in work.claims:
        # Free ones, too: an epoch that was given and forgotten must lie behind, not ahead.
        raised = replace(claim, epoch=work.next_epoch())
        if claim.owner is not None and claim.restart is None:
            _ask_back(work, raised, restart=AS_SAVED)
        else:
            work.claims[claim.shard] = raised
    work.note("distrusted", detail=f"the store has forgotten commits up to version {seen}")


# --- What follows from every event. -----------------------------------------------------------------


def _follow_stream(work: _Work) -> None:
    """Births, ends, and shards that need not wait any more. Parents come before children: one pass."""
    ended: set[ShardId] = set()
    for shard in work.shards:
        if shard.id >= len(work.claims):
            # Whatever the group's start was: its first records would be skipped otherwise.
            claim = machine.born(shard, 0, is_bound=work.settings.in_order, is_told=True, ended=ended)
            work.claims.append(claim)
            work.note("born", claim, detail=str(claim.state))
        claim = work.claims[shard.id]
        if claim.state is not OVER and claim.restart is None and is_at_end(shard, claim.checkpoint):
            _end(work, claim)
        elif claim.state is WAIT and (
            not (work.settings.in_order and claim.is_bound)
            or all(parent in ended for parent in shard.parents)
        ):
            work.claims[shard.id] = moved(claim, By.ANCESTORS_ENDED, NOT_ALLOC)
        if work.claims[shard.id].state is OVER and all(parent in ended for parent in shard.parents):
            ended.add(shard.id)


def _may_grant(work: _Work) -> bool:
    return work.distrust_ms == 0 and work.settings.rules == RULES


def _assign_if_possible(work: _Work, strategies: Strategies, event: Event) -> None:
    try:
        _assign(work, strategies)
    except StrategyRefused as error:
        if isinstance(event, Join | Update):
            raise  # Someone is there to hear of it, and nothing has been changed.
        # Who dies or lets go must not wait for a strategy to be mended: nothing is given out meanwhile.
        work.note("refused", detail=str(error))


def _assign(work: _Work, strategies: Strategies) -> None:
    """Spread what can be consumed over the members, through `transfer` where someone holds it."""
    strategy = strategies.get(work.settings.strategy)
    candidates = {
        member.name: key for key, member in work.members.items() if member.status is MemberStatus.ACTIVE
    }
    for claim in work.claims:
        if claim.state is TRANSFER and claim.next is not None and not work.is_candidate(claim.next):
            work.claims[claim.shard] = _without_next(work, claim)
    if strategy is None or not _may_grant(work) or not candidates:
        return
    wanted = _wanted(work, strategy, sorted(candidates))
    for shard, name in wanted.items():
        _steer(work, work.claims[shard], candidates[name])


def _without_next(work: _Work, claim: Claim) -> Claim:
    """The one who was to have it is gone: the owner keeps it, unless it has to let go for another reason."""
    if claim.restart is not None or claim.lapse_ms or not work.is_candidate(claim.owner):
        return replace(claim, next=None)
    return kept(claim)


def _wanted(work: _Work, strategy: Strategy, names: list[str]) -> dict[ShardId, str]:
    shards, held = [], {}
    for claim in work.claims:
        if claim.state not in machine.ASSIGNABLE:
            continue
        shards.append(claim.shard)
        # By name: a restarted consumer has its shards meant for it again, once its old self has let go.
        if (name := work.name(claim.intended)) is not None:
            held[claim.shard] = name
    if work.settings.strategy == SPREAD:
        names = in_turn(names, work.group.stream_id)
    try:
        # Copies: one that uses up what it was given must not use up what its answer is checked against.
        answer = strategy(list(shards), list(names), dict(held))
    except Exception as error:  # Around user code.
        raise StrategyRefused(
            work.settings.strategy, f"it raised {type(error).__name__}: {text_of(error)}"
        ) from error
    return checked(work.settings.strategy, answer, shards, names)


def _asked_ms(work: _Work, claim: Claim) -> int:
    """How long the owner has been asked already: who was to have it is gone, and it is another's turn."""
    before = work.group.claims[claim.shard] if claim.shard < len(work.group.claims) else claim
    is_same = before.state is TRANSFER and before.owner_epoch == claim.owner_epoch
    return before.handover_ms if is_same and before.restart is None else 0


def _steer(work: _Work, claim: Claim, target: str) -> None:
    match claim.state:
        case ShardState.NOT_ALLOC:
            work.grant(claim, target, By.ASSIGNED)
        case ShardState.ALREADY_ALLOC if claim.owner != target:
            asked = replace(
                moved(claim, By.TAKEN_BACK, TRANSFER), next=target, handover_ms=_asked_ms(work, claim)
            )
            work.claims[claim.shard] = asked
            work.note("moving", asked, claim.owner, f"to {work.name(target)}")
        case ShardState.TRANSFER if claim.owner == target and claim.restart is None and not claim.lapse_ms:
            work.claims[claim.shard] = kept(claim)
        case ShardState.TRANSFER if claim.next != target:
            work.claims[claim.shard] = replace(claim, next=target)
        case _:
            pass
