import os
import socket
import subprocess
import sys

import pytest

from serving.net.aio import listeners
from serving.net.aio.listeners import (
    ListeningSocket,
    has_sock_diag,
    has_socket,
    is_closed,
    listener_at,
    listening_ports,
)


@pytest.fixture(params=["sock_diag", "proc"])
def _source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "proc":
        monkeypatch.setattr(listeners, "has_sock_diag", lambda: False)
    elif not has_sock_diag():
        pytest.skip("this kernel has no sock_diag")


@pytest.mark.usefixtures("_source")
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])  # noqa: S104 - what apps listen on
def test_listener_is_found_on_any_address_that_accepts_the_connection(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family, dualstack_ipv6=":" in address) as server:
        listener = listener_at("127.0.0.1", server.getsockname()[1])
        assert listener is not None
        assert (listener.user, listener.inode) == (os.geteuid(), os.fstat(server.fileno()).st_ino)


@pytest.mark.usefixtures("_source")
def test_no_listener_is_found_at_other_address_or_closed_port() -> None:
    with socket.create_server(("127.64.250.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener_at("127.64.250.1", port) is not None
        assert listener_at("127.64.250.2", port) is None
    assert listener_at("127.64.250.1", port) is None


@pytest.mark.usefixtures("_source")
def test_bound_socket_that_does_not_listen_is_no_listener() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listener_at("127.0.0.1", bound.getsockname()[1]) is None


def test_port_is_closed_only_if_kernel_confirms_it(monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_sock_diag():
        pytest.skip("this kernel has no sock_diag")
    with socket.create_server(("127.64.250.4", 0)) as server:
        address = server.getsockname()
        assert not is_closed(*address)
    assert is_closed(*address)
    with monkeypatch.context() as without:
        without.setattr(listeners, "_reply", lambda _host, _port: b"")
        assert not is_closed(*address)
    monkeypatch.setattr(listeners, "has_sock_diag", lambda: False)
    assert not is_closed(*address)


def test_successive_listeners_on_a_port_have_different_cookies() -> None:
    if not has_sock_diag():
        pytest.skip("without sock_diag the inode tells them apart")
    results: list[ListeningSocket | None] = []
    port = 0
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)) as server:
            port = server.getsockname()[1]
            results.append(listener_at("127.0.0.1", port))
    first, second = results
    assert first is not None
    assert second is not None
    assert first.cookie != second.cookie


def test_process_has_only_the_sockets_it_owns() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode = os.fstat(server.fileno()).st_ino
        with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as other:
            assert has_socket(os.getpid(), inode)
            assert not has_socket(other.pid, inode)
            assert other.stdin is not None
            other.stdin.close()
    assert not has_socket(other.pid, inode)


def test_listening_ports_include_ipv4_and_ipv6_until_closed() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as sock,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        ports = {server.getsockname()[1] for server in (sock, six)}
        assert ports <= listening_ports()
    assert not ports & listening_ports()
