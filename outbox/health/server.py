"""What probes and scrapers are told over HTTP: ``/livez``, ``/readyz``, ``/metrics``.

``/livez`` and ``/readyz`` answer 200 or 503, with the same JSON: every loop and every need of every database.
"""

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final, Self

from outbox.errors import SettingsError
from outbox.health.vitals import Vitals

_log = logging.getLogger(__name__)

#: Seconds after which a client that says nothing is hung up on.
_CLIENT_TIMEOUT: Final = 10.0
#: Clients at once: more than balancers keep open in advance. A probe that is hung up on has failed, and whoever sent it
#: may restart the process.
_AT_ONCE: Final = 200
#: Seconds until the next try where a client could not be let in.
_REST: Final = 0.1
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def report(vitals: Mapping[str, Vitals]) -> dict[str, Any]:
    """All databases: live and ready if each of them is."""
    return {
        "live": all(it.live() for it in vitals.values()),
        "ready": all(it.ready() for it in vitals.values()),
        "databases": {name: it.as_json() for name, it in vitals.items()},
    }


class HealthServer:
    """An HTTP server in a thread of its own, from ``with`` on."""

    def __init__(
        self, host: str, port: int, vitals: Mapping[str, Vitals], metrics: Callable[[], str] = lambda: ""
    ) -> None:
        """``SettingsError`` where the port cannot be had; 0 is any that is free."""
        try:
            self._server = _Server(host, port, _answers(vitals, metrics))
        except OSError as error:
            raise SettingsError(
                f"OUTBOX_HEALTH_PORT: cannot listen on {host}:{port}: {error}; choose another port, or none"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="outbox-health", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


#: Status, content type and body.
_Answer = tuple[HTTPStatus, str, str]


def _answers(vitals: Mapping[str, Vitals], metrics: Callable[[], str]) -> dict[str, Callable[[], _Answer]]:
    def probe(question: str) -> _Answer:
        """As a probe wants it."""
        found = report(vitals)
        status = HTTPStatus.OK if found[question] else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", json.dumps(found, indent=2) + "\n"

    return {
        "/livez": lambda: probe("live"),
        "/readyz": lambda: probe("ready"),
        "/metrics": lambda: (HTTPStatus.OK, _METRICS_TYPE, metrics()),
    }


class _Server(ThreadingHTTPServer):
    """Listens on an IPv4 or IPv6 address."""

    daemon_threads = True
    #: Who comes while this many wait has to come again a second later, which is late for a probe.
    request_queue_size = 128

    def __init__(self, host: str, port: int, answers: Mapping[str, Callable[[], _Answer]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.answers = answers
        self._places = threading.Semaphore(_AT_ONCE)
        super().__init__((host, port), _Probe)

    def server_bind(self) -> None:
        """Without the base class's question after the host's full name, which a silent name server holds up."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Without files to spare the client stays in front of the door, which must not keep a core busy."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_REST)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Hangs up where so many clients are there already: threads and files are the relay's."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Makes room again."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 -- the base class's
        """Balancers hang up in the middle, again and again: no traceback for each."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "probe from %s failed", client_address, exc_info=True)


class _Probe(BaseHTTPRequestHandler):
    """One request."""

    timeout = _CLIENT_TIMEOUT
    server_version = "outbox"
    sys_version = ""

    def do_GET(self) -> None:
        """Answers the three paths."""
        answers: Mapping[str, Callable[[], _Answer]] = self.server.answers  # type: ignore[attr-defined]
        answer = answers.get(self.path.partition("?")[0])
        status, kind, text = answer() if answer else (HTTPStatus.NOT_FOUND, "text/plain", " ".join(answers) + "\n")
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Probes come every second: debug."""
        _log.debug(format, *args)
