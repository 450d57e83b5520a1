"""Consumers for the demo's chapter on groups: they take what they are given, and hand over when asked."""

from __future__ import annotations

import time
from typing import Final

from shoal import Hub
from shoal.consumer import Membership

_PATIENCE_S: Final = 20.0


class Crew:
    """The consumers of one group, in this process."""

    def __init__(self, hub: Hub, stream: str, group: str) -> None:
        self._hub, self._stream, self._group = hub, stream, group
        self._members: dict[str, Membership] = {}

    def join(self, name: str) -> None:
        """One more."""
        self._members[name] = self._hub.join_group(self._stream, self._group, name)

    def leave(self, name: str) -> None:
        """A clean stop."""
        self._members.pop(name).leave()

    def fall_silent(self, name: str) -> None:
        """What a crash looks like from outside: no more heartbeats, and no good-bye."""
        self._members.pop(name).abandon()

    def settle(self) -> float:
        """Let everyone hand over until nothing moves, and all know what they hold; seconds."""
        began = time.perf_counter()
        while time.perf_counter() - began < _PATIENCE_S:
            for member in self._members.values():
                asked = [lease.shard for lease in member.leases.values() if not lease.is_wanted]
                if asked:
                    member.release(dict.fromkeys(asked))
            if self._is_settled():
                return time.perf_counter() - began
            time.sleep(0.002)
        raise TimeoutError(f"{self._group} did not settle within {_PATIENCE_S:g} s")

    def _is_settled(self) -> bool:
        info = self._hub.describe_group(self._stream, self._group)
        held = {(s.owner, s.id, s.epoch) for s in info.shards if s.owner is not None}
        known = {
            (name, lease.shard, lease.epoch)
            for name, member in self._members.items()
            for lease in member.leases.values()
        }
        return info.state == "stable" and held == known

    def close(self) -> None:
        """All go."""
        for name in list(self._members):
            self.leave(name)
