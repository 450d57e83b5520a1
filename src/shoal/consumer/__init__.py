"""The consuming side: membership of a group."""

from shoal.consumer.membership import Membership

__all__ = ["Membership"]
