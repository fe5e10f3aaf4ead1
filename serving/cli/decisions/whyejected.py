"""What ``serving why`` says of pods that get no requests: each activator of this machine is asked on its page of metrics."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from serving.cli.client.table import clock_text
from serving.home.state import StateFolder
from serving.traffic.ejection import EjectionReport

_PAGE = "-metrics"
_TIMEOUT_S = 5.0


def ejected_lines(state_path: Path, namespace: str, is_ours: Callable[[str], bool]) -> list[str]:
    """A line for each of these revisions' pods that an activator has ejected, or tries again since."""
    return [
        _line(activator, one)
        for activator, reports in _reports(state_path, namespace)
        for one in reports
        if is_ours(one.revision)
    ]


def _reports(state_path: Path, namespace: str) -> Iterator[tuple[str, list[EjectionReport]]]:
    try:
        ports = StateFolder(state_path).read_ports()
    except (OSError, ValueError):
        return
    for name, port in ports.items():
        if name.startswith("activator") and name.endswith(_PAGE):
            yield name.removesuffix(_PAGE), _reports_of(port, namespace)


def _reports_of(port: int, namespace: str) -> list[EjectionReport]:
    """What one activator reports; nothing of one that does not answer, which `serving doctor` finds."""
    try:
        url = f"http://127.0.0.1:{port}/ejections/{namespace}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            return msgspec.json.decode(answer.read(), type=list[EjectionReport])
    except (OSError, urllib.error.URLError, msgspec.DecodeError):
        return []


def _line(activator: str, one: EjectionReport) -> str:
    if one.is_silent:
        what = f"answers nothing ({one.in_flight_count} requests inside, ejected {_times(one.failure_count)})"
    else:
        what = f"takes no connection ({_times(one.failure_count)})"
    if one.until_wall_s is None:
        then = "gets requests again, and has answered none of them yet"
    else:
        then = f"gets no requests until {clock_text(one.until_wall_s)}"
    return f"{clock_text(one.since_wall_s)} {one.revision} pod {one.pod} ({one.address}) {what}; {activator}: it {then}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"
