import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.knative import SERVICE_LABEL
from serving.tools.dashboard.archive import Archive, history_steps
from serving.tools.dashboard.board import COLUMNS, RevisionHistory
from serving.tools.dashboard.cost import (
    RevisionOwner,
    RevisionUsage,
    ServiceCost,
    ServiceUsage,
    UsageReport,
    knative_ratios,
    owner_of,
    service_costs,
    summary,
    workload_owner,
)

HOUR_S = 3600.0
GIB = 2**30
DAY_S = 86_400.0
# A whole multiple of every step.
NOW_S = 1_800_000_000
HELLO = "shop/hello"
OWNERS = {
    "shop/hello-1": RevisionOwner(HELLO, GIB),
    "shop/hello-2": RevisionOwner(HELLO, GIB // 2),
    "team/hello-1": RevisionOwner("team/hello", 0),
}
Pods = st.fixed_dictionaries({}, optional={key: st.lists(st.integers(0, 3), min_size=1, max_size=30) for key in OWNERS})


def used(pods_hours: dict[str, float], *, absent_hours: float = 0.0) -> UsageReport:
    revisions = [
        RevisionUsage(revision=key, owner=OWNERS[key], pod_s=hours * HOUR_S) for key, hours in pods_hours.items()
    ]
    services = {revision_usage.owner.service for revision_usage in revisions}
    return UsageReport(
        revisions,
        [
            ServiceUsage(service=service, known_s=4 * HOUR_S, absent_s=absent_hours * HOUR_S)
            for service in sorted(services)
        ],
    )


def story(revision: str, policy: str, *, adaptive: float, knative: float) -> dict[str, Any]:
    costs = {"adaptive_pod_seconds": adaptive, "knative_pod_seconds": knative}
    return {"namespace": "shop", "revision": revision, "policy": policy, "costs": costs}


def cost_of(usage: UsageReport, *stories: dict[str, Any], **prices: float) -> ServiceCost:
    (service_cost,) = service_costs(usage, ratios=knative_ratios(stories), prices=prices)
    return service_cost


def test_service_cost_sums_its_revisions_at_the_prices() -> None:
    service_cost = cost_of(
        used({"shop/hello-1": 2.0, "shop/hello-2": 1.0}, absent_hours=1.5),
        story("other", "", adaptive=1, knative=2),
        pod_hour=3.0,
        gib_hour=6.0,
    )
    assert (service_cost.namespace, service_cost.service, service_cost.known_hours) == ("shop", "hello", 4.0)
    assert (service_cost.pod_hours, service_cost.gib_hours) == (3.0, 2.5)
    assert service_cost.price == 3.0 * 3.0 + 6.0 * 2.5
    # The absent time is priced as a pod of the newest revision.
    assert service_cost.always_on_pod_hours == 4.5
    assert service_cost.always_on_price == service_cost.price + 1.5 * (3.0 + 0.5 * 6.0)
    assert (service_cost.knative_pod_hours, service_cost.knative_price) == (None, None)


def test_knative_estimate_is_used_only_for_revisions_under_adaptive_policy() -> None:
    stories = (
        story("hello-1", "adaptive", adaptive=100.0, knative=150.0),
        story("hello-2", "knative", adaptive=9, knative=8),
    )
    usage = used({"shop/hello-1": 2.0, "shop/hello-2": 1.0})
    free = cost_of(usage, *stories, pod_hour=0.0, gib_hour=0.0)
    assert (free.price, free.always_on_price, free.knative_price) == (None, None, None)
    assert free.knative_pod_hours == 2.0 * 1.5 + 1.0
    assert cost_of(usage, *stories, pod_hour=2.0).knative_price == 2.0 * 4.0
    nothing = story("hello-1", "adaptive", adaptive=0.0, knative=5.0)
    assert cost_of(used({"shop/hello-1": 0.0}), nothing).knative_pod_hours == 0.0


def test_services_are_sorted_and_those_without_revisions_skipped() -> None:
    usage = used({"team/hello-1": 1.0, "shop/hello-1": 1.0})
    usage.services.append(ServiceUsage(service="shop/gone", known_s=1.0, absent_s=1.0))
    new_service_costs = service_costs(usage, ratios={}, prices={})
    assert [(service_cost.namespace, service_cost.service) for service_cost in new_service_costs] == [
        ("shop", "hello"),
        ("team", "hello"),
    ]


def test_revision_owner_is_its_service_or_itself() -> None:
    containers = [{"resources": {"requests": {"memory": "1Gi"}}}, {"resources": {"limits": {"memory": "1Gi"}}}]
    metadata = {"namespace": "shop", "name": "hello-1", "labels": {SERVICE_LABEL: "hello"}}
    assert owner_of({"metadata": metadata, "spec": {"containers": containers}}) == RevisionOwner(HELLO, 2 * GIB)
    assert owner_of({"metadata": {"namespace": "shop", "name": "lone"}}) == RevisionOwner("shop/lone", 0)


def expected(pods: dict[str, list[int]], step_s: float, *, from_s: float, to_s: float) -> UsageReport:
    """The usage of rows every ``step_s``; the last row of each revision ends now."""
    revisions: list[RevisionUsage] = []
    services: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for key, counts in pods.items():
        times = [NOW_S - step_s * (len(counts) - place) for place in range(len(counts))]
        rows = [(at_s, count) for at_s, count in zip(times, counts, strict=True) if from_s <= at_s < to_s]
        revisions.append(RevisionUsage(revision=key, owner=OWNERS[key], pod_s=sum(count for _, count in rows) * step_s))
        for at_s, count in rows:
            services[OWNERS[key].service][at_s] += count
    return UsageReport(
        revisions,
        [
            ServiceUsage(
                service=service,
                known_s=len(rows) * step_s,
                absent_s=sum(max(0.0, 1.0 - count) for count in rows.values()) * step_s,
            )
            for service, rows in services.items()
        ],
    )


def in_order(usage: UsageReport) -> tuple[list[Any], list[Any]]:
    """Drop entries without a row in the range, and sort."""
    revisions = sorted(
        (revision_usage for revision_usage in usage.revisions if revision_usage.pod_s),
        key=lambda revision_usage: revision_usage.revision,
    )
    return revisions, sorted(
        (service_usage for service_usage in usage.services if service_usage.known_s),
        key=lambda service_usage: service_usage.service,
    )


def rows_at(pods: dict[str, list[int]], before: int) -> dict[str, list[float | None]]:
    """The rows that are ``before`` steps before now."""
    return {
        key: [float(counts[-before]) if name == "ready" else None for name in COLUMNS]
        for key, counts in pods.items()
        if before <= len(counts)
    }


@given(pods=Pods, begin=st.integers(0, 30), end=st.integers(0, 30))
def test_usage_of_the_history_in_memory_is_summed(pods: dict[str, list[int]], begin: int, end: int) -> None:
    history = RevisionHistory(1000)
    for before in range(30, 0, -1):
        history.add(NOW_S - 2.0 * before, rows_at(pods, before))
    history.add(NOW_S, rows_at({key: [0] for key in pods}, 1))
    span = {"from_s": NOW_S - 2.0 * max(begin, end), "to_s": NOW_S - 2.0 * min(begin, end)}
    report = history.usage(OWNERS, **span)
    assert in_order(report) == in_order(expected(pods, 2.0, **span))
    assert history.usage({}, **span) == UsageReport([], [])


def test_empty_history_has_no_usage() -> None:
    assert RevisionHistory(10).usage(OWNERS, from_s=0, to_s=NOW_S) == UsageReport([], [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@given(pods=Pods, begin=st.integers(0, 30), end=st.integers(0, 30))
def test_usage_of_the_history_on_disk_is_summed(folder: Path, pods: dict[str, list[int]], begin: int, end: int) -> None:
    (folder / "history.db").unlink(missing_ok=True)
    archive = Archive(folder / "history.db", history_steps(14), bytes_max=2**30)
    try:
        for before in range(30, 0, -1):
            archive.put(NOW_S - 5 * before, rows_at(pods, before), (), owners=OWNERS)
        archive.put(NOW_S - 5, {"shop/no-owner": [1.0] * len(COLUMNS)}, ())
        span = {"from_s": float(NOW_S - 5 * max(begin, end)), "to_s": float(NOW_S - 5 * min(begin, end))}
        report = archive.usage(**span, now_s=NOW_S)
    finally:
        archive.close()
    assert in_order(report) == in_order(expected(pods, 5.0, **span))


def test_usage_over_mixed_steps_is_complete_after_a_restart(tmp_path: Path) -> None:
    path, key = tmp_path / "history.db", "shop/hello-1"
    row: list[float | None] = [2.0 if name == "ready" else None for name in COLUMNS]
    archive = Archive(path, history_steps(14), bytes_max=2**30)
    # The last step of ten minutes has not ended.
    end_s = NOW_S + 250
    for at_s in range(NOW_S - 6 * 3600, end_s, 5):
        archive.put(at_s, {key: row}, (), owners=OWNERS)
        if at_s % 60 == 0:
            archive.roll(at_s)
    archive.close()
    archive = Archive(path, history_steps(14), bytes_max=2**30)
    report = archive.usage(from_s=NOW_S - 9 * DAY_S, to_s=end_s, now_s=end_s)
    archive.close()
    (revision,), (service,) = report.revisions, report.services
    assert (revision.owner, service.service, service.absent_s) == (OWNERS[key], HELLO, 0.0)
    assert math.isclose(revision.pod_s, 2 * (6 * HOUR_S + 250))
    assert math.isclose(service.known_s, 6 * HOUR_S + 250)


def table(*rows: tuple[float, dict[str, float | None]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {name: [values.get(name) for _, values in rows] for name in COLUMNS}
    return {"at_s": [at_s for at_s, _ in rows], **columns}


def test_summary_weights_rows_by_their_duration() -> None:
    stats_summary = summary(
        "hello-00001",
        table(
            (0, {"ready": 2, "rps_2xx": 1.5, "rps_5xx": 0.5, "p99_s": 0.2}),
            (60, {"ready": 4, "rps_2xx": 1, "p99_s": 0.1}),
            # The dashboard did not run, for an hour.
            (120, {}),
            (3720, {"ready": 0, "rps_2xx": 2}),
        ),
    )
    # The last row counts as long as the one before it, at most ten minutes.
    assert (stats_summary.requests, stats_summary.errors) == (90 + 30 + 60 + 1200, 30)
    assert (stats_summary.pods_max, stats_summary.p99_max_s) == (4, 0.2)
    assert math.isclose(stats_summary.pod_hours, (2 * 60 + 4 * 60) / 3600)
    assert math.isclose(stats_summary.pods_mean, (2 * 60 + 4 * 60) / 720)


def test_single_row_has_no_duration() -> None:
    stats_summary = summary("hello-00001", table((5, {"ready": 1, "rps_2xx": 3})))
    assert (stats_summary.requests, stats_summary.pods_mean, stats_summary.p99_max_s) == (0, 0.0, None)


def test_workload_cost_has_its_kind_and_pod_memory() -> None:
    resources = {"requests": {"memory": "1Gi"}}
    pod = {"metadata": {"namespace": "shop", "name": "p"}, "spec": {"containers": [{"resources": resources}]}}
    assert workload_owner(pod, "hello") == RevisionOwner(HELLO, GIB)
    usage = used({"shop/hello-1": 1.0, "team/hello-1": 1.0})
    new_service_costs = service_costs(usage, ratios={}, prices={}, kinds={HELLO: "Deployment"})
    assert [(cost.service, cost.namespace, cost.kind) for cost in new_service_costs] == [
        ("hello", "shop", "Deployment"),
        ("hello", "team", "Service"),
    ]
