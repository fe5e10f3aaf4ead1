"""Listening sockets of ``serving up``: addresses, and errors of ports that cannot be bound."""

import errno
import socket

import pytest

from serving.core.model.errors import SettingsError
from serving.home.supervisor.binding import bind


def test_public_listeners_bind_all_addresses_and_others_loopback() -> None:
    listeners = bind({"public": 0, "tls": 0, "inner": 0}, unheard=("tls",), exposed=("public", "tls"))
    try:
        addresses = {name: listener.getsockname()[0] for name, listener in listeners.items()}
        everywhere = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - as asked for
        assert addresses == {"public": everywhere, "tls": everywhere, "inner": "127.0.0.1"}
        port = listeners["public"].getsockname()[1]
        for host in ("127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])):
            socket.create_connection((host, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listeners["tls"].getsockname()[1]))
    finally:
        for listener in listeners.values():
            listener.close()


def test_public_listeners_without_ipv6_bind_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    listeners = bind({"public": 0, "tls": 0}, unheard=("tls",), exposed=("public", "tls"))
    try:
        assert {listener.family for listener in listeners.values()} == {socket.AF_INET}
    finally:
        for listener in listeners.values():
            listener.close()


def test_tls_port_in_use_is_an_error_only_if_exposed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        assert bind({"tls": port}, unheard=("tls",)) == {}
        with pytest.raises(SettingsError, match=f"--tls-port: port {port} cannot be taken: .*; expected a free port"):
            bind({"tls": port}, unheard=("tls",), exposed=("tls",))


def test_privileged_port_error_names_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Simulated, because root may bind any port.
    monkeypatch.setattr(socket, "create_server", denied)
    expected = "expected a port from 1024, or `sysctl net.ipv4.ip_unprivileged_port_start=1` by root"
    with pytest.raises(SettingsError, match=expected):
        bind({"public": 1})
