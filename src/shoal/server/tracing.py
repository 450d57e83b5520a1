"""Traces of requests, for OpenTelemetry: a span for each, sent to a collector in the background.

A request that comes with a `traceparent` (W3C) is a part of its caller's trace. Off unless a collector is
named, and the packages are optional. What the collector does not take in time is dropped: nobody waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from shoal.core.errors import MissingPackage

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_PARENT: Final = (b"traceparent", b"tracestate")
_QUEUE: Final = 2048
"""Spans that wait to be sent; more are dropped."""
_SEND_S: Final = 3.0
"""A batch is tried for so long; a server that stops waits no longer for its collector."""


class Tracing:
    """Spans of one server. For one event loop; they are sent by a thread of their own."""

    def __init__(self, exporter: SpanExporter, *, version: str) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an optional package
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415
            TraceContextTextMapPropagator,
        )

        about = Resource.create({"service.name": "shoal", "service.version": version})
        self._provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
        self._tracer = self._provider.get_tracer("shoal.server", version)
        self._parents = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, collector: str, *, version: str) -> Tracing:
        """To a collector that speaks OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
                OTLPSpanExporter,
            )
        except ModuleNotFoundError as error:
            package = error.name or "opentelemetry-sdk"
            raise MissingPackage(part="tracing", package=package, extra="otel") from error
        # It speaks of each batch that a collector did not take; the server's log is not about that.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        return cls(OTLPSpanExporter(endpoint=collector, timeout=_SEND_S), version=version)

    def request(
        self,
        name: str,
        headers: Iterable[tuple[bytes, bytes]],
        began_ns: int,
        ended_ns: int,
        **fields: str | int,
    ) -> None:
        """A request that has been answered; `fields` are what the log says of it."""
        from opentelemetry.trace import SpanKind, StatusCode  # noqa: PLC0415

        given = {key.decode(): value.decode("latin-1") for key, value in headers if key in _PARENT}
        span = self._tracer.start_span(
            name,
            self._parents.extract(given),
            SpanKind.SERVER,
            {
                "http.request.method": fields["method"],
                "url.path": fields["path"],
                "http.response.status_code": fields["status"],
                "client.address": fields["client"],
                "shoal.request": fields["request"],
            },
            start_time=began_ns,
        )
        if int(fields["status"]) >= 500:
            span.set_status(StatusCode.ERROR)
        span.end(ended_ns)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
