"""Traces of a server, sent to a collector that listens on a socket of this machine."""

import gzip
import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shoal.core.errors import InvalidInput
from shoal.server.options import ServerOptions
from shoal.testing.machine import free_port
from shoal.testing.serving import served

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def collecting() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Where to send traces, and what has come."""
    found: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            found.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/traces", found
        finally:
            server.shutdown()
            thread.join()


def asked(url: str, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as connection:
        connection.request(method, path, body, headers)
        return connection.getresponse().status


def test_a_span_of_each_request_is_sent_and_belongs_to_its_callers_trace(sqlite_url: str) -> None:
    with collecting() as (collector, found):
        with served(sqlite_url, ServerOptions(port=0, traces=collector)) as url:
            parent = f"00-{TRACE}-{PARENT}-01"
            assert asked(url, "POST", "/v1/hub/list_projects", traceparent=parent) == 200
            assert asked(url, "GET", "/logstores/none/shards", host="proj.localhost") == 404
            assert asked(url, "GET", "/healthz", traceparent="garbage") == 200
        spans = {
            span.name: span
            for request in found
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }
    assert set(spans) == {"hub.list_projects", "sls.list_shards", "healthz"}
    listed = spans["hub.list_projects"]
    assert (listed.trace_id.hex(), listed.parent_span_id.hex()) == (TRACE, PARENT)
    assert 0 < listed.end_time_unix_nano - listed.start_time_unix_nano < 20e9
    fields = {one.key: one.value for one in spans["sls.list_shards"].attributes}
    assert fields["http.response.status_code"].int_value == 404
    assert fields["url.path"].string_value == "/logstores/none/shards"
    assert not spans["healthz"].parent_span_id


def test_a_collector_that_is_not_there_holds_nobody_up(sqlite_url: str) -> None:
    options = ServerOptions(port=0, traces=f"http://127.0.0.1:{free_port()}/v1/traces")
    with served(sqlite_url, options) as url:
        for _ in range(20):
            assert asked(url, "GET", "/healthz") == 200


def test_what_is_no_collector_is_refused() -> None:
    with pytest.raises(InvalidInput, match="traces="):
        ServerOptions(traces="collector:4318")
