"""A server from its settings: the hub, the application, the socket."""

from __future__ import annotations

from typing import Any

from shoal.connect import open_local
from shoal.core.errors import InvalidInput
from shoal.forks import meet_arrow
from shoal.server.access import Access
from shoal.server.app import Application
from shoal.server.metrics import Counters
from shoal.server.options import ServerOptions
from shoal.server.running import RunningServer
from shoal.server.sealing import Seal
from shoal.server.tracing import Tracing


def open_server(
    store: str,
    options: ServerOptions | None = None,
    *,
    version: str,
    allow_anyone: bool = False,
    **settings: Any,
) -> RunningServer:
    """A server over a store, bound to its socket and not serving yet; `settings` are those of `connect`.

    Without a user it is for this machine alone, unless `allow_anyone`.
    """
    options = options or ServerOptions()
    counters = Counters()
    meet_arrow()
    hub = open_local(store, noted=counters.noted, looks_first=True, **settings)
    try:
        is_needed = not options.is_loopback and not allow_anyone
        seal = Seal.from_environment()
        access = Access(
            hub.access,
            seal,
            identity=hub.store_identity,
            is_needed=is_needed,
            hidden=counters.error,
        )
        if not access.look() and is_needed:
            raise InvalidInput(
                "listen",
                options.host,
                "no user is defined, so anyone who reaches it could do anything; listen on 127.0.0.1, make a "
                "user with 'shoal user create', or say --allow-anyone",
            )
        tracing = None if options.traces is None else Tracing.to(options.traces, version=version)
        application = Application(
            hub, options, version=version, counters=counters, access=access, tracing=tracing
        )
        return RunningServer(application, options)
    except BaseException:
        hub.close()
        raise
