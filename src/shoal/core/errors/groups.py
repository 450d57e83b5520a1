"""Groups whose shards have owners: the groups themselves, membership, ownership and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.core.errors.root import InvalidInput, NotFound, ShoalError
from shoal.core.errors.texts import plain


class UnknownGroup(NotFound):
    def __init__(self, *, stream: str, group: str) -> None:
        super().__init__(
            f"group={group!r}: stream {stream!r} has no such group; create it with create_group() "
            f"or 'shoal group create {stream} {group}'"
        )
        self.stream, self.group = stream, group


class GroupExists(ShoalError):
    def __init__(self, *, stream: str, group: str) -> None:
        super().__init__(f"group={group!r}: stream {stream!r} has one of this name already; choose another")
        self.stream, self.group = stream, group


class TooManyGroups(ShoalError):
    def __init__(self, *, stream: str, limit: int) -> None:
        super().__init__(
            f"stream {stream!r} has {limit} groups already; delete one, or connect with a larger "
            "groups_per_stream"
        )
        self.stream, self.limit = stream, limit


class GroupInUse(ShoalError):
    def __init__(self, *, group: str, consumers: Sequence[str]) -> None:
        super().__init__(
            f"group={group!r}: {len(consumers)} consumers use it ({', '.join(consumers[:5])}); "
            "stop them, or delete it with force=True, on the command line with --force"
        )
        self.group, self.consumers = group, consumers


class OtherLeaseStore(InvalidInput):
    """The rows of a leased group are in another database than this hub has for them."""

    def __init__(self, *, group: str, wanted: str, found: str, where: str) -> None:
        super().__init__(
            "leases",
            where,
            f"this is lease database {found}, and the rows of group {group!r} are in {wanted}; "
            "name the one that the group was made with: connect(leases=…), on the command line --leases",
        )
        self.group, self.wanted, self.found, self.where = group, wanted, found, where


class StrategyRefused(ShoalError):
    """A strategy is not known, or its answer loses, doubles or invents a shard; nothing was changed."""

    def __init__(self, strategy: str, detail: str) -> None:
        detail = plain(detail)  # Whatever the strategy made it say, a group's history can keep it.
        super().__init__(f"strategy={strategy!r}: {detail}")
        self.strategy, self.detail = strategy, detail


class UnknownConsumer(NotFound):
    """The incarnation is not a member: it never joined, left, or was silent for its timeout."""

    def __init__(self, incarnation: str) -> None:
        super().__init__(
            f"consumer incarnation {incarnation!r} is not a member of the group (any more); "
            "it holds nothing, and joins again under a new incarnation"
        )
        self.incarnation = incarnation


class NameTaken(ShoalError):
    """A newer process has joined under this consumer's name. The older one stays away."""

    def __init__(self, consumer: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: another process has joined under this name since; "
            "give every process a name of its own"
        )
        self.consumer = consumer


class MembershipFailed(ShoalError):
    """A consumer's own thread met something that nobody foresaw, again and again, and ended."""

    def __init__(self, *, consumer: str, detail: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: its membership ended, since every heartbeat failed with {detail}; "
            "what it held comes free after the timeout; join again, and report this fault"
        )
        self.consumer, self.detail = consumer, detail


class HeartbeatOutdated(ShoalError):
    """A heartbeat that is not newer than the last one that counted; it changed nothing."""

    def __init__(self, *, number: int, last: int) -> None:
        super().__init__(f"heartbeat number={number}: {last} has been counted already; send a newer one")
        self.number, self.last = number, last


class NotOwner(ShoalError):
    """The shard belongs to another consumer, or to none."""

    def __init__(self, *, shard: int, consumer: str, owner: str | None, stream: str | None = None) -> None:
        where = f"shard={shard}" if stream is None else f"shard={shard} of stream {stream!r}"
        shows = "leases" if stream is None else "assignment"
        super().__init__(
            f"{where}: it is held by {owner!r}, not by {consumer!r}; only its owner may do this"
            if owner is not None
            else f"{where}: {consumer!r} does not hold it (any more); work only on what `{shows}` "
            "shows, and leave this one alone until it is there again"
        )
        self.shard, self.consumer, self.owner, self.stream = shard, consumer, owner, stream


class Fenced(ShoalError):
    """The epoch shown is not the current one: the shard has changed hands, or was reset, since."""

    def __init__(self, *, shard: int, epoch: int, current: int) -> None:
        super().__init__(
            f"shard={shard}: epoch {epoch} is fenced, the current one is {current}; "
            "stop working on this shard, its next owner goes on from the last checkpoint"
        )
        self.shard, self.epoch, self.current = shard, epoch, current


class LeaseLost(ShoalError):
    """The shard is not this consumer's any more: what it does from here on does not count."""

    def __init__(self, *, shard: int, epoch: int) -> None:
        super().__init__(
            f"shard={shard}: the lease of epoch {epoch} is lost; leave `process` now, the next owner goes on "
            "from the last checkpoint"
        )
        self.shard, self.epoch = shard, epoch


class CheckpointBackwards(InvalidInput):
    """A checkpoint below the one that is saved. Only a forced one may go back."""

    def __init__(self, *, shard: int, offset: int, saved: int) -> None:
        super().__init__(
            "offset", offset, f"shard {shard} is at {saved} already; use force=True to go back on purpose"
        )
        self.shard, self.offset, self.saved = shard, offset, saved


class CheckpointMisuse(InvalidInput):
    """A checkpointer used as it cannot be: past what was given, with nonsense, or in a forked child."""
