import os
import socket
from collections.abc import Iterator

import msgspec
import pytest

from serving.net.aio.listeners import has_sock_diag
from serving.queueproxy.io import readiness
from serving.queueproxy.io.applistener import ForeignListener, ListenerCheck
from serving.queueproxy.io.readiness import listener_check
from serving.queueproxy.podspec import PodSpec, Probe

# A user id without processes on this machine.
OTHER_USER = 0x70000309
SPEC = PodSpec(namespace="default", revision="r", pod="p", app=("127.0.0.1", 1))


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_socket_of_pod_user_is_accepted(port: int) -> None:
    if os.geteuid() == 0:
        pytest.skip("no pod has the user root as its own")
    ListenerCheck(os.geteuid(), list).require("127.0.0.1", port)


def test_socket_of_pod_process_is_accepted_with_any_user(port: int) -> None:
    for user in (0, OTHER_USER):
        ListenerCheck(user, lambda: [os.getpid()]).require("127.0.0.1", port)


def test_socket_of_other_process_is_rejected(port: int) -> None:
    for user in (0, OTHER_USER):
        check = ListenerCheck(user, lambda: [os.getppid()])
        with pytest.raises(ForeignListener, match=f"port {port} is held by user {os.geteuid()}"):
            check.require("127.0.0.1", port)


def test_closed_port_has_no_foreign_listener(port: int) -> None:
    assert ListenerCheck(OTHER_USER, list).foreign_at("127.64.250.3", port) == ""


def test_may_listen_unless_port_is_closed(port: int) -> None:
    check = ListenerCheck(0, lambda: [os.getpid()])
    assert check.may_listen("127.0.0.1", port)
    assert not has_sock_diag() or not check.may_listen("127.64.250.3", port)
    with pytest.raises(ForeignListener):
        ListenerCheck(OTHER_USER, list).may_listen("127.0.0.1", port)


async def test_probe_opens_no_connection_to_closed_port(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_sock_diag():
        pytest.skip("this kernel has no sock_diag")

    async def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(readiness, "open_connection", refuse)
    assert not await readiness.attempt(Probe(), ("127.64.250.3", 1), check=ListenerCheck(OTHER_USER, list))


def test_processes_are_listed_once_per_socket(port: int) -> None:
    listing_count = 0

    def processes() -> list[int]:
        nonlocal listing_count
        listing_count += 1
        return [os.getpid()]

    check = ListenerCheck(0, processes)
    for _ in range(3):
        check.require("127.0.0.1", port)
    assert listing_count == 1
    with socket.create_server(("127.0.0.1", 0)) as other:
        check.require(*other.getsockname())
    assert listing_count == 2


def test_pod_with_its_own_network_needs_no_check() -> None:
    assert listener_check(SPEC) is None


def test_in_process_queue_proxy_accepts_its_own_socket(port: int) -> None:
    check = listener_check(msgspec.structs.replace(SPEC, app_user=OTHER_USER))
    assert check is not None
    assert check.foreign_at("127.0.0.1", port) == ""
