"""MetricsServer: the metrics over HTTP, for scrapers that bring the token."""

from __future__ import annotations

import hmac
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from memtide._capi import admin
from memtide.errors import MemtideError

# Connections at a time, each of which has a thread. More are closed at once.
_MOST_CONNECTIONS = 16
# A connection is closed after this time, however slowly it sends.
_PATIENCE_S = 5.0
_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer(ThreadingHTTPServer):
    """Answers GET /metrics with the metrics of the daemon at `socket_dir`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], token: str, socket_dir: Path | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self.authorization = f"Bearer {token}".encode()
        self.socket_dir = socket_dir
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    @property
    def url(self) -> str:
        """Where the metrics are, with the port that the kernel has chosen for port 0."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{name}:{port}/metrics"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for the connection, if it is not one too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves the connection, for _PATIENCE_S at most."""
        timer = threading.Timer(_PATIENCE_S, _hang_up, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave in the middle are no news: strangers must not fill the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0, so that the connection ends with the answer."""

    server: MetricsServer
    server_version = "memtide-metrics"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers with the metrics. 401: without the token; 503: the daemon does not answer."""
        brought = self.headers.get("Authorization", "").encode("latin-1", errors="replace")
        if not hmac.compare_digest(brought, self.server.authorization):
            self.send_error(HTTPStatus.UNAUTHORIZED)
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            text = admin.get_metrics(self.server.socket_dir).encode()
        except MemtideError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", _FORMAT)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """No line a request: strangers must not fill the log."""


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # It has ended.
