"""Health and metrics over plain HTTP, on request: for the coordinator's own monitoring, so on loopback by default."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dresfl.errors import UsageError
from dresfl.federation import Coordinator
from dresfl.runtimes.log import Log

MOST_REQUESTS = 8  # at once
REQUEST_SECONDS = 5.0  # without a byte


class _Collector(Collector):
    """Reads the machine's counters when somebody asks."""

    def __init__(self, machine: Coordinator, refusals: Callable[[], int]) -> None:
        self._machine, self._refusals = machine, refusals

    def collect(self) -> Iterator[Metric]:
        machine, counters = self._machine, self._machine.counters
        refusals = counters.refusals + self._refusals()
        yield GaugeMetricFamily("dresfl_clients_connected", "Clients that are connected", len(machine.connected))
        yield GaugeMetricFamily("dresfl_clients_ready", "Clients that hold all shares", len(machine.ready))
        yield CounterMetricFamily("dresfl_refusals", "Connections and messages refused", refusals)
        if machine.rounds is None or machine.relay is None:
            return
        yield GaugeMetricFamily("dresfl_round", "The current round", machine.rounds.number)
        yield GaugeMetricFamily("dresfl_rounds", "Rounds of the run", machine.rounds.rounds)
        yield CounterMetricFamily("dresfl_answers", "Valid answers", counters.answers)
        yield CounterMetricFamily("dresfl_late_answers", "Answers that came after their round", counters.late)
        yield CounterMetricFamily("dresfl_invalid_answers", "Answers that were refused", counters.invalid)
        yield CounterMetricFamily("dresfl_shortages", "Deadlines with too few answers", counters.shortages)
        if machine.training is not None:
            lies = CounterMetricFamily("dresfl_liars", "Rounds in which a client's answer was a lie", labels=["client"])
            for client, count in sorted(machine.training.lies.items()):
                lies.add_metric([str(client)], count)
            yield lies
        yield CounterMetricFamily(
            "dresfl_relayed_bytes", "Sealed bytes taken from dealers", machine.relay.relayed_bytes
        )
        yield GaugeMetricFamily(
            "dresfl_spooled_bytes", "Sealed bytes that wait for their receivers", machine.relay.stored_bytes
        )
        last = GaugeMetricFamily("dresfl_last_answered_round", "Each client's last answer", labels=["client"])
        for client, number in sorted(counters.last_answered.items()):
            last.add_metric([str(client)], number)
        yield last


class _Server(ThreadingHTTPServer):
    """Serves a few requests at once; what comes beyond that is closed unread, so no flood takes threads or descriptors.

    The handler gives up on who sends or reads nothing for some seconds.
    """

    daemon_threads, request_queue_size = True, 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._room = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # no thread can be started
                self._room.release()
                self.shutdown_request(request)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asked has gone: not worth a line."""


@contextlib.contextmanager
def serve_metrics(address: str, machine: Coordinator, refusals: Callable[[], int], log: Log) -> Iterator[None]:
    """Serve /health and /metrics at `address` for as long as it lasts; nothing if it is empty.

    refusals: how many connections the runtime has refused before the machine heard of them.
    """
    if not address:
        yield
        return
    registry = CollectorRegistry()
    registry.register(_Collector(machine, refusals))

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry))
            elif self.path == "/health":
                state = {
                    "connected": len(machine.connected),
                    "ready": len(machine.ready),
                    "round": machine.training.round_number if machine.training else None,
                }
                self._answer(200, "application/json", json.dumps(state).encode())
            else:
                self._answer(404, "text/plain", b"there are /health and /metrics\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests for metrics are not worth a line."""

    host, _, port = address.rpartition(":")
    try:
        server = _Server((host or "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"cannot serve metrics at {address}: {error}", "give host:port, for example 127.0.0.1:9464"
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log("metrics", port=server.server_address[1])
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
