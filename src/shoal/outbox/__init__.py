"""Records that are written in a transaction of the user's own database, and relayed to the log afterwards."""

from shoal.outbox.fallback import OutboxFallback
from shoal.outbox.options import RelayOptions
from shoal.outbox.outbox import Outbox
from shoal.outbox.relay import OutboxRelay

__all__ = ["Outbox", "OutboxFallback", "OutboxRelay", "RelayOptions"]
