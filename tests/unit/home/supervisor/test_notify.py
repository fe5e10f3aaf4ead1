"""State reports to systemd over a real socket."""

import os
import socket
from pathlib import Path

import pytest

from serving.home.supervisor.notify import SystemdNotifier, pop_variables


@pytest.mark.parametrize("is_abstract", [False, True])
def test_systemd_socket_receives_states(tmp_path: Path, is_abstract: bool) -> None:
    name = f"@serving-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name[1:]}" if is_abstract else name)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": name})
        notifier.report_started()
        notifier.report_alive()
        notifier.report_stopping()
        lines = [systemd.recv(4096).decode().splitlines()[0] for _ in range(3)]
    assert (notifier.is_on, lines) == (True, ["READY=1", "WATCHDOG=1", "STOPPING=1"])


def test_missing_systemd_socket_raises_no_error(tmp_path: Path) -> None:
    assert not SystemdNotifier({}).is_on
    SystemdNotifier({}).report_alive()
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).report_alive()


@pytest.mark.parametrize(
    ("environment", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_period_is_half_its_timeout_for_its_own_process(
    environment: dict[str, str], period_s: float | None
) -> None:
    assert SystemdNotifier(environment).period_s == period_s


def test_systemd_variables_are_removed_from_the_environment() -> None:
    environment = {"NOTIFY_SOCKET": "@one", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2", "PATH": "/bin"}
    assert pop_variables(environment) == {"NOTIFY_SOCKET": "@one", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "2"}
    assert environment == {"PATH": "/bin"}
