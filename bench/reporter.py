"""What metrics cost: a report of the stats reporter, a request's rows, and a scrape, with 500 revisions and 5,000 pods.

    python bench/reporter.py

Limits (issue 6): 15 µs a report, 2 µs a request, 300 ms a scrape. Pods are a number in a revision's row: 5,000 pods are 10
for each of 500 revisions. Beside the report stands what opencensus costs as it comes, with its export step.
"""

import functools
import time
from collections.abc import Callable

from opencensus.stats.measure_to_view_map import MeasureToViewMap

from serving.metrics import reporter as module
from serving.metrics.activator import ActivatorMetrics
from serving.metrics.autoscaler import AutoscalerMetrics
from serving.metrics.reporter import StatsReporter
from serving.model.revisionnumbers import PodCounts, RevisionNumbers

REVISIONS = 500
PODS = 10
CLASSES = (200, 404, 503)
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def numbers(index: int) -> RevisionNumbers:
    """A decision about one of the revisions."""
    return RevisionNumbers(
        namespace="default",
        configuration=f"service-{index}",
        revision=f"service-{index}-00001",
        desired_count=PODS,
        requested_count=PODS,
        ready_count=PODS,
        is_panic=index % 2 == 0,
        rule="stable",
        stable_load=7.0 * PODS,
        panic_load=6.5 * PODS,
        target_load=7.0,
        excess_burst_capacity=-3,
    )


def per_call_us(call: Callable[[], object], calls: int) -> float:
    """Best of three runs."""
    best_s = float("inf")
    for _ in range(3):
        begun_s = time.perf_counter()
        for _ in range(calls):
            call()
        best_s = min(best_s, time.perf_counter() - begun_s)
    return best_s / calls * 1e6


def main() -> None:
    """Print the figures."""
    every = [numbers(index) for index in range(REVISIONS)]
    keys = {(one.namespace, one.revision) for one in every}
    reporter = StatsReporter()
    for one in every:
        reporter.report(one)
    report_us = per_call_us(lambda: reporter.report(every[7]), 2000)
    print(f"report of 4 measures, {REVISIONS} revisions: {report_us:.1f} us")
    no_export = module._Views.export  # noqa: SLF001 - put back below
    module._Views.export = MeasureToViewMap.export  # type: ignore[method-assign] # noqa: SLF001 - as opencensus comes
    naive_us = per_call_us(lambda: reporter.report(every[7]), 5)
    module._Views.export = no_export  # type: ignore[method-assign] # noqa: SLF001 - as it was
    print(f"the same with opencensus's export step: {naive_us:.0f} us, {naive_us / report_us:.0f} times as much")

    scaler = AutoscalerMetrics(
        keys=lambda: keys, counts=lambda: {"revisions": REVISIONS}, pods=lambda _: PodCounts(), costs=lambda _: None
    )
    for one in every:
        scaler.decided(one)
    print(f"a decision, all of its numbers: {per_call_us(lambda: scaler.decided(every[7]), 2000):.1f} us")
    print(f"scrape of the autoscaler: {per_call_us(lambda: scaler.page.text(''), 3) / 1000:.0f} ms")

    activator = ActivatorMetrics(
        configuration_of=lambda key: key[1].removesuffix("-00001"),
        keys=lambda: keys,
        inside=lambda: [(key, 70, 3) for key in keys],
    )
    for key in keys:
        rows = activator.of(key)
        for status in CLASSES:
            rows.ended(status, 0.01, at_s=1.0, traceparent=b"")
        rows.waited(0.1)
        rows.started_cold(0.1, 0, at_s=1.1)
    key = ("default", "service-7-00001")
    for what, parent in (("a request", b""), ("a request with a trace", TRACEPARENT)):
        ended = functools.partial(activator.of(key).ended, 200, 0.01, at_s=1.0, traceparent=parent)
        print(f"{what}: {per_call_us(ended, 50_000):.2f} us")
    text = activator.page.text("")
    scrape_ms = per_call_us(lambda: activator.page.text(""), 3) / 1000
    print(f"scrape of the activator, {len(CLASSES)} classes each: {scrape_ms:.0f} ms, {len(text) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
