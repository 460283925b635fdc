"""A collector of OpenTelemetry's spans, on loopback."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@contextmanager
def collector():
    """A collector on loopback; yields its URL, and the list of (service, instance, span) that it was sent."""
    found = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in sent.resource_spans:
                names = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
                who = names["service.name"], names.get("service.instance.id", "")
                found.extend((*who, span) for scope in resource.scope_spans for span in scope.spans)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", found
        finally:
            server.shutdown()
            thread.join()
