"""One stream in the hands of a consumer that polls: its membership, and the runtime that reads for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.consumer.by_hand import ByHand
from shoal.consumer.desk import AtDesk, Desk
from shoal.consumer.held import Held
from shoal.consumer.joining import HubCalls, see_group
from shoal.consumer.membership import Membership
from shoal.consumer.options import WorkerOptions
from shoal.consumer.runtime import Poller, Runtime
from shoal.consumer.statistics import WorkerStats
from shoal.core.errors import NotOwner
from shoal.core.model import ShardId, StreamName
from shoal.core.polling import StreamShard
from shoal.core.retry import FailureRules
from shoal.core.tasks import Phase, Reason


class Reader:
    """Made by `joined` or `by_hand`; ended by `stop`."""

    def __init__(self, member: Membership, runtime: Runtime) -> None:
        self.stream, self.name = member.stream, str(member.stream)
        self.member, self.runtime = member, runtime

    @classmethod
    def joined(
        cls,
        hub: HubCalls,
        stream: StreamName,
        group: str,
        name: str,
        *,
        options: WorkerOptions,
        desk: Desk,
        poller: Poller,
    ) -> Reader:
        """Make the group, if it is not there, and become a member."""
        begun: list[Runtime] = []

        def changed(_: object) -> None:
            for runtime in begun:
                runtime.leases_changed()

        see_group(hub, str(stream), group, options)
        member = hub.join_group(
            str(stream), group, name, heartbeat_interval=options.heartbeat_interval, listener=changed
        )
        runtime = _runtime(hub, member, options, desk, poller)
        begun.append(runtime)
        runtime.start()
        return cls(member, runtime)

    @classmethod
    def by_hand(
        cls,
        hub: HubCalls,
        stream: StreamName,
        group: str | None,
        name: str,
        *,
        starts: Mapping[int, int],
        options: WorkerOptions,
        desk: Desk,
        poller: Poller,
    ) -> Reader:
        """Read these shards from there on, without a leave to do so."""
        member = ByHand(hub.service, stream, group, name, starts)
        runtime = _runtime(hub, member, options, desk, poller)
        runtime.start()
        runtime.look()  # They are there when this returns.
        return cls(member, runtime)

    @property
    def is_ending(self) -> bool:
        """It ends, or has ended, by itself."""
        return self.runtime.error is not None or self.is_over

    @property
    def is_over(self) -> bool:
        """Nothing of it runs any more."""
        return self.runtime.is_over.is_set()

    @property
    def shards(self) -> list[StreamShard]:
        """What it holds, and may be polled."""
        return [
            StreamShard(self.name, int(shard))
            for shard, held in self.runtime.held.items()
            if held.tenure.phase is not Phase.STOP_COMPLETED and held.tenure.reason is not Reason.LOST
        ]

    def held(self, shard: int) -> Held:
        """A shard that it holds."""
        found = self.runtime.held.get(ShardId(shard))
        if found is None:
            raise NotOwner(shard=shard, consumer=self.member.name, owner=None, stream=self.name)
        return found

    def persist(self, shards: Sequence[int]) -> None:
        """See that the hub has what was declared done of these."""
        Held.persist_together(self.member, [self.held(shard) for shard in shards])
        for shard in shards:
            self.runtime.stir(ShardId(shard))  # It may have ended by that.


def _runtime(
    hub: HubCalls, member: Membership, options: WorkerOptions, desk: Desk, poller: Poller
) -> Runtime:
    try:
        return Runtime(
            hub.service,
            member,
            AtDesk(desk, str(member.stream)),
            options,
            options.failure or FailureRules(),
            stats=WorkerStats(),
            over=desk.ring,
            poller=poller,
        )
    except BaseException:
        member.leave()
        raise
