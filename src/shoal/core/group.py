"""A consumer group as a value: its settings, its members, and what it knows of each shard.

Members are told apart by incarnation, a random id made at join; the name is what people call them. Nothing
here holds an instant: watches are durations that add up, and wall clocks are for people to read.

Invariants: a shard has at most one holder; an epoch is given once, and never goes down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput, OtherLeaseStore, WrongDelivery
from shoal.core.limits import (
    ATTEMPTS_MAX,
    GROUP_TIMEOUT_S_MAX,
    GROUP_TIMEOUT_S_MIN,
    HANDOVER_TIMEOUT_S_MAX,
    UNUSED_S_MAX,
    VISIBILITY_S_MAX,
)
from shoal.core.model import ShardId
from shoal.core.retry import Policy

RULES: Final = 1
"""The version of the rules in this package. A group's row names the one it lives by."""

AS_SAVED: Final = -1
"""As an offset to begin anew from: wherever the checkpoint stands when the owner has let go. A step that
named the checkpoint it had loaded would put back what the owner saved before the step was written."""


class Coordination(StrEnum):
    """Who decides: the hub, or the consumers among themselves through a table of leases."""

    COORDINATED = "coordinated"
    LEASED = "leased"


class Delivery(StrEnum):
    """How records are spread over the consumers of a group."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    BROADCAST = "broadcast"


class ShardState(StrEnum):
    """The five states of a shard in a group."""

    WAIT = "wait"
    """Not to be consumed yet: an ancestor has not ended."""
    NOT_ALLOC = "not_alloc"
    """May be consumed, and nobody holds it."""
    ALREADY_ALLOC = "already_alloc"
    """Held by a consumer."""
    TRANSFER = "transfer"
    """Held by a consumer that is to let go of it."""
    OVER = "over"
    """Closed, and consumed to its end."""


class MemberStatus(StrEnum):
    """What a member may do."""

    ACTIVE = "active"
    LEAVING = "leaving"
    """Beats and drains, and gets nothing new."""
    BARRED = "barred"
    """A newer incarnation has its name. It may only let go."""
    GONE = "gone"
    """Left or was expired. Remembered for a while, so that a late message of it brings nobody back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What a group is told when it is created; in_order and the timeouts may be changed later."""

    in_order: bool = True
    """A shard is consumed after all its ancestors."""
    timeout_ms: int = 20_000
    """A consumer whose heartbeat counter has stood still for so long is dead. The document advises 20 s."""
    handover_timeout_ms: int | None = None
    """None: a living owner is waited for, however long it takes to let go of a shard."""
    coordination: Coordination = Coordination.COORDINATED
    delivery: Delivery = Delivery.EXCLUSIVE
    strategy: str = "balanced"
    lease_table: str | None = None
    """Of a leased group: the name of the table that its rows are in."""
    lease_store: str | None = None
    """Of a leased group: the identity of the database that the table is in. Consumers that looked into two
    would each find nobody else."""
    failure: Policy | None = None
    """What its workers do when user code raises, unless they are told otherwise; None: by `in_order`."""
    visibility_ms: int | None = None
    """Of a shared group: for how long a record is a consumer's alone, unless it asks otherwise."""
    max_attempts: int | None = None
    """Of a shared group: after being handed out so often, a record goes to the dead stream."""
    key_ordered: bool = False
    """Of a shared group: of each key, one record is in flight at a time, in order."""
    unused_ms: int | None = None
    """Of a broadcast group: a consumer's position that nobody has used for so long is dropped."""
    rules: int = RULES

    @property
    def policy(self) -> Policy:
        """An in-order group is strict unless told otherwise; any other sets records aside."""
        return self.failure or (Policy.STRICT if self.in_order else Policy.BEST_TRIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One incarnation of one consumer."""

    incarnation: str
    name: str
    status: MemberStatus = MemberStatus.ACTIVE
    beat: int = 0
    """The number of its last heartbeat: the counter that is watched."""
    timeout_ms: int
    """What it counts its own deadline by, as its last heartbeat stated."""
    interval_ms: int
    """How often it beats. A watch adds at most so much at a time."""
    stood_ms: int = 0
    """How long `beat` has stood still, as watched by everyone together."""
    assigned: int = 0
    """The group's version at which its assignment last changed."""
    held: int = 0
    """A digest of the shards that its last heartbeat reported, and 0 if the group knew others to be with it:
    an equal report needs no second look."""

    @property
    def is_watched(self) -> bool:
        return self.status is not MemberStatus.GONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One shard as the group knows it."""

    shard: ShardId
    state: ShardState
    checkpoint: int = 0
    """The next offset to consume."""
    epoch: int = 0
    """The one epoch that may read and save. 0: it was never given to anyone."""
    owner: str | None = None
    """The incarnation that holds it."""
    owner_epoch: int = 0
    """The epoch that the owner was given. Behind `epoch` after a reset under it: then it may only let go."""
    next: str | None = None
    """The incarnation that gets it once the owner has let go."""
    is_bound: bool = True
    """Waits for its ancestors. Not so for what was there when a group became in-order."""
    is_told: bool = False
    """The group was told where it stands: it was born into the group, its checkpoint was saved or forced, or
    its start was named. Otherwise a consumer that has a start of its own (Aliyun's) begins by that."""
    restart: int | None = None
    """The machine begins anew, from this offset or `AS_SAVED`, once the owner has let go."""
    handover_ms: int = 0
    """How long the owner has been asked to let go, as watched."""
    lapse_ms: int = 0
    """Above 0: the hand-over took too long, the owner's deadline is no longer extended, and once it has been
    watched for so long it has passed."""

    @property
    def is_fenced(self) -> bool:
        """Whoever holds it can neither read nor save under the epoch it was given."""
        return self.owner is not None and self.owner_epoch != self.epoch

    @property
    def is_extended(self) -> bool:
        """Whether a heartbeat of the owner moves its deadline for this shard."""
        return not self.lapse_ms and not self.is_fenced

    @property
    def timer(self) -> tuple[int, int, int] | None:
        """While its owner is asked to let go: what stands still as long as nobody has added to that time."""
        if self.state is not ShardState.TRANSFER or self.owner is None:
            return None
        return (self.owner_epoch, self.handover_ms, self.lapse_ms)

    @property
    def start(self) -> int:
        """The next offset to consume, now or once it has begun anew."""
        return self.checkpoint if self.restart is None or self.restart == AS_SAVED else self.restart

    @property
    def intended(self) -> str | None:
        """Who has it, or will have it."""
        return self.next or self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """What waits for time to pass in a group, as someone saw it. What else happens there does not matter."""

    handovers: Mapping[ShardId, tuple[int, int, int]]
    distrust: tuple[int, int]
    """With the last epoch: one more forgetting begins anew, and may come to the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group as of one moment. The place of a claim is its shard's id."""

    id: int
    stream_id: int
    name: str
    version: int = 0
    """Rises with every step."""
    epoch: int = 0
    """The last epoch that was given."""
    settings: GroupSettings = GroupSettings()
    members: Mapping[str, Member] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    distrust_ms: int = 0
    """The store forgot commits: nothing is granted until so much time has been watched."""
    created_ms: int = 0

    @property
    def timers(self) -> Timers:
        """For an observer, to show when it comes back."""
        return Timers(
            handovers={claim.shard: timer for claim in self.claims if (timer := claim.timer) is not None},
            distrust=(self.distrust_ms, self.epoch),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A line of the group's history: what happened, to whom, and why."""

    kind: str
    consumer: str | None = None
    shard: int | None = None
    epoch: int | None = None
    detail: str = ""


def timeout_ms(field_name: str, seconds: object) -> int:
    """A consumer's timeout, in milliseconds."""
    if not is_number(seconds) or not GROUP_TIMEOUT_S_MIN <= seconds <= GROUP_TIMEOUT_S_MAX:
        raise InvalidInput(
            field_name,
            seconds,
            f"seconds from {GROUP_TIMEOUT_S_MIN:g} to {GROUP_TIMEOUT_S_MAX:g}; 20 suits most",
        )
    return round(seconds * 1000)


def interval_ms(seconds: object, timeout: int) -> int:
    """A heartbeat interval, in milliseconds: shorter than the timeout."""
    if not is_number(seconds) or not 0 < seconds * 1000 < timeout:
        raise InvalidInput(
            "heartbeat_interval",
            seconds,
            f"a heartbeat must come before the timeout of {timeout / 1000:g} s; a quarter of it suits most",
        )
    return max(1, round(seconds * 1000))


def default_interval_ms(timeout: int) -> int:
    """How often one beats who did not say: a few may be late before anyone takes notice."""
    return max(1, timeout // 4)


def fitting_interval_ms(wished: int, timeout: int) -> int:
    """How often one beats who said so when the timeout was another: as wished, or twice within it."""
    return min(wished, max(1, timeout // 2))


def handover_timeout_ms(seconds: object) -> int | None:
    """How long a living owner may take to let go, in milliseconds; None is without a bound."""
    if seconds is None:
        return None
    if not is_number(seconds) or not 0 < seconds <= HANDOVER_TIMEOUT_S_MAX:
        raise InvalidInput("handover_timeout", seconds, f"None, or seconds up to {HANDOVER_TIMEOUT_S_MAX:g}")
    return max(1, round(seconds * 1000))


def checked_lease_table(name: object) -> str:
    """The name that a leased group gives its table."""
    if not isinstance(name, str) or not _LEASE_TABLE.fullmatch(name) or name.endswith(_BESIDE):
        raise InvalidInput(
            "lease_table",
            name,
            f"a letter, then up to 39 of a-z 0-9 _; and it does not end in {' or '.join(_BESIDE)}",
        )
    return name


def lease_table_of(settings: GroupSettings) -> str:
    """The table that a leased group's rows are in. All begin with a word of ours: whoever may make groups
    makes and reads no other table of the database."""
    name = settings.lease_table
    return "shoal_lease" if name is None else f"shoal_leases_{checked_lease_table(name)}"


def check_lease_store(group: Group, identity: str, where: str) -> None:
    """Refuse to look for a leased group's rows in a database that it was not made with."""
    wanted = group.settings.lease_store
    if wanted is not None and wanted != identity:
        raise OtherLeaseStore(group=group.name, wanted=wanted, found=identity, where=where)


def check_beside(group: str, *, is_beside: bool) -> None:
    """Refuse a leased group's checkpoint in a transaction of the log, if its rows are elsewhere."""
    if not is_beside:
        raise InvalidInput(
            "group",
            group,
            "its leases are in another database than the log, and a transaction is of one: use a group that "
            "was made without connect(leases=…), or a coordinated one",
        )


def visibility_ms(seconds: object) -> int:
    """For how long a record is a consumer's alone, in milliseconds."""
    if not is_number(seconds) or not 0.001 <= seconds <= VISIBILITY_S_MAX:
        raise InvalidInput(
            "visibility", seconds, f"seconds from 0.001 to {VISIBILITY_S_MAX:g}; 30 suits most"
        )
    return round(seconds * 1000)


def unused_ms(seconds: object) -> int:
    """How long a position is kept that nobody uses, in milliseconds."""
    if not is_number(seconds) or not 0.001 <= seconds <= UNUSED_S_MAX:
        raise InvalidInput("unused", seconds, f"seconds from 0.001 to {UNUSED_S_MAX:g}; a week suits most")
    return round(seconds * 1000)


def attempts_max(attempts: object) -> int:
    """How often a record is handed out before it goes to the dead stream."""
    if not is_whole(attempts) or not 1 <= attempts <= ATTEMPTS_MAX:
        raise InvalidInput("max_attempts", attempts, f"a whole number from 1 to {ATTEMPTS_MAX}")
    return attempts


def check_delivery(group: Group, stream: str, wanted: Delivery) -> Group:
    """Refuse to use a group in a way that it was not made for."""
    if group.settings.delivery is not wanted:
        raise WrongDelivery(stream=stream, group=group.name, delivery=group.settings.delivery.value)
    return group


def check_settings(settings: GroupSettings) -> GroupSettings:
    """Refuse combinations that cannot be."""
    if settings.in_order and settings.delivery is Delivery.SHARED:
        raise InvalidInput(
            "in_order",
            True,
            "consumers that share a shard cannot keep its order; leave it out, and set key_ordered=True "
            "to have one record of a key in flight at a time",
        )
    _check_of_kind(settings)
    if settings.delivery is not Delivery.EXCLUSIVE:
        _check_ownerless(settings)
    if settings.coordination is Coordination.LEASED and settings.strategy not in ("balanced", "spread"):
        raise InvalidInput("strategy", settings.strategy, "a leased group is 'balanced', or 'spread'")
    return settings


def _check_of_kind(settings: GroupSettings) -> None:
    """Settings that only one kind of delivery knows."""
    for name, value, kind in (
        ("visibility", settings.visibility_ms, Delivery.SHARED),
        ("max_attempts", settings.max_attempts, Delivery.SHARED),
        ("key_ordered", settings.key_ordered or None, Delivery.SHARED),
        ("unused", settings.unused_ms, Delivery.BROADCAST),
    ):
        if value is not None and settings.delivery is not kind:
            raise InvalidInput(name, value, f"only a group with delivery={kind.value!r} has it; leave it out")


def _check_ownerless(settings: GroupSettings) -> None:
    """Where no shard has an owner, nothing is said about owners."""
    kind = settings.delivery.value
    for name, value, usual in (
        ("coordination", settings.coordination.value, Coordination.COORDINATED.value),
        ("strategy", settings.strategy, "balanced"),
        ("handover_timeout", settings.handover_timeout_ms, None),
        ("failure", settings.failure, None),
    ):
        if value != usual:
            raise InvalidInput(name, value, f"no shard of a {kind} group has an owner; leave it out")


_LEASE_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_BESIDE: Final = ("_instance", "_sequence")
"""Tables that stand beside that of the shards."""
