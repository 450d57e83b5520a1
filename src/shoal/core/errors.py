"""Every error that Shoal raises on purpose: one tree, a leaf for each thing a caller can act on.

An error carries its facts as fields, and its text names the field, the value and the remedy.
`retriable` says whether the same call may succeed later without anyone changing it.
This room holds no wire codes: each edge keeps one table of its own from leaves to codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final

from shoal.core.limits import TEXT_LENGTH_MAX
from shoal.core.model import StreamInfo

_PASSWORD: Final = re.compile(r"(//[^/@:]*:)[^/]*@")


class ShoalError(Exception):
    """The root. Catch it to catch everything that Shoal raises on purpose."""

    retriable: ClassVar[bool] = False
    untouched: bool = False
    """Of an append that failed with it: surely nothing of that is stored, nor will be."""


# --- What the caller asked for does not make sense. -------------------------------------------------


class InvalidInput(ShoalError, ValueError):
    """A value given by the caller is outside what the field takes; nothing was changed."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={_shown(value)}: {remedy}")
        self.field, self.value, self.remedy = field, value, remedy


class InvalidName(InvalidInput):
    """A name of a project, stream, group or consumer that breaks the naming rule."""


class InvalidUrl(InvalidInput):
    """A hub URL that names no store we know, or one that is not complete. Shown without its password."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(field, shown_url(value) if isinstance(value, str) else value, remedy)


class InvalidKey(InvalidInput, TypeError):
    """A key that is neither bytes nor str."""


class InvalidTimestamp(InvalidInput):
    """A timestamp that is not a time between 1970 and 9999."""


class EmptyBatch(InvalidInput):
    """An append with no records in it."""


class TooLarge(InvalidInput):
    """A record or a batch over its limit."""

    def __init__(self, field: str, *, size: int, limit: int, remedy: str) -> None:
        super().__init__(field, f"{size} bytes", f"over the limit of {limit} bytes; {remedy}")
        self.size, self.limit = size, limit


class SchemaMismatch(InvalidInput):
    """Data that does not fit the stream's columns; says which column and which type."""

    def __init__(self, column: str, *, given: str, wanted: str) -> None:
        super().__init__(column, given, f"the stream wants {wanted}")
        self.column, self.given, self.wanted = column, given, wanted


class MissingDriver(ShoalError, ImportError):
    """A store whose driver is not installed."""

    def __init__(self, *, scheme: str, package: str, extra: str) -> None:
        super().__init__(
            f"scheme={scheme!r}: the driver {package!r} is not installed; "
            f"install it with: pip install 'shoal[{extra}]'"
        )
        self.scheme, self.package, self.extra = scheme, package, extra


class MissingPackage(ShoalError, ImportError):
    """A part of Shoal that needs a package which is not installed."""

    def __init__(self, *, part: str, package: str, extra: str) -> None:
        super().__init__(
            f"{part} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'shoal[{extra}]'"
        )
        self.part, self.package, self.extra = part, package, extra


# --- What the caller named is not there, or is there already. ---------------------------------------


class NotFound(ShoalError, LookupError):
    """Something named by the caller does not exist."""


class UnknownProject(NotFound):
    def __init__(self, project: str) -> None:
        super().__init__(
            f"project={project!r}: there is no such project; creating a stream 'project/stream' makes it"
        )
        self.project = project


class UnknownStream(NotFound):
    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream={stream!r}: there is no such stream; create it with create_stream() "
            f"or 'shoal stream create {stream}'"
        )
        self.stream = stream


class StreamReplaced(NotFound):
    """The stream was deleted, and another was made under its name, since it was read."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream={stream!r}: it was deleted and made anew since this query read it; read the new "
            "one with a new checkpointLocation, or with failOnDataLoss=false from its first record on"
        )
        self.stream = stream


class UnknownShard(NotFound):
    def __init__(self, *, stream: str, shard: object, shards: int) -> None:
        super().__init__(f"shard={shard!r}: stream {stream!r} has shards 0 to {shards - 1}")
        self.stream, self.shard, self.shards = stream, shard, shards


class UnknownDeadLetter(NotFound):
    def __init__(self, *, where: str, number: int) -> None:
        super().__init__(
            f"number={number}: {where} has no open dead letter of this number; "
            "see them with dead_letters() or 'shoal group dead list'"
        )
        self.where, self.number = where, number


class StreamExists(ShoalError):
    def __init__(self, stream: str) -> None:
        super().__init__(f"stream={stream!r}: there is one of this name already; choose another or delete it")
        self.stream = stream


class ProjectNotEmpty(ShoalError):
    def __init__(self, project: str, streams: int) -> None:
        super().__init__(f"project={project!r}: it still holds {streams} streams; delete those first")
        self.project, self.streams = project, streams


# --- Who may do what. -------------------------------------------------------------------------------


class NotSignedIn(ShoalError):
    """A request without a signature that can be checked, or with one that is not right."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"access: {reason}")
        self.reason = reason


class ClockSkewed(ShoalError):
    """A request whose date is too far from the server's clock."""

    def __init__(self, *, sent_ms: int, now_ms: int, limit_ms: int) -> None:
        super().__init__(
            f"access: signed at {sent_ms} ms since 1970, and the server's clock says {now_ms}; they may "
            f"differ by {limit_ms} ms: set the clock"
        )
        self.sent_ms, self.now_ms, self.limit_ms = sent_ms, now_ms, limit_ms


class ReplayedRequest(ShoalError):
    """The same signed request has come before. What it asked for was, or was not, done then."""

    def __init__(self) -> None:
        super().__init__("access: this very request has come before; sign each one anew")


class SignedForAnother(ShoalError):
    """A request that was signed for another server than the one it has reached; nothing was done."""

    def __init__(self, *, server: str, store: str) -> None:
        super().__init__(f"access: signed for another server; this is {server}: sign it for this one")
        self.server, self.store = server, store


class AccessDenied(ShoalError):
    """The user's policies do not allow it."""

    def __init__(self, *, user: str, action: str, resource: str) -> None:
        super().__init__(
            f"access: {user!r} may not {action} on {resource}; a policy that allows it is attached with "
            "'shoal policy attach'"
        )
        self.user, self.action, self.resource = user, action, resource


class UnknownUser(NotFound):
    def __init__(self, user: str) -> None:
        super().__init__(f"user={user!r}: there is no such user; see 'shoal user list'")
        self.user = user


class UnknownAccessKey(NotFound):
    def __init__(self, key: str) -> None:
        super().__init__(f"key={key!r}: there is no such key; see 'shoal key list'")
        self.key = key


class UnknownPolicy(NotFound):
    def __init__(self, policy: str) -> None:
        super().__init__(f"policy={policy!r}: there is no such policy; see 'shoal policy list'")
        self.policy = policy


class UserExists(ShoalError):
    def __init__(self, user: str) -> None:
        super().__init__(f"user={user!r}: there is one of this name already")
        self.user = user


class PolicyExists(ShoalError):
    def __init__(self, policy: str) -> None:
        super().__init__(f"policy={policy!r}: there is one of this name already; --replace changes it")
        self.policy = policy


class PolicyInUse(ShoalError):
    """A policy that users have: without it, what it denies them would be allowed."""

    def __init__(self, policy: str, users: int) -> None:
        super().__init__(f"policy={policy!r}: {users} users have it; detach it first")
        self.policy, self.users = policy, users


# --- Shards and offsets. ----------------------------------------------------------------------------


class ShardClosed(ShoalError):
    """The shard was closed by a split or merge: the append was not stored there, and never will be.

    Carries the stream's new map, and the last sequence that the closed shard accepted from this
    producer (-1 if none), so that a producer knows what is settled before it moves on.
    """

    def __init__(self, *, stream: StreamInfo, shard: int, last_sequence: int = -1) -> None:
        children = [info.id for info in stream.shards if shard in info.parents]
        super().__init__(
            f"shard={shard}: closed, stream {stream.name!r} continues in shards {children}; "
            "send by the new map in .stream"
        )
        self.stream, self.shard, self.last_sequence = stream, shard, last_sequence


class ShardChangeRefused(InvalidInput):
    """A split or merge that the ring does not allow."""


class OffsetExpired(ShoalError):
    """The offset lies below the first one that retention has kept."""

    def __init__(self, *, stream: str, shard: int, offset: int, first_offset: int) -> None:
        super().__init__(
            f"offset={offset}: shard {shard} of {stream!r} keeps records from offset {first_offset} on; "
            "continue there if skipping what expired is what you want"
        )
        self.stream, self.shard, self.offset, self.first_offset = stream, shard, offset, first_offset


class OffsetOutOfRange(ShoalError):
    """The offset lies past the end of the shard, or is no offset at all."""

    def __init__(self, *, stream: str, shard: int, offset: int, next_offset: int) -> None:
        super().__init__(
            f"offset={offset}: shard {shard} of {stream!r} ends at offset {next_offset}; "
            f"ask for an offset from 0 to {next_offset}"
        )
        self.stream, self.shard, self.offset, self.next_offset = stream, shard, offset, next_offset


# --- Producers. -------------------------------------------------------------------------------------


class ProducerFenced(ShoalError):
    """A newer epoch of the same producer has written; whoever shows an older one is fenced."""

    def __init__(self, *, producer: str, held: int, current: int) -> None:
        super().__init__(f"producer {producer!r}: epoch {held} is fenced, the log has seen {current}")
        self.producer, self.held, self.current = producer, held, current


class OutOfSequence(ShoalError):
    """A numbered batch that is neither the next one nor one that is still remembered."""

    def __init__(self, *, producer: str, shard: int, sequence: int, expected: int) -> None:
        super().__init__(
            f"producer {producer!r}, shard {shard}: sequence={sequence}, but the next one is {expected}; "
            "raise the producer's epoch to begin anew"
        )
        self.producer, self.shard, self.sequence, self.expected = producer, shard, sequence, expected


class BufferFull(ShoalError):
    """The producer's memory limit was reached and nothing drained within the time allowed."""

    retriable = True

    def __init__(self, *, buffered: int, limit: int, waited_s: float) -> None:
        super().__init__(
            f"buffer_bytes_max={limit}: {buffered} bytes wait, and none were stored within {waited_s:g} s; "
            "send slower, raise buffer_bytes_max, or look at why the store is slow"
        )
        self.buffered, self.limit, self.waited_s = buffered, limit, waited_s


class DeliveryTimeout(ShoalError):
    """A batch was given up after `delivery_timeout_s`, or after `max_attempts`; whether it was stored is not
    known.

    `__cause__` is the store's last answer. `attempts` is 0 if it was the time that was up.
    """

    def __init__(self, *, shard: int, records: int, waited_s: float, last: str, attempts: int = 0) -> None:
        limit = f"with max_attempts={attempts}" if attempts else f"within delivery_timeout_s={waited_s:g}"
        super().__init__(
            f"shard {shard}: {records} records were not confirmed {limit}; the store's last answer: {last}"
        )
        self.shard, self.records, self.waited_s, self.last = shard, records, waited_s, last
        self.attempts = attempts


class WrongThread(InvalidInput):
    """A call that would wait for the thread it is made from."""


class TransactionEnded(ShoalError):
    """The transaction was committed or aborted, or has failed: nothing more goes into it."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the transaction has ended: {why}; begin another with producer.transaction()")
        self.why = why


class ProducerClosed(ShoalError):
    def __init__(self, why: str) -> None:
        super().__init__(f"the producer is closed: {why}; make a new one with hub.producer()")
        self.why = why


# --- Groups. ----------------------------------------------------------------------------------------


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


class CheckpointBackwards(InvalidInput):
    """A checkpoint below the one that is saved. Only a forced one may go back."""

    def __init__(self, *, shard: int, offset: int, saved: int) -> None:
        super().__init__(
            "offset", offset, f"shard {shard} is at {saved} already; use force=True to go back on purpose"
        )
        self.shard, self.offset, self.saved = shard, offset, saved


class LeaseLost(ShoalError):
    """The shard is not this consumer's any more: what it does from here on does not count."""

    def __init__(self, *, shard: int, epoch: int) -> None:
        super().__init__(
            f"shard={shard}: the lease of epoch {epoch} is lost; leave `process` now, the next owner goes on "
            "from the last checkpoint"
        )
        self.shard, self.epoch = shard, epoch


class ProcessorFailed(ShoalError):
    """User code raised, and the policy is to stop."""

    def __init__(self, *, shard: int, kind: str, text: str) -> None:
        super().__init__(f"shard={shard}: the processor raised {kind}: {text}; the policy is to stop")
        self.shard, self.kind, self.text = shard, kind, text


class CheckpointMisuse(InvalidInput):
    """A checkpointer used as it cannot be: past what was given, with nonsense, or in a forked child."""


# --- Consumers that poll. ----------------------------------------------------------------------------


class ConsumerBusy(ShoalError):
    """Two threads, or two tasks, want the same consumer at once: each would get a part of the records."""

    def __init__(self, *, consumer: str, doing: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: another thread is in {doing}(); poll from one, or give each a "
            "consumer of its own. wakeup() and close() may come from any"
        )
        self.consumer, self.doing = consumer, doing


class ConsumerClosed(ShoalError):
    def __init__(self, why: str) -> None:
        super().__init__(f"the consumer is closed: {why}; make a new one")
        self.why = why


class PollTooLate(ShoalError):
    """Nobody polled for `max_poll_interval`: the shards were given up. The next poll joins again."""

    def __init__(self, *, consumer: str, interval_s: float) -> None:
        super().__init__(
            f"consumer={consumer!r}: it was not polled for max_poll_interval={interval_s:g} s, and has given "
            "its shards up; what was not committed comes again elsewhere. Poll again to join, with fewer "
            "records at a time (max_poll_records), or with a longer interval"
        )
        self.consumer, self.interval_s = consumer, interval_s


class DrainTimeout(ShoalError):
    """A Spark query did not let go of its shards in time; it still runs, and gets nothing new."""

    def __init__(self, *, member: str, shards: Sequence[str], waited_s: float) -> None:
        super().__init__(
            f"timeout={waited_s:g}: {member} still holds {', '.join(shards)}, since its batch has not ended; "
            "drain again with a longer one (if the group is leased: where its driver runs), or stop() the "
            "query: what its batch had begun is then repeated"
        )
        self.member, self.shards, self.waited_s = member, shards, waited_s


class DrainFailed(ShoalError):
    """A Spark query ended by an error of its own before it had handed its shards over."""

    def __init__(self, *, member: str, reason: str) -> None:
        super().__init__(
            f"query={member!r}: it failed before it had handed over: {plain(reason)}; its shards come free "
            "after the group's timeout. Mend that, and start it again with its checkpoint"
        )
        self.member, self.reason = member, reason


class DrainCutShort(ShoalError):
    """A Spark query was stopped in a batch that had just begun: that batch is repeated."""

    def __init__(self, *, member: str, shards: Sequence[str]) -> None:
        super().__init__(
            f"query={member!r}: it was stopped in a batch that had just begun; {', '.join(shards)} come free "
            "after the group's timeout, and that batch is repeated. Drain it where its driver runs"
        )
        self.member, self.shards = member, shards


class NotRepeated(ShoalError):
    """A batch or a task was run again with other rows than before; exactly once cannot be kept."""

    def __init__(self, *, where: str, detail: str) -> None:
        super().__init__(
            f"{where} was run before with other rows: {detail}. Rows must come in the same partitions and "
            "order when a batch is run again: restart with the same number of partitions, put "
            ".repartition(n) before the sink, sort within partitions (mapInArrow), or run this batch once "
            "with exactlyOnce=false, which may store rows twice"
        )
        self.where, self.detail = where, detail


class WokenUp(ShoalError):
    """`wakeup()` was called: the poll that waits, or else the next one, ends with this. Nothing is lost."""

    def __init__(self) -> None:
        super().__init__("the consumer was woken up; poll again, or close it")


class DeserializationFailed(ShoalError):
    """A deserializer raised on a record; `__cause__` is what. Seek past it to go on without it."""

    def __init__(self, *, stream: str, shard: int, offset: int, what: str) -> None:
        super().__init__(
            f"offset={offset}: the {what} of this record of {stream!r}, shard {shard}, cannot be read; "
            f"seek to {offset + 1} to leave it out"
        )
        self.stream, self.shard, self.offset, self.what = stream, shard, offset, what


# --- Groups without owners. ---------------------------------------------------------------------------


class WrongDelivery(InvalidInput):
    """The group hands its records out in another way than the caller takes them."""

    def __init__(self, *, stream: str, group: str, delivery: str) -> None:
        users = {"shared": "SharedConsumer", "broadcast": "BroadcastConsumer"}
        super().__init__(
            "group",
            group,
            f"its delivery on stream {stream!r} is {delivery!r}; "
            f"use shoal.{users.get(delivery, 'Worker or Consumer')}, or another group",
        )
        self.stream, self.group, self.delivery = stream, group, delivery


class RecordsRefused(ShoalError):
    """Some records could not be settled; those of the same call that could be, were."""

    said: ClassVar[str] = ""
    """What is the matter with them, and what to do."""

    def __init__(self, *, shard: int, offsets: Sequence[int], taken: int) -> None:
        shown = ", ".join(map(str, offsets[:5])) + (", …" if len(offsets) > 5 else "")
        super().__init__(
            f"shard={shard}: {len(offsets)} records (offsets {shown}) {self.said}; "
            f"{taken} others were settled"
        )
        self.shard, self.offsets, self.taken = shard, offsets, taken


class NeverReceived(RecordsRefused):
    """The caller settles what it was never given."""

    said = "were not received by this consumer; settle only what receive() returned"


class AlreadySettled(RecordsRefused):
    """The records are acknowledged, or dead, already."""

    said = "are settled already; settle each record once"


class HoldExpired(RecordsRefused):
    """The hold has ended: it ran out, the records were released, or the group was reset."""

    said = (
        "are not held any more and will come again, or have; settle sooner, extend(), or receive with a "
        "longer visibility"
    )


class HeldByAnother(RecordsRefused):
    """Another consumer has the records."""

    said = "are held by another consumer; settle only what receive() returned to this one"


class TooManyPositions(ShoalError):
    def __init__(self, *, group: str, limit: int) -> None:
        super().__init__(
            f"group={group!r}: {limit} consumers have a position already; give a consumer the same name at "
            "every start, or drop positions with drop_position()"
        )
        self.group, self.limit = group, limit


class UnknownPosition(NotFound):
    """A consumer of a broadcast group has no position (any more)."""

    def __init__(self, *, group: str, consumer: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: group {group!r} has no position of this name (any more); "
            "one that is made anew begins where the group does"
        )
        self.group, self.consumer = group, consumer


class PositionMoved(ShoalError):
    """The group was reset: the consumer goes on from where its position was put."""

    def __init__(self, *, group: str, consumer: str) -> None:
        super().__init__(
            f"consumer={consumer!r}: group {group!r} was reset; take the position again, and go on from there"
        )
        self.group, self.consumer = group, consumer


class StrategyRefused(ShoalError):
    """A strategy is not known, or its answer loses, doubles or invents a shard; nothing was changed."""

    def __init__(self, strategy: str, detail: str) -> None:
        detail = plain(detail)  # Whatever the strategy made it say, a group's history can keep it.
        super().__init__(f"strategy={strategy!r}: {detail}")
        self.strategy, self.detail = strategy, detail


# --- The store. -------------------------------------------------------------------------------------


class StoreError(ShoalError):
    """The database behind the hub refused or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or went away; what was not acknowledged may or may not be stored."""

    retriable = True

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store cannot be reached: {detail}")
        self.detail = detail


class StillUnread(ShoalError):
    """Groups did not come to the end of closed shards in the time they were given."""

    def __init__(self, *, stream: str, groups: Sequence[str], records: int, waited_s: float) -> None:
        super().__init__(
            f"stream={stream!r}: after {waited_s:g} s {', '.join(groups)} still had {records:,} records of "
            "closed shards to read; nothing is lost: they go on, see shoal group describe"
        )
        self.stream, self.groups, self.records, self.waited_s = stream, groups, records, waited_s


class StoreBusy(StoreError):
    """Others held the database's lock for longer than we wait; nothing was changed."""

    retriable = True
    untouched = True

    def __init__(self, detail: str, waited_s: float) -> None:
        super().__init__(f"the store is locked by others (waited at most {waited_s:g} s): {detail}")
        self.detail, self.waited_s = detail, waited_s


class RateExceeded(StoreError):
    """A client that asks for more than it may, for now; nothing was done."""

    retriable = True
    untouched = True

    def __init__(self, *, client: str, limit: int, retry_s: float) -> None:
        super().__init__(
            f"rate: {client} made more than {limit} requests a second; ask again in {retry_s:.3f} s, or in "
            "larger batches"
        )
        self.client, self.limit, self.retry_s = client, limit, retry_s


class StoreFull(StoreError):
    """The disk is full; nothing was changed, and what was acknowledged stays readable."""

    retriable = True
    untouched = True

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store's disk is full: {detail}; free some room, or shorten the retention")
        self.detail = detail


class StoreReadOnly(StoreError):
    def __init__(self, detail: str) -> None:
        super().__init__(f"the store cannot be written: {detail}; check the file's and folder's permissions")
        self.detail = detail


class StoreCorrupt(StoreError):
    def __init__(self, detail: str) -> None:
        super().__init__(f"the store is damaged: {detail}; restore it from a backup")
        self.detail = detail


class NotAShoalStore(StoreError):
    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}; point the hub at a new or a Shoal database")
        self.where, self.detail = where, detail


class StoreTooNew(StoreError):
    """The database was written by a newer Shoal."""

    def __init__(self, *, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where}: schema version {found} is newer than this Shoal knows ({known}); upgrade Shoal"
        )
        self.where, self.found, self.known = where, found, known


class StoreNotDurable(StoreError):
    """The database's settings would lose acknowledged records at a power cut."""

    def __init__(self, *, where: str, setting: str, found: str, wanted: str) -> None:
        super().__init__(
            f"{where}: {setting}={found!r} would lose acknowledged records; set it to {wanted}, "
            "or connect with durable=False if that is acceptable"
        )
        self.where, self.setting, self.found, self.wanted = where, setting, found, wanted


class StoreRefused(StoreError):
    """The database does not let us in, or has no database of that name."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store refused: {detail}; check user, password and database in the URL")
        self.detail = detail


class StoreFailure(StoreError):
    """The database answered with an error that Shoal has no better name for."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store failed: {detail}")
        self.detail = detail


class HubClosed(ShoalError):
    def __init__(self) -> None:
        super().__init__("the hub is closed; connect again with shoal.connect()")


def shown_url(url: str) -> str:
    """A URL for people: without the password, or the secret of a key, that it may carry."""
    return _PASSWORD.sub(r"\1***@", url)


def leaves(root: type[ShoalError] = ShoalError) -> set[type[ShoalError]]:
    """All errors that no other error derives from: what an edge's table must cover."""
    children: Sequence[type[ShoalError]] = root.__subclasses__()
    if not children:
        return {root}
    return set().union(*(leaves(child) for child in children))


def text_of(error: BaseException) -> str:
    """What an error of user code says, or that it cannot be shown: never raises."""
    try:
        return plain(str(error))
    except Exception as worse:  # noqa: BLE001 - around user code: an error that cannot even be shown
        return f"(its text raised {type(worse).__qualname__})"


def plain(text: str) -> str:
    """Text of others as every database can keep it: bounded, without zeros and halves of surrogate pairs."""
    bounded = text if len(text) <= TEXT_LENGTH_MAX else f"{text[: TEXT_LENGTH_MAX - 3]}..."
    return bounded.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
