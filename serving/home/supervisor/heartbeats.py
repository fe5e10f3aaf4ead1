"""Decides whether a daemon hangs: it has not reported for some seconds, for reasons other than load or suspension.

Input, each second: whether the daemon has reported, how long the supervisor has run since the last check, and the
kernel's state of the process. Output: why the daemon must be replaced, or "".

A daemon reports each second from its loop. A silent daemon may be stopped or deadlocked, and a new process would help.
Or it waits for something for which a new process would wait too. The kernel's state distinguishes these cases:

- The daemon is ready to run (R) but gets no core, on a loaded machine: this time does not count.
- The daemon waits for a disk (D), or a debugger has stopped it (t): this time does not count, because a replacement
  would not help.
- The daemon uses CPU time without a report, for example for garbage collection, a long computation, or an endless loop:
  it hangs after a minute.
- The daemon sleeps or is stopped (S, T) and uses no CPU time: it hangs after five seconds, because its timer of one
  second should have woken it.

A check counts the time for which the supervisor ran, at most 1.5 ``LOOK_S``. So if the machine or the supervisor was
suspended, the suspension does not count, and the daemon has time to report. The module imports only the standard
library.
"""

from typing import NamedTuple

LOOK_S = 1.0
"""The period of checks, and of reports, in seconds."""
_COUNTED_MAX_S = 1.5 * LOOK_S
_SILENT_MAX_S = 5.0
_BUSY_MAX_S = 60.0
# Fields of /proc/PID/stat after the name (proc_pid_stat(5)): the state, and CPU ticks of all threads.
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12
_IDLE_TEXT = {"S": "slept", "T": "was stopped"}


class ProcessVitals(NamedTuple):
    """The kernel's data about a process (proc_pid_stat(5)).

    ``state`` is the letter of the state of its first thread, such as "S" for sleeping. ``cpu_ticks`` is the CPU time of
    all threads, in clock ticks.
    """

    state: str
    cpu_ticks: int


def read_vitals(pid: int) -> ProcessVitals | None:
    """Read the vitals of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - each second
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ProcessVitals(fields[_STATE].decode(), int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]))


def read_wait_channel(pid: int) -> str:
    """The kernel function in which a process's first thread waits, as the text " in FUNCTION"; "" if unknown.

    It is read from wchan (proc_pid(5)).
    """
    try:
        with open(f"/proc/{pid}/wchan", encoding="ascii") as file:  # noqa: PTH123 - as above
            channel = file.read()
    except OSError:
        return ""
    return f" in {channel}" if channel.strip("0") else ""


class HangWatch:
    """Decides whether one daemon hangs, from the time since its last report and the CPU time that it used."""

    def __init__(self) -> None:
        self._idle_s = self._busy_s = 0.0
        self._cpu_ticks: int | None = None

    def reset(self, vitals: ProcessVitals | None) -> None:
        """Record that the daemon has reported."""
        self._idle_s = self._busy_s = 0.0
        self._cpu_ticks = None if vitals is None else vitals.cpu_ticks

    def check(self, vitals: ProcessVitals | None, *, elapsed_s: float, is_waiting: bool) -> str:
        """Record that ``elapsed_s`` seconds passed without a report; return why the daemon hangs, or "".

        ``is_waiting``: the daemon has announced a wait, for example for a container's start, which has a longer limit.
        """
        if vitals is None:
            return ""
        counted_s, before = min(elapsed_s, _COUNTED_MAX_S), self._cpu_ticks
        self._cpu_ticks = vitals.cpu_ticks
        if vitals.cpu_ticks != before or is_waiting:
            self._busy_s += counted_s
        elif vitals.state in _IDLE_TEXT:
            self._idle_s += counted_s
            if self._idle_s >= _SILENT_MAX_S:
                return f"no report for {_SILENT_MAX_S:g} s, while it {_IDLE_TEXT[vitals.state]}"
        if self._busy_s >= _BUSY_MAX_S:
            return f"no report in {_BUSY_MAX_S:g} s of work"
        return ""
