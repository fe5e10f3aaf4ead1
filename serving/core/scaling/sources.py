"""Combines stats of pods and activators into one load sample per second.

Input: reports of pods and activators, with the times of their receipt. Output: for each completed second, one
``Second`` with every pod's latest report and the sum of the activators' reports in it. So no window gets a second with
missing sources, or with two reports of one source.

A pod's report is its state of the last second. It replaces the previous report, and counts until it is too old. A
dormant pod's report counts as no load until the pod reports again or is dropped. An activator's reports are summed: a
poke has the load that is new since the last report, and the next report excludes it, as in knative/serving 98e5ef90
pkg/activator/handler/concurrency_reporter.go. A second's mean comes from reports without pokes.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from serving.core.model.stat import Stat

# Longest validity of a pod's report, in seconds: with one report a second, one may be lost and one late.
REPORT_VALID_S = 2.5
# Longest width of any window, in seconds.
_WINDOW_MAX_S = 3600
# Age up to which an activator's reports are its present load. It is slightly below the second between two reports,
# so that only one of them counts.
_PRESENT_S = 0.9
# Age up to which an activator's last report is valid, with one report a second.
_REPORTED_S = 1.5
# An activator's reports are kept per twentieth of a second, the rate of pokes: at most 40 in two seconds.
_SLOTS_PER_S = 20


class Second(msgspec.Struct, frozen=True, kw_only=True):
    """All reports in one second of the clock. ``number`` 61 is the time from 61 s to 62 s.

    ``pods`` has the latest report of each pod, including requests through activators. ``activators`` is the sum of the
    activators' reports; None without one.
    """

    number: int

    pods: tuple[Stat, ...]
    activators: Stat | None

    @property
    def load(self) -> Stat:
        """The load of all sources.

        Example: a pod reports 5 requests, 3 of them from an activator that reports 4: 5 - 3 + 4 = 6.
        """
        return _sum((*self.pods, self.activators) if self.activators else self.pods)


class Sources:
    """All sources of one revision's load.

    Call ``complete`` before each ``record_*``, because a report counts for the current second.
    """

    __slots__ = ("_activators", "_number", "_pods")

    def __init__(self) -> None:
        self._number: int | None = None
        self._pods: dict[str, Stat] = {}
        self._activators: dict[str, deque[Stat]] = {}

    @property
    def pods(self) -> dict[str, Stat]:
        """The latest valid report of each pod, as of the last call."""
        return dict(self._pods)

    @property
    def pod_loads(self) -> dict[str, float]:
        """The requests in each pod of a ScaledWorkload, from the last report of each activator."""
        return self._by_pod(_loads_of)

    @property
    def pod_heats(self) -> dict[str, float]:
        """The savings of each pod's prompt cache, from the last report of each activator."""
        return self._by_pod(_heats_of)

    @property
    def is_silent(self) -> bool:
        """Whether no source has a valid report, as of the last call."""
        return not self._pods and not self._activators

    @property
    def is_idle(self) -> bool:
        """Whether no report of the last seconds has a load, as of the last call."""
        reports = itertools.chain(self._pods.values(), *self._activators.values())
        return all(stat.is_idle for stat in reports)

    def record_pod(self, stat: Stat) -> None:
        """Add a pod's report, stamped with its time of receipt."""
        self._pods[stat.pod] = stat

    def record_activator(self, stat: Stat) -> None:
        """Add an activator's stats; ``stat.pod`` is its name."""
        reports = self._activators.setdefault(stat.pod, deque())
        if reports and _slot(reports[-1]) == _slot(stat):
            last = reports.pop()
            stat = msgspec.structs.replace(
                stat,
                concurrency=last.concurrency + stat.concurrency,
                request_count=last.request_count + stat.request_count,
                window_concurrency=_window_concurrency((last, stat)),
                window_request_count=_window_requests((last, stat)),
                pod_loads=stat.pod_loads or last.pod_loads,
                pod_heats=stat.pod_heats or last.pod_heats,
            )
        reports.append(stat)

    def forget_pod(self, name: str) -> None:
        """Drop a deleted pod and its load."""
        self._pods.pop(name, None)

    def complete(self, now_s: float) -> list[Second]:
        """The seconds completed since the last call, oldest first; seconds without a report are omitted."""
        number = math.floor(now_s)
        first, self._number = self._number, number
        if first is None or first == number or not (self._pods or self._activators):
            return []
        seconds: list[Second] = []
        # No report is valid for longer, except a dormant pod's.
        is_dormant = any(pod.is_dormant for pod in self._pods.values())
        seconds_max = _WINDOW_MAX_S if is_dormant else math.ceil(REPORT_VALID_S) + 1
        for second_number in range(first, min(number, first + seconds_max)):
            second = self._over(second_number)
            if second is not None:
                seconds.append(second)
        self._forget(number)
        return seconds

    def present(self, now_s: float) -> Stat:
        """The reported load in flight now; never below 0.

        An activator's load is the larger of its reports in the last moment and its reports in the whole second before.
        The former alone is too low, because a report excludes the load of earlier pokes (reports between two periods).
        """
        pods = _sum(pod for pod in self._pods.values() if _counts(pod, now_s))
        concurrency, request_count = pods.concurrency, pods.request_count
        before = math.floor(now_s) - 1
        for reports in self._activators.values():
            recent = [stat for stat in reports if now_s - stat.at_s < _PRESENT_S]
            earlier = [stat for stat in reports if math.floor(stat.at_s) == before]
            concurrency += max(_concurrency(recent), _concurrency(earlier))
            request_count += max(_requests(recent), _requests(earlier))
        return Stat(concurrency=max(0.0, concurrency), request_count=max(0.0, request_count), gauges=pods.gauges)

    def reported(self, now_s: float) -> Stat:
        """The mean load in the last report of each activator. Pokes (reports between two periods) are left out."""
        reports = [
            report
            for reports in self._activators.values()
            if (report := next((stat for stat in reversed(reports) if not _is_poke(stat)), None)) is not None
            and now_s - report.at_s < _REPORTED_S
        ]
        return Stat(concurrency=_window_concurrency(reports), request_count=_window_requests(reports))

    def _by_pod(self, numbers_of: Callable[[Stat], Mapping[str, float]]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for reports in self._activators.values():
            # A poke does not list pods.
            named = next((numbers for numbers in map(numbers_of, reversed(reports)) if numbers), {})
            for pod, number in named.items():
                sums[pod] = sums.get(pod, 0.0) + number
        return sums

    def _over(self, number: int) -> Second | None:
        """All reports of a completed second; None if no source has a valid one."""
        end_s = number + 1
        pods = tuple(stat for stat in self._pods.values() if _counts(stat, end_s))
        reports = [
            stat
            for stats in self._activators.values()
            for stat in stats
            if math.floor(stat.at_s) == number and not _is_poke(stat)
        ]
        if not pods and not reports:
            return None
        activators = (
            Stat(concurrency=_window_concurrency(reports), request_count=_window_requests(reports)) if reports else None
        )
        return Second(number=number, pods=pods, activators=activators)

    def _forget(self, number: int) -> None:
        """Drop sources that were silent for too long."""
        self._pods = {name: stat for name, stat in self._pods.items() if _counts(stat, number)}
        self._activators = {
            name: reports for name, reports in self._activators.items() if math.floor(reports[-1].at_s) >= number - 1
        }
        for reports in self._activators.values():
            while math.floor(reports[0].at_s) < number - 1:
                reports.popleft()


def _loads_of(stat: Stat) -> Mapping[str, float]:
    return stat.pod_loads


def _heats_of(stat: Stat) -> Mapping[str, float]:
    return stat.pod_heats


def _counts(stat: Stat, now_s: float) -> bool:
    """Whether a pod's report is still valid."""
    return stat.is_dormant or now_s - stat.at_s < REPORT_VALID_S


def _is_poke(stat: Stat) -> bool:
    """Whether a stat is a poke: a load between two periods, without the mean of a second."""
    return stat.window_concurrency == 0 and bool(stat.concurrency)


def _slot(stat: Stat) -> int:
    return math.floor(stat.at_s * _SLOTS_PER_S)


def _concurrency(stats: list[Stat]) -> float:
    return sum(stat.concurrency for stat in stats)


def _requests(stats: list[Stat]) -> float:
    return sum(stat.request_count for stat in stats)


def _window_concurrency(stats: Iterable[Stat]) -> float:
    return sum(stat.concurrency if stat.window_concurrency is None else stat.window_concurrency for stat in stats)


def _window_requests(stats: Iterable[Stat]) -> float:
    return sum(stat.request_count if stat.window_request_count is None else stat.window_request_count for stat in stats)


def _sum(stats: Iterable[Stat]) -> Stat:
    """The sum of several reports, excluding requests through activators.

    A busy pod that does not report a gauge counts with the mean of the other pods, because its metrics page may be slow
    under overload. Example: gauges of 4 and 6, and a busy pod without a gauge, give 15.
    """
    concurrency = request_count = 0.0
    gauges: dict[str, float] = {}
    pods: list[Stat] = []
    for stat in stats:
        concurrency += stat.concurrency - stat.proxied_concurrency
        request_count += stat.request_count - stat.proxied_request_count
        if stat.pod:
            pods.append(stat)
        for name, value in stat.gauges.items():
            gauges[name] = gauges.get(name, 0.0) + value
    for name, value in gauges.items():
        silent = sum(name not in stat.gauges and stat.concurrency > 0 for stat in pods)
        gauges[name] = value + silent * value / sum(name in stat.gauges for stat in pods) if silent else value
    return Stat(concurrency=concurrency, request_count=request_count, gauges=gauges)
