"""The consuming side: membership of a group."""

from shoal.consumer.coordinated import CoordinatedMembership
from shoal.consumer.leased import LeasedMembership
from shoal.consumer.membership import Listener, Membership

__all__ = ["CoordinatedMembership", "LeasedMembership", "Listener", "Membership"]
