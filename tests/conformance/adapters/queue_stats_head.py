"""Cases of the request statistics in Knative's proxies (knative/networking pkg/http/stats, as of serving 98e5ef90).

Format: ``start``; ``events`` in the order of the calls, ["in" | "out" | "pin" | "pout" | "report", time], where the p
stands for proxied and times may go back; ``expect`` per report [average, proxied average, count, proxied count].
Averages within 1e-9, counts exact.
"""

from typing import Any

from serving.core.settings.queueproxy import ORIGINAL
from serving.core.traffic.meter import Meter
from tests.conformance.compare import same

Case = dict[str, Any]
Row = list[float]
AVERAGE_ABSOLUTE = 1e-9


def expected(case: Case) -> list[Row]:
    """One row per report."""
    rows: list[Row] = case["expect"]
    return rows


def result_of(case: Case) -> list[Row]:
    """Make the calls in order and note each report."""
    meter = Meter(now_s=case["start"], quirks=ORIGINAL)
    rows: list[Row] = []
    for event, at_s in case["events"]:
        match event:
            case "in" | "pin":
                meter.arrive(at_s, proxied=event == "pin")
            case "out" | "pout":
                meter.exit(at_s, proxied=event == "pout")
            case "report":
                report = meter.report(at_s)
                averages = [report.concurrency, report.proxied_concurrency]
                rows.append([*averages, report.request_count, report.proxied_request_count])
            case unknown:
                raise ValueError(unknown)
    return rows


def agrees(wanted: list[Row], rows: list[Row]) -> bool:
    """Whether both have as many reports, averages within the tolerance, and equal counts."""
    return len(wanted) == len(rows) and all(
        same(first[:2], other[:2], absolute=AVERAGE_ABSOLUTE) and same(first[2:], other[2:])
        for first, other in zip(wanted, rows, strict=True)
    )
