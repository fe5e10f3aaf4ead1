"""The state of the dashboard: versioned objects, recent decisions, and an hour of samples. Pure.

Input: objects, samples, decisions and metric readings; output: the changes since a version, so that each open page
receives only the missing changes. ``tick`` builds one row per revision from the latest samples.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from serving.core.model.objects import name_of, namespace_of, nested, timestamp_s
from serving.core.settings.placement import PlacementSettings
from serving.core.traffic.latencies import quantile_s
from serving.core.traffic.responsecounts import CLASSES, MetricsReading, grown, parse
from serving.tools.dashboard.coldstarts import ColdRequest, ColdStarts, StartFacts, summary
from serving.tools.dashboard.cost import RevisionOwner, RevisionUsage, ServiceUsage, UsageReport
from serving.tools.dashboard.marks import Marks
from serving.tools.dashboard.nodes import Nodes
from serving.tools.dashboard.views import View, amount


class PodUse(NamedTuple):
    """Cores and memory used by all containers of a pod."""

    cpu_cores: float
    memory_bytes: int


def pod_uses(items: Iterable[Mapping[str, Any]]) -> dict[str, PodUse]:
    """The use of each pod, by "namespace/name"."""
    return {f"{namespace_of(measured)}/{name_of(measured)}": _use_of(measured) for measured in items}


def _use_of(measured: Mapping[str, Any]) -> PodUse:
    usages = [nested(container, "usage") or {} for container in measured.get("containers") or ()]
    millicores = sum(amount(usage.get("cpu"), is_cpu=True) for usage in usages)
    return PodUse(millicores / 1000, sum(amount(usage.get("memory"), is_cpu=False) for usage in usages))


QUANTILES = (0.5, 0.95, 0.99)


class RequestRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of one revision: responses a second by class 2xx to 5xx, latency quantiles, and queued requests.

    A rate is None without an earlier reading.
    """

    rates: tuple[float | None, ...] = (None,) * len(CLASSES)
    quantiles_s: tuple[float | None, ...] = (None,) * len(QUANTILES)
    waiting: float = 0.0


class _CounterReading(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of one activator and their time in seconds."""

    at_s: float
    page: MetricsReading


class Requests:
    """Stores the last reading of each activator."""

    def __init__(self) -> None:
        self._before: dict[str, _CounterReading] = {}

    def read(self, pages: Mapping[str, str], at_s: float) -> dict[str, RequestRates]:
        """Rates since the last call, and queued requests, by "namespace/revision". ``pages`` are by activator."""
        before = self._before
        self._before = {source: _CounterReading(at_s=at_s, page=parse(page)) for source, page in pages.items()}
        rates: dict[str, list[float]] = {}
        sums: dict[str, Counter[int]] = {}
        waiting: Counter[str] = Counter()
        for source, now in self._before.items():
            waiting.update(now.page.waiting)
            last = before.get(source)
            if last is None or at_s <= last.at_s:
                continue
            for (key, status), counts in now.page.durations.items():
                came = grown(counts, last.page.durations.get((key, status), {}))
                place = CLASSES.index(status)
                rates.setdefault(key, [0.0] * len(CLASSES))[place] += sum(came.values()) / (at_s - last.at_s)
                sums.setdefault(key, Counter()).update(came)
        requests = {key: RequestRates(waiting=count) for key, count in waiting.items()}
        for key, by_class in rates.items():
            quantiles_s = tuple(quantile_s(sums[key], ratio) for ratio in QUANTILES)
            requests[key] = RequestRates(rates=tuple(by_class), quantiles_s=quantiles_s, waiting=waiting.get(key, 0.0))
        return requests


COLUMNS = (
    *("running", "held", "target", "observed"),
    *("desired", "ready", "starting", "is_panic", "dormant"),
    *("rps_2xx", "rps_3xx", "rps_4xx", "rps_5xx"),
    *("p50_s", "p95_s", "p99_s"),
    *("cpu_cores", "memory_bytes"),
)
"""The columns of a row: requests in flight, pod counts, responses per second, latencies in seconds, use of pods."""

_BUNCH = 128
_READY = COLUMNS.index("ready")
# Maximum time for which a row is valid if the next row is late.
_ROW_STANDS_S = 10.0
_RATES = slice(COLUMNS.index("rps_2xx"), COLUMNS.index("rps_5xx") + 1)

_DECISIONS_MAX = 200
# Number of a service's deleted pods whose logs a page may show.
_GONE_PODS_MAX = 3
# Number of stored deletions for pages that have not received them. A page further behind receives all objects again.
_GONE_MAX = 10_000
# A sample counts as unknown this many seconds after its time: decisions arrive every 2 s, but not at rest.
_SAMPLE_VALID_S = 10.0

STEP_S = 20
STEPS = 45
"""The number of steps in a sparkline: the last 15 minutes."""

_Key = tuple[str, str]
"""Kind ("service", "revision", "pod") and "namespace/name"."""


class RevisionHistory:
    """Rows of all revisions, at most ``rows_max`` per revision."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._times = array("d")
        self._columns: dict[str, tuple[array[float], ...]] = {}

    def add(self, at_s: float, rows: Mapping[str, Sequence[float | None]]) -> None:
        """Append one row per revision. A revision without a row is deleted with its history."""
        self._times.append(at_s)
        for key in [key for key in self._columns if key not in rows]:
            del self._columns[key]
        for key, row in rows.items():
            columns = self._columns.get(key)
            if columns is None:
                columns = self._columns[key] = tuple(array("f") for _ in COLUMNS)
            for column, value in zip(columns, row, strict=True):
                column.append(math.nan if value is None else value)
        if len(self._times) >= self._rows_max + _BUNCH:
            self._drop()

    def read(self, key: str, *, from_s: float = 0.0, to_s: float = math.inf) -> dict[str, list[float]]:
        """The columns of a revision in a time range, by name, including ``at_s``; empty for an unknown revision."""
        columns = self._columns.get(key) or tuple(array("f") for _ in COLUMNS)
        count = min(len(columns[0]), self._rows_max, len(self._times) - bisect_left(self._times, from_s))
        # From the end: a revision has the times since its first row.
        places = slice(-count or len(self._times), bisect_right(self._times, to_s) - len(self._times) or None)
        tails = {name: list(column[places]) for name, column in zip(COLUMNS, columns, strict=True)}
        return {"at_s": list(self._times[places]), **tails}

    def usage(self, owners: Mapping[str, RevisionOwner], *, from_s: float, to_s: float) -> UsageReport:
        """The usage of revisions with an owner in a range. A row applies until the next row."""
        times = np.array(self._times)
        stands_s = np.minimum(np.diff(times, append=times[-1:]), _ROW_STANDS_S)
        stands_s[(times < from_s) | (times >= to_s)] = 0.0
        revisions: list[RevisionUsage] = []
        pods: dict[str, tuple[int, np.ndarray]] = {}
        for key in owners.keys() & self._columns.keys():
            ready = np.array(self._columns[key][_READY])
            revisions.append(
                RevisionUsage(revision=key, owner=owners[key], pod_s=float(ready @ stands_s[len(times) - len(ready) :]))
            )
            count, sums = pods.get(owners[key].service, (0, np.zeros(len(times))))
            sums[len(times) - len(ready) :] += ready
            pods[owners[key].service] = max(count, len(ready)), sums
        services = [
            ServiceUsage(
                service=service,
                known_s=float(stands_s[len(times) - count :].sum()),
                absent_s=float((np.maximum(0.0, 1.0 - sums) * stands_s)[len(times) - count :].sum()),
            )
            for service, (count, sums) in pods.items()
        ]
        return UsageReport(revisions, services)

    def _drop(self) -> None:
        for column in (self._times, *(column for columns in self._columns.values() for column in columns)):
            del column[: max(0, len(column) - self._rows_max)]


class Sparklines:
    """Requests and errors per second, summed in steps of 20 s. Revisions without a row are removed."""

    def __init__(self) -> None:
        self._step = 0
        self._ticks = array("f", [0.0] * STEPS)
        self._sums: dict[str, tuple[array[float], array[float]]] = {}

    def add(self, at_s: float, rates: Mapping[str, Sequence[float | None]]) -> None:
        """Add one tick: each revision's responses per second by class, from 2xx to 5xx."""
        self._move(int(at_s // STEP_S))
        self._ticks[-1] += 1
        for key in self._sums.keys() - rates.keys():
            del self._sums[key]
        for key, classes in rates.items():
            total, errors = sum(rate or 0.0 for rate in classes), classes[-1] or 0.0
            if not total and key not in self._sums:
                continue
            sums = self._sums.setdefault(key, (array("f", [0.0] * STEPS), array("f", [0.0] * STEPS)))
            sums[0][-1] += total
            sums[1][-1] += errors

    def read(self) -> dict[str, Any]:
        """The sums of each revision as JSON, with the number of the newest step and the ticks counted in each step.

        Revisions without requests are left out.
        """
        sums = {
            key: [[round(count, 2) for count in column] for column in columns]
            for key, columns in self._sums.items()
            if any(columns[0])
        }
        return {"step_s": STEP_S, "step": self._step, "ticks": list(self._ticks), "sums": sums}

    def _move(self, step: int) -> None:
        """Begin the step ``step``; earlier steps without a tick are empty.

        After the clock is set back, the current step continues.
        """
        count = min(STEPS, step - self._step)
        if count <= 0:
            return
        self._step = step
        empty = array("f", [0.0] * count)
        for column in (self._ticks, *(column for columns in self._sums.values() for column in columns)):
            del column[:count]
            column.extend(empty)


class Board:
    """The state of one cluster, as the dashboard shows it. ``rows_max`` bounds the history of each revision."""

    def __init__(self, rows_max: int, placement: PlacementSettings | None = None) -> None:
        self.nodes = Nodes(placement or PlacementSettings())
        self.version = 0
        self.history = RevisionHistory(rows_max)
        self.sparklines = Sparklines()
        self.cold = ColdStarts()
        self.marks = Marks()
        self.owners: dict[str, RevisionOwner] = {}
        """The service of each revision, and its pods' memory."""
        self._facts: dict[str, StartFacts] = {}
        self._views: dict[_Key, tuple[int, View]] = {}
        self._gone: deque[tuple[int, _Key]] = deque(maxlen=_GONE_MAX)
        self.revision_pods: dict[str, dict[str, View]] = {}
        """The pods by revision key; without revisions that have no pod."""
        self._revision_of_pod: dict[str, str] = {}
        self._gone_pods: dict[str, deque[View]] = {}
        self._uses: Mapping[str, PodUse] = {}
        self._samples: dict[str, Mapping[str, Any]] = {}
        self._fresh: dict[str, Mapping[str, Any]] = {}
        self._requests: Mapping[str, RequestRates] | None = None
        self._decisions: dict[str, deque[Mapping[str, Any]]] = {}
        self._changed_s: dict[str, float] = {}
        self._rows: dict[str, list[float | None]] = {}

    def put(self, kind: str, key: str, view: View | None) -> None:
        """Store the current view of an object; None deletes it."""
        if kind == "pod":
            self._put_pod(key, view)
            return
        before = self._views.get((kind, key))
        if view is None:
            if before is not None:
                self.version += 1
                del self._views[kind, key]
                self._gone.append((self.version, (kind, key)))
                self._forget(kind, key)
        elif before is None or before[1] != view:
            self.version += 1
            self._views[kind, key] = (self.version, view)
            self.marks.change(kind, key, before=None if before is None else before[1], after=view)

    def sample(self, sample: Mapping[str, Any]) -> None:
        """Store the autoscaler's latest sample of a revision."""
        self._samples[f"{sample['namespace']}/{sample['revision']}"] = sample

    def decision(self, event: Mapping[str, Any]) -> View:
        """Store a decision event of the autoscaler; return the part for the page."""
        key = f"{event['namespace']}/{event['revision']}"
        outcome = event["told"]["outcome"]
        wanted = outcome["gate"]["wanted"]
        seen = {
            "key": key,
            "at_s": event["told"]["since_wall_s"],
            "sentence": event["sentence"],
            "is_change": outcome["apply_count"] is not None,
            "wanted": wanted if isinstance(wanted, int) else None,
        }
        if seen["is_change"]:
            self.cold.record_change(key, seen["at_s"])
            self._changed_s[key] = max(seen["at_s"], self._changed_s.get(key, 0.0))
            self.marks.decide(seen)
        decisions = self._decisions.setdefault(key, deque(maxlen=_DECISIONS_MAX))
        # A reconnected stream repeats recent decisions.
        if all(decision["at_s"] != seen["at_s"] for decision in decisions):
            decisions.append(seen)
        return seen

    def measured(self, uses: Mapping[str, PodUse]) -> None:
        """Replace the last measurements of all pods, by "namespace/name"."""
        self._uses = uses

    def requests(self, seen: Mapping[str, RequestRates] | None) -> None:
        """Store the activators' rates since the last tick; None while no activator responds."""
        self._requests = seen

    def tick(self, at_s: float) -> dict[str, list[float | None]]:
        """Build a row for each revision; return the changed rows."""
        before = self._rows
        self._fresh = {
            key: sample
            for key, sample in self._samples.items()
            if at_s - sample["at_wall_s"] <= _SAMPLE_VALID_S + sample.get("valid_s", 0.0)
        }
        self._rows = {key: self._row(key) for kind, key in self._views if kind == "revision"}
        self.history.add(at_s, self._rows)
        self.sparklines.add(at_s, {key: row[_RATES] for key, row in self._rows.items()})
        return {key: row for key, row in self._rows.items() if row != before.get(key)}

    @property
    def rows(self) -> dict[str, list[float | None]]:
        """The last row of each revision."""
        return self._rows

    def since(self, version: int) -> list[View]:
        """Objects changed or deleted after a version; 0 returns all objects."""
        if self._gone and len(self._gone) == _GONE_MAX and version < self._gone[0][0]:
            version = 0
        changed = [
            {"kind": kind, "key": key, "view": view} for (kind, key), (at, view) in self._views.items() if at > version
        ]
        gone = [
            {"kind": kind, "key": key, "view": None}
            for at, (kind, key) in self._gone
            if at > version > 0 and (kind, key) not in self._views
        ]
        return gone + changed

    def pods(self, revision: str) -> list[View]:
        """The pods of a revision by name, each with requests in flight and usage, which are None without a sample."""
        running = (self._samples.get(revision) or {}).get("pods", {})
        pods = self.revision_pods.get(revision, {})
        return [{**pods[key], "running": running.get(pods[key]["name"]), **self._use_of(key)} for key in sorted(pods)]

    def _use_of(self, pod: str) -> View:
        use = self._uses.get(pod)
        return dict.fromkeys(PodUse._fields) if use is None else use._asdict()

    def pods_of_service(self, namespace: str, service: str) -> list[View]:
        """The pods of a workload, or of all revisions of a service, newest revision first."""
        keys = [
            key
            for (kind, key), (_, view) in self._views.items()
            if kind == "revision" and (view["namespace"], view["service"] or view["name"]) == (namespace, service)
        ]
        return [pod for key in sorted(keys, reverse=True) for _, pod in sorted(self.revision_pods.get(key, {}).items())]

    def gone_pods_of_service(self, namespace: str, service: str) -> list[View]:
        """The most recently deleted pods of a service, latest last."""
        return list(self._gone_pods.get(f"{namespace}/{service}", ()))

    def workload_kinds(self) -> dict[str, str]:
        """The kind of each workload, by "namespace/name"."""
        views = ((key, view) for (kind, key), (_, view) in self._views.items() if kind == "revision")
        return {key: view["kind"] for key, view in views if view.get("kind")}

    def decisions(self, revision: str) -> list[Mapping[str, Any]]:
        """The last decisions about a revision, oldest first."""
        return list(self._decisions.get(revision, ()))

    def changed_s(self) -> dict[str, float]:
        """The time of the last change of each revision's scale, in seconds since the epoch."""
        return self._changed_s

    def present(self, revision: str) -> View | None:
        """The decision shown in the last row of a revision; without a row, the last known decision, or None."""
        sample = self._fresh.get(revision)
        if sample is None or not sample.get("sentence"):
            decisions = self._decisions.get(revision)
            return dict(decisions[-1]) if decisions else None
        decision = {"at_s": sample["at_wall_s"], "sentence": sample["sentence"], "wanted": sample["wanted_count"]}
        return {"key": revision, "is_change": False, **decision}

    def created_s(self, revision: str) -> float:
        """The creation time of a revision, in seconds since the epoch; 0 if unknown.

        Older data belongs to a deleted revision of the same name.
        """
        _, view = self._views.get(("revision", revision), (0, {}))
        return timestamp_s(view.get("created")) or 0.0

    def put_facts(self, revision: str, facts: StartFacts) -> None:
        """Store facts that explain the start times of a revision's pods."""
        self._facts[revision] = facts

    def revisions_of(self, name: str) -> list[str]:
        """The revisions of a service, newest first, or the revision ``name``; empty if both are unknown."""
        if ("revision", name) in self._views:
            return [name]
        views = [(key, view) for (kind, key), (_, view) in self._views.items() if kind == "revision"]
        return sorted((key for key, view in views if f"{view['namespace']}/{view['service']}" == name), reverse=True)

    def cold_starts(self, revision: str, requests: Sequence[ColdRequest]) -> View:
        """The last cold starts of a revision by steps, their median, and advice on how to shorten them."""
        starts = self.cold.starts(
            revision, [request for request in requests if request.revision == revision.partition("/")[2]]
        )
        facts = self._facts.get(revision, StartFacts(service=revision.partition("/")[2]))
        return {"revision": revision, "starts": starts, "median": summary(starts, facts)}

    def last_decisions(self) -> dict[str, View]:
        """The latest decision of each revision, as returned by ``present``."""
        views = {key: self.present(key) for key in self._decisions.keys() | self._fresh.keys()}
        return {key: view for key, view in views.items() if view is not None}

    def _put_pod(self, key: str, view: View | None) -> None:
        revision = None if view is None else f"{view['namespace']}/{view['revision']}"
        before = self._revision_of_pod.pop(key, None)
        if before is not None:
            pods = self.revision_pods.get(before, {})
            old = pods.pop(key, None)
            if view is None and old is not None:
                self._put_gone(before, old)
            if view is not None:
                self.marks.change("pod", key, before=old, after=view)
            if not pods:
                self.revision_pods.pop(before, None)
        if view is not None and revision is not None:
            self.revision_pods.setdefault(revision, {})[key] = view
            self._revision_of_pod[key] = revision

    def _put_gone(self, revision: str, pod: View) -> None:
        _, view = self._views.get(("revision", revision), (0, {}))
        service = f"{pod['namespace']}/{view.get('service')}"
        if ("service", service) in self._views:
            self._gone_pods.setdefault(service, deque(maxlen=_GONE_PODS_MAX)).append(pod)

    def _forget(self, kind: str, key: str) -> None:
        if kind == "service":
            self._gone_pods.pop(key, None)
        if kind == "revision":
            self._samples.pop(key, None)
            self._decisions.pop(key, None)
            self._changed_s.pop(key, None)
            self._facts.pop(key, None)
            self.owners.pop(key, None)
            self.marks.forget(key)
            self.cold.forget(key)

    def _row(self, key: str) -> list[float | None]:
        pods = self.revision_pods.get(key, {}).values()
        ready_count = sum(pod["ready"] and not pod["ending"] for pod in pods)
        starting_count = sum(not pod["ready"] and not pod["ending"] for pod in pods)
        dormant_count = sum(pod["ready"] and pod["dormant"] and not pod["ending"] for pod in pods)
        sample = self._fresh.get(key)
        if sample is None:
            load: list[float | None] = [None] * 4
            desired = is_panic = None
        else:
            load = [sample[name] for name in ("running", "held", "target", "observed_stable")]
            desired, is_panic = sample["wanted_count"], float(sample["is_panic"])
        seen = RequestRates() if self._requests is None else self._requests.get(key, RequestRates())
        if self._requests is not None:
            # The activators count waiting requests exactly; the autoscaler's number counts some of them twice.
            load[1] = seen.waiting
        counts = (float(ready_count), float(starting_count), is_panic, float(dormant_count))
        uses = [use for pod in self.revision_pods.get(key, ()) if (use := self._uses.get(pod)) is not None]
        used = (
            [sum(use.cpu_cores for use in uses), float(sum(use.memory_bytes for use in uses))] if uses else [None] * 2
        )
        row = [*load, desired, *counts, *seen.rates, *seen.quantiles_s, *used]
        return [None if value is None else round(value, 4) for value in row]
