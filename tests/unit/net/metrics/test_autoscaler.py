import pytest

from serving.core.model.revisionnumbers import PodCounts, PolicyCosts, RevisionNumbers
from serving.net.metrics.autoscaler import AutoscalerMetrics
from serving.net.metrics.reporter import StatsReporter
from tests.unit.net.metrics.builders import numbers

LABELS = '{k8s_namespace_name="default",kn_configuration_name="hello",kn_revision_name="hello-00001"}'
KEY = ("default", "hello-00001")
COSTS = {
    KEY: PolicyCosts(
        adaptive_pod_seconds=600.0,
        adaptive_cold_requests=3.0,
        knative_pod_seconds=900.0,
        knative_cold_requests=5.0,
        covered_s=3600.0,
    )
}


def new_metrics(*keys: tuple[str, str]) -> AutoscalerMetrics:
    return AutoscalerMetrics(
        keys=lambda: keys,
        counts=lambda: {"revisions": 1, "odd_total": 2},
        pods=lambda _: PodCounts(not_ready=4, pending=5, terminating=6, dormant=2),
        costs=COSTS.get,
    )


def test_metrics_page_has_numbers_of_last_decision() -> None:
    metrics = new_metrics(KEY)
    metrics.decided(numbers(stable_load=1.5, panic_load=4.0, target_load=7.0, excess_burst_capacity=-3))
    page = metrics.page.text("")
    for line in (
        f"kn_revision_pods_desired{LABELS} 3.0",
        f"kn_revision_concurrency_stable{LABELS} 1.5",
        f"kn_revision_capacity_excess{LABELS} -3.0",
        f"kn_revision_pods_not_ready_count{LABELS} 4.0",
        f"kn_revision_pods_pending_count{LABELS} 5.0",
        f"kn_revision_pods_terminating_count{LABELS} 6.0",
        f"serving_revision_pods_dormant{LABELS} 2.0",
        'serving_decisions_total{rule="stable"} 1.0',
        "autoscaler_revisions 1.0",
        "# TYPE autoscaler_odd_total counter",
    ):
        assert line in page
    for policy, pod_seconds, cold in (("adaptive", 600.0, 3.0), ("knative", 900.0, 5.0)):
        labels = LABELS.replace("}", f',policy="{policy}"}}')
        assert f"serving_policy_day_pod_seconds{labels} {pod_seconds}" in page
        assert f"serving_policy_day_cold_requests{labels} {cold}" in page
    assert "kn_revision_rps_stable{" not in page
    assert "autoscaler_desired_pods" not in page


def test_page_read_records_only_last_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[RevisionNumbers] = []
    monkeypatch.setattr(StatsReporter, "report", lambda _, numbers: recorded.append(numbers))
    metrics = new_metrics(KEY)
    for stable_load in (1.5, 1.5, 2.0, 1.5):
        metrics.decided(numbers(stable_load=stable_load))
    assert 'serving_decisions_total{rule="stable"} 4.0' in metrics.page.text("")
    assert [reported.stable_load for reported in recorded] == [1.5]


def test_desired_pods_keep_last_value_without_data() -> None:
    metrics = new_metrics(KEY)
    metrics.decided(numbers(desired_count=3))
    metrics.decided(numbers(desired_count=None, ready_count=2))
    page = metrics.page.text("")
    assert f"kn_revision_pods_desired{LABELS} 3.0" in page
    assert f"kn_revision_pods_count{LABELS} 2.0" in page


def test_deleted_revision_is_not_on_the_page() -> None:
    metrics = new_metrics()
    metrics.decided(numbers())
    assert "hello-00001" not in metrics.page.text("")


def test_rows_are_bounded_without_page_reads() -> None:
    metrics = new_metrics(("default", "r0"))
    for index in range(1000):
        metrics.decided(numbers(revision=f"r{index}"))
    assert len(metrics._latest) < 200
