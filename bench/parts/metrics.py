"""What metrics cost: reports, requests and scrapes, with 500 revisions and 5,000 pods.

Pods are a number in a revision's row: 5,000 pods are 10 for each of 500 revisions. The peer of the report is the reporter without
opencensus, which the autoscaler falls back to.
"""

import functools
from collections.abc import Iterator

from bench.parts.timing import Comparison
from serving.core.model.revisionnumbers import PodCounts, RevisionNumbers
from serving.net.metrics.activator import ActivatorMetrics
from serving.net.metrics.autoscaler import AutoscalerMetrics
from serving.net.metrics.reporter import GaugeFamilies, StatsReporter

REVISIONS = 500
PODS = 10
CLASSES = (200, 404, 503)
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
REPORT_MAX_US, REQUEST_MAX_US, SCRAPE_MAX_US = 15, 2, 300_000


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


def rows() -> Iterator[Comparison]:
    """A report, a decision, requests, and scrapes of both daemons."""
    every = [numbers(index) for index in range(REVISIONS)]
    keys = {(one.namespace, one.revision) for one in every}
    reporter = StatsReporter()
    for one in every:
        reporter.report(one)

    families = GaugeFamilies()
    for one in every:
        families.record((one.namespace, one.configuration, one.revision), (PODS, PODS, PODS, 0))
    labels = ("default", "service-7", "service-7-00001")

    yield Comparison(
        name=f"metrics: a report of 4 measures, {REVISIONS} revisions",
        ours=lambda: reporter.report(every[7]),
        peer=lambda: families.record(labels, (PODS, PODS, PODS, 0)),
        us_max=REPORT_MAX_US,
    )
    scaler = AutoscalerMetrics(
        keys=lambda: keys, counts=lambda: {"revisions": REVISIONS}, pods=lambda _: PodCounts(), costs=lambda _: None
    )
    for one in every:
        scaler.decided(one)
    yield Comparison(name="metrics: all numbers of a decision", ours=lambda: scaler.decided(every[7]))
    scrape_scaler = functools.partial(scaler.page.text, "")
    yield Comparison(name="metrics: a scrape of the autoscaler", ours=scrape_scaler, us_max=SCRAPE_MAX_US)

    activator = ActivatorMetrics(
        configuration_of=lambda key: key[1].removesuffix("-00001"),
        keys=lambda: keys,
        inside=lambda: [(key, 70, 3) for key in keys],
    )
    for key in keys:
        of_revision = activator.of(key)
        for status in CLASSES:
            of_revision.ended(status, 0.01, at_s=1.0, traceparent=b"")
        of_revision.waited(0.1)
        of_revision.started_cold(0.1, 0, at_s=1.1)
    key = ("default", "service-7-00001")
    for what, parent in (("a request", b""), ("a request with a trace", TRACEPARENT)):
        ended = functools.partial(activator.of(key).ended, 200, 0.01, at_s=1.0, traceparent=parent)
        yield Comparison(name=f"metrics: {what}", ours=ended, us_max=REQUEST_MAX_US)
    name = f"metrics: a scrape of the activator, {len(CLASSES)} classes each"
    yield Comparison(name=name, ours=functools.partial(activator.page.text, ""), us_max=SCRAPE_MAX_US)
