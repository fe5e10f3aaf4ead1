"""Policies compared on one workload: runs of every function, added up, and interpolated at equal pod-seconds.

Input: the functions of a trace and what is simulated; output: one record a policy. Functions are independent of each other, so
that they are shared out over processes.
"""

import bisect
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from serving.scaling.resolve import resolve
from serving.scaling.spec import ScalingSpec
from serving.settings.annotations import ScalingAnnotations
from serving.settings.autoscaler import AutoscalerSettings
from serving.simulator.policies import POLICIES, DialPosition
from serving.simulator.revision_run import RevisionRun, RunConfig, RunResult, lognormal
from serving.simulator.trace import FunctionTrace

__all__ = ["EqualPodSeconds", "PolicyReport", "ServiceTimes", "Workload", "at_equal_pod_seconds", "report_of"]

_HOUR_S = 3600.0


class ServiceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests take: a constant, or the median and 99th percentile of each function."""

    constant_s: float = 0.25
    by_function: Mapping[str, tuple[float, float]] = {}

    def of(self, function: str, seed: int) -> Callable[[], float]:
        """A source of times for one function."""
        known = self.by_function.get(function)
        if known is None:
            return lambda: self.constant_s
        dice = random.Random(f"{seed}:{function}")  # noqa: S311 - a simulated world
        return lognormal(*known, dice)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated, but for the policy."""

    functions: Sequence[FunctionTrace]
    length_s: float
    settings: AutoscalerSettings = AutoscalerSettings()
    scaling: ScalingAnnotations = ScalingAnnotations()
    service: ServiceTimes = ServiceTimes()
    container_concurrency: int = 10
    start_s: float = 2.0
    seed: int = 1


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy did on a workload; counts are sums, waits are over all requests."""

    requests: int
    cold_requests: int
    pod_starts: int
    pod_seconds: float
    wasted_pod_seconds: float
    wait_p50_s: float
    wait_p99_s: float
    wait_p999_s: float
    late_share: float
    flaps_per_hour: float
    refused: int
    per_revision: Mapping[str, float]


class EqualPodSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Changes against the first policy at its pod-seconds, as ratios: -0.3 is 30 % fewer. None where its curve does not reach."""

    cold_change: float | None
    wait_p99_change: float | None
    late_change: float | None
    flaps_change: float | None


def report_of(
    workload: Workload,
    policy: str,
    *,
    jobs: int = 1,
    position: DialPosition | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> PolicyReport:
    """Run every function under a policy."""
    settings = POLICIES[policy].change(workload.settings)
    if position is not None:
        settings = position.change(settings)
    spec = resolve(settings, workload.scaling, container_concurrency=workload.container_concurrency, reachable=True)
    job = _Job(workload=workload, settings=settings, spec=spec)
    results: list[RunResult] = []
    for result in _run_all(job, jobs):
        results.append(result)
        if on_progress is not None:
            on_progress(len(results))
    return _report(results, workload.length_s)


def at_equal_pod_seconds(first: PolicyReport, curve: Iterable[PolicyReport]) -> EqualPodSeconds:
    """The changes of a policy whose dial was swept, on its curve at the pod-seconds of the first policy."""
    points = sorted(curve, key=lambda one: one.pod_seconds)

    def change(value: Callable[[PolicyReport], float]) -> float | None:
        found = _interpolated([(one.pod_seconds, value(one)) for one in points], first.pod_seconds)
        base = value(first)
        return None if found is None or not base else found / base - 1

    return EqualPodSeconds(
        cold_change=change(lambda one: one.cold_requests),
        wait_p99_change=change(lambda one: one.wait_p99_s),
        late_change=change(lambda one: one.late_share),
        flaps_change=change(lambda one: one.flaps_per_hour),
    )


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    workload: Workload
    settings: AutoscalerSettings
    spec: ScalingSpec


# What the processes of a pool work on; set before they are forked, so that no trace is sent through a pipe.
_JOBS: list[_Job] = []


def _run_all(job: _Job, jobs: int) -> Iterator[RunResult]:
    indices = range(len(job.workload.functions))
    if jobs <= 1 or len(indices) <= 1:
        yield from (_run(job, index) for index in indices)
        return
    _JOBS[:] = [job]
    # The busiest functions first, so that no process is left with them at the end.
    order = sorted(indices, key=lambda index: -len(job.workload.functions[index].arrivals_s))
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_run_forked, order, chunksize=8)


def _run_forked(index: int) -> RunResult:
    return _run(_JOBS[0], index)


def _run(job: _Job, index: int) -> RunResult:
    workload = job.workload
    trace = workload.functions[index]
    config = RunConfig(
        settings=job.settings,
        spec=job.spec,
        container_concurrency=workload.container_concurrency,
        start_s=workload.start_s,
    )
    service_s = workload.service.of(trace.name, workload.seed)
    return RevisionRun(trace, config, service_s=service_s, until_s=workload.length_s).run()


def _report(results: Sequence[RunResult], length_s: float) -> PolicyReport:
    requests = sum(one.requests for one in results)
    waits = sorted(wait_s for one in results for wait_s in one.waits_s)
    hours = max(length_s, 1.0) / _HOUR_S
    return PolicyReport(
        requests=requests,
        cold_requests=sum(one.cold_requests for one in results),
        pod_starts=sum(one.pod_starts for one in results),
        pod_seconds=round(sum(one.pod_seconds for one in results), 3),
        wasted_pod_seconds=round(sum(one.wasted_pod_seconds for one in results), 3),
        wait_p50_s=_percentile(waits, requests, 0.5),
        wait_p99_s=_percentile(waits, requests, 0.99),
        wait_p999_s=_percentile(waits, requests, 0.999),
        late_share=sum(one.late for one in results) / requests if requests else 0.0,
        flaps_per_hour=sum(one.flaps for one in results) / hours,
        refused=sum(one.refused for one in results),
        per_revision=_medians([one for one in results if one.requests]),
    )


def _medians(results: Sequence[RunResult]) -> Mapping[str, float]:
    if not results:
        return {}
    shares = [one.cold_requests / one.requests for one in results]
    return {
        "cold_requests": statistics.median(one.cold_requests for one in results),
        "cold_share": statistics.median(shares),
        "cold_share_p75": statistics.quantiles(shares, n=4)[2] if len(shares) > 1 else shares[0],
        "pod_starts": statistics.median(one.pod_starts for one in results),
        "pod_seconds": statistics.median(one.pod_seconds for one in results),
        "wasted_pod_seconds": statistics.median(one.wasted_pod_seconds for one in results),
    }


def _percentile(waits: Sequence[float], requests: int, share: float) -> float:
    """Of all requests, of which those that are not in ``waits`` did not wait."""
    place = math.ceil(share * requests) - 1 - (requests - len(waits))
    return waits[min(place, len(waits) - 1)] if place >= 0 and waits else 0.0


def _interpolated(points: Sequence[tuple[float, float]], at: float) -> float | None:
    """The value of a curve at a place; None outside of it."""
    places = [place for place, _ in points]
    # A hair beside the curve is on it: the sums of two runs differ in their last bits.
    if not points or not places[0] * (1 - 1e-9) <= at <= places[-1] * (1 + 1e-9):
        return None
    right = min(max(bisect.bisect_left(places, at), 1), len(points) - 1)
    if len(points) == 1:
        return points[0][1]
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (min(max(at, x0), x1) - x0) / (x1 - x0)
