"""Waits until activators serve a traffic split."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from serving.core.model.rollout import split_digest
from serving.tools.cli.services.url import ServiceAddress
from serving.tools.cli.services.waiting import NotReady, is_down, until_in_force

SERVICE = {"status": {"traffic": [{"revisionName": "a", "percent": 90}, {"revisionName": "b", "percent": 10}]}}
OLD, NEW = split_digest([("a", 100)]), split_digest([("b", 10), ("a", 90)])


class Activators(BaseHTTPRequestHandler):
    """Two activators that respond alternately and see the new split at different times."""

    replies: tuple[str, ...] = ()
    probes: list[str | None]

    def do_GET(self) -> None:
        place = len(self.probes)
        self.probes.append(self.headers["K-Network-Probe"])
        body = self.replies[min(place, len(self.replies) - 1)].encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do nothing."""


@contextlib.contextmanager
def activators(*replies: str) -> Iterator[tuple[ServiceAddress, list[str | None]]]:
    requests: list[str | None] = []
    handler = type("Scripted", (Activators,), {"replies": replies, "probes": requests})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield (
                ServiceAddress(url="http://h", host="h", connect_host="127.0.0.1", connect_port=server.server_port),
                requests,
            )
        finally:
            server.shutdown()
            thread.join()


def test_wait_ends_when_all_activators_return_the_new_split() -> None:
    with activators("", OLD, NEW, OLD, NEW) as (address, requests):
        assert until_in_force(address, SERVICE, within_s=60)
    assert requests == ["probe"] * 8


def test_wait_ends_after_its_time_limit() -> None:
    with activators(OLD) as (address, requests):
        within_s = 0.05
        # On a busy machine the time may expire before the first request.
        while not requests:
            assert not until_in_force(address, SERVICE, within_s=within_s)
            within_s *= 2


def test_wait_for_an_unreachable_activator_returns_false() -> None:
    nowhere = ServiceAddress(url="http://h", host="h", connect_host="127.0.0.1", connect_port=1)
    assert not until_in_force(nowhere, SERVICE, within_s=0.02)


@pytest.mark.parametrize(
    ("message", "port"),
    [
        ("container app listens on port 5000 and was given PORT=20001; it must", 5000),
        ("container app listens on ports 80, 81 and was given PORT=20001", None),
        ("listen EACCES: permission denied 0.0.0.0:3000", 3000),
        ("errno: -13,\n  syscall: 'listen',\n  address: '127.0.0.1',\n  port: 3000", 3000),
        ("while attempting to bind on address ('0.0.0.0', 8080): address already in use", 0),
        ("self.socket.bind(self.server_address)\nPermissionError: [Errno 13] Permission denied", 0),
        ("RuntimeError: Failed to bind to address [::]:50051; set GRPC_VERBOSITY=debug", 50051),
        ("PermissionError: [Errno 13] Permission denied: 'data.json'", None),
    ],
)
def test_app_port_is_read_from_a_failure_message(message: str, port: int | None) -> None:
    assert NotReady(message).port == port


END = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("status", "metadata", "is_ended"),
    [
        ({"state": {"running": {}}}, {}, False),
        ({"state": {"running": {}}, "lastState": END}, {}, False),
        ({"state": {"waiting": {"reason": "ContainerCreating"}}}, {}, False),
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": END}, {}, True),
        ({"state": END}, {}, True),
        ({"state": END}, {"deletionTimestamp": "2026-12-01T00:00:00Z"}, False),
    ],
)
def test_pod_is_down_between_two_runs_of_its_container(
    status: dict[str, object], metadata: dict[str, object], is_ended: bool
) -> None:
    assert is_down({"metadata": metadata, "status": {"containerStatuses": [status]}}) is is_ended
