"""What the life of one pod costs, from a request at zero to zero again: CPU, wake-ups, requests, writes, events, forks.

CPU and wake-ups are measured in a system without notes, without what its daemons use at rest in the same time. The
rest is counted in a system whose processes write notes (``bench/parts/tracing``), which costs CPU itself.
"""

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.idle import name_of, threads_of, tree_of
from bench.parts.processes import cpu_s
from bench.parts.system import System
from serving.home.processes.process_lifetime import FORKED_NAMES

_AT_ZERO_S = 120.0
_LATE_S = 2.0
_REST_S = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


def tracing_environment(notes: Path) -> dict[str, str]:
    """What daemons need in their environment to write notes to a file."""
    paths = [str(Path(__file__).with_name("tracing")), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "BENCH_TRACE": str(notes)}


class UsageOfLives:
    """CPU and wake-ups of a system's daemons, and of ended processes: the pods. Measures the system at rest first."""

    def __init__(self, system: System) -> None:
        tree = tree_of(system.process.pid)
        self._supervisor, self._count = system.process.pid, len(tree)
        # What is forked in advance becomes a pod's process.
        names = {pid: name_of(pid).split() for pid in tree}
        self._names = {pid: words[-1] for pid, words in names.items() if words[0] not in FORKED_NAMES}
        before = self._read()
        time.sleep(_REST_S)
        self._begun = self._read()
        self._at_rest = {name: self._begun[name] - before[name] for name in self._begun}

    def until_zero(self) -> None:
        """Wait until the pods have ended. Raises ``TimeoutError``."""
        until_s = time.monotonic() + _AT_ZERO_S
        while len(tree_of(self._supervisor)) > self._count:
            if time.monotonic() > until_s:
                raise TimeoutError("pods do not end")
            time.sleep(1)
        time.sleep(_LATE_S)

    def report(self, count: int) -> list[str]:
        """A line for each daemon: milliseconds of CPU and wake-ups of each of so many lives."""
        end = self._read()
        ratio = (end["", "s"] - self._begun["", "s"]) / self._at_rest["", "s"]
        each = defaultdict[tuple[str, str], float](float)
        for name in end:
            each[name] = (end[name] - self._begun[name] - self._at_rest[name] * ratio) / count
        rows = [(name, 1000 * each[name, "cpu"], each[name, "turns"]) for name in (*self._names.values(), "pods")]
        rows.append(("sum", sum(row[1] for row in rows), sum(row[2] for row in rows)))
        lines = [f"{name:44} {ms:9.1f} {turns:9.1f}" for name, ms, turns in rows]
        return [f"{'daemon':44} {'CPU ms':>9} {'wake-ups':>9}", *lines]

    def _read(self) -> defaultdict[tuple[str, str], float]:
        ended = Path(f"/proc/{self._supervisor}/stat").read_text().rpartition(")")[2].split()
        usage = defaultdict[tuple[str, str], float](float)
        usage["", "s"], usage["pods", "cpu"] = time.monotonic(), sum(map(int, ended[13:15])) / _TICKS
        for pid, name in self._names.items():
            usage[name, "cpu"] = cpu_s(pid)
            usage[name, "turns"] = sum(turns for _, turns in threads_of(pid).values())
        return usage


def report_notes(notes: Path, starts: Sequence[tuple[float, float]]) -> list[str]:
    """A line for each kind of note: how often a life, the CPU of its process until its next note, and its first time.

    ``starts`` are the times of a request and its response.
    """
    times, used_s = defaultdict[str, list[float]](list), defaultdict[str, float](float)
    latest = dict[str, tuple[str, float]]()
    for line in sorted(notes.read_text().splitlines()):
        at_s, pid, cpu, what = line.split(" ", 3)
        if pid in latest:
            used_s[latest[pid][0]] += float(cpu) - latest[pid][1]
        latest[pid] = what if float(at_s) >= starts[0][0] else "", float(cpu)
        if latest[pid][0]:
            times[what].append(float(at_s))
    rows = []
    for what, all_s in times.items():
        first = [next((at_s for at_s in all_s if at_s >= asked_s), end_s) - asked_s for asked_s, end_s in starts]
        known = [at_s for at_s, (asked_s, end_s) in zip(first, starts, strict=True) if at_s < end_s - asked_s]
        rows.append((1000 * statistics.median(known) if known else float("inf"), what, len(all_s)))
    totals = Counter[str]()
    for _, what, times_count in rows:
        totals[what.partition(": ")[0]] += times_count if ": " in what else 0
    count = len(starts)
    return [
        f"{'note':44} {'a life':>9} {'CPU ms':>9} {'at ms':>9}",
        *(f"{w:44} {n / count:9.2f} {1000 * used_s[w] / count:9.2f} {at_ms:9.1f}" for at_ms, w, n in sorted(rows)),
        *(f"{f'all: {what}':44} {times_count / count:9.2f}" for what, times_count in totals.items() if times_count),
    ]
