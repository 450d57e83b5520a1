"""A consumer that means to leave, and is not heard: whoever is still counted on is given shards for ever."""

import pytest

from shoal import Hub
from shoal.core.errors import StoreUnavailable
from shoal.hub.groups import LocalGroups
from shoal.testing.members import eventually, hand_over, settle


def test_a_retirement_that_was_not_heard_is_said_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=2.0)
    heard = LocalGroups.retire
    tries = 0

    def unheard_at_first(self: LocalGroups, group_id: int, incarnation: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise StoreUnavailable("out of order")
        heard(self, group_id, incarnation)

    monkeypatch.setattr(LocalGroups, "retire", unheard_at_first)
    with hub.join_group("orders", "billing", "a") as a, hub.join_group("orders", "billing", "b") as b:
        settle(hub, "orders", "billing", [a, b])
        with pytest.raises(StoreUnavailable):
            a.retire()

        def has_moved() -> bool:
            hand_over(a)
            return len(b.leases) == 2

        eventually(has_moved, "b has both")
        assert tries == 2
