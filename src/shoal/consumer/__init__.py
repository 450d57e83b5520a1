"""The consuming side: membership of a group."""

from typing import TYPE_CHECKING

from shoal.lazily import lazily

if TYPE_CHECKING:
    from shoal.consumer.coordinated import CoordinatedMembership
    from shoal.consumer.leased import LeasedMembership
    from shoal.consumer.membership import Listener, Membership
else:
    __getattr__ = lazily(
        __name__,
        {
            "shoal.consumer.coordinated": "CoordinatedMembership",
            "shoal.consumer.leased": "LeasedMembership",
            "shoal.consumer.membership": "Listener Membership",
        },
    )

__all__ = ["CoordinatedMembership", "LeasedMembership", "Listener", "Membership"]
