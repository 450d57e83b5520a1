"""Records that are written in a transaction of the user's own database, and relayed to the log afterwards."""

from typing import TYPE_CHECKING

from shoal.lazily import lazily

if TYPE_CHECKING:
    from shoal.outbox.fallback import OutboxFallback
    from shoal.outbox.options import RelayOptions
    from shoal.outbox.outbox import Outbox
    from shoal.outbox.relay import OutboxRelay
else:
    __getattr__ = lazily(
        __name__,
        {
            "shoal.outbox.fallback": "OutboxFallback",
            "shoal.outbox.options": "RelayOptions",
            "shoal.outbox.outbox": "Outbox",
            "shoal.outbox.relay": "OutboxRelay",
        },
    )

__all__ = ["Outbox", "OutboxFallback", "OutboxRelay", "RelayOptions"]
