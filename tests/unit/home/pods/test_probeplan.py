import pytest

from serving.core.model.objects import Object
from serving.home.pods.probeplan import (
    ProbeKind,
    ProbePlan,
    ProbeState,
    ProbeVerdict,
    after_outcome,
    listening_probe,
    probe_plans,
    sidecar_probe_plans,
)

GET = {"httpGet": {"path": "/x", "port": 8080}}


def verdicts(plan: ProbePlan, outcomes: str) -> list[ProbeVerdict]:
    """A verdict after each outcome; "+" is a success."""
    state, results = ProbeState(), []
    for outcome in outcomes:
        state = after_outcome(state, plan, ok=outcome == "+")
        results.append(state.verdict)
    return results


def test_http_readiness_probe_is_left_to_the_queue_proxy() -> None:
    container = {"startupProbe": GET, "livenessProbe": GET, "readinessProbe": GET}
    assert [plan.kind for plan in probe_plans(container)] == [ProbeKind.STARTUP, ProbeKind.LIVENESS]


def test_exec_readiness_probe_is_planned() -> None:
    (plan,) = probe_plans({"readinessProbe": {"exec": {"command": ["test", "-f", "ready"]}, "periodSeconds": 2}})
    assert (plan.kind, plan.command, plan.period_s) == (ProbeKind.READINESS, ("test", "-f", "ready"), 2)


def test_liveness_probe_has_kubernetes_defaults() -> None:
    (plan,) = probe_plans({"livenessProbe": GET})
    assert (plan.initial_delay_s, plan.period_s, plan.success_min, plan.failure_max) == (1, 10, 1, 3)


def test_probe_port_is_replaced_by_the_apps_port() -> None:
    probe = listening_probe({"readinessProbe": GET})
    # None means the app's own port.
    assert (probe.path, probe.port) == ("/x", None)


def test_probe_fails_at_third_consecutive_failure() -> None:
    (plan,) = probe_plans({"livenessProbe": GET})
    assert verdicts(plan, "--+--") == [
        ProbeVerdict.UNKNOWN,
        ProbeVerdict.UNKNOWN,
        ProbeVerdict.PASSED,
        ProbeVerdict.PASSED,
        ProbeVerdict.PASSED,
    ]
    assert verdicts(plan, "+---")[-1] is ProbeVerdict.FAILED


def test_probe_passes_after_consecutive_success_threshold() -> None:
    plan = ProbePlan(kind=ProbeKind.READINESS, probe=listening_probe({}), success_min=2)
    assert verdicts(plan, "+-++") == [
        ProbeVerdict.UNKNOWN,
        ProbeVerdict.UNKNOWN,
        ProbeVerdict.UNKNOWN,
        ProbeVerdict.PASSED,
    ]


def test_sidecar_probes_use_its_own_ports() -> None:
    container = {
        "ports": [{"name": "health", "containerPort": 8882}],
        "startupProbe": {"tcpSocket": {"port": "health"}},
        "livenessProbe": {"grpc": {"port": 8883}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8884}, "periodSeconds": 3},
    }
    plans = sidecar_probe_plans(container)
    assert [(plan.kind.value, plan.port) for plan in plans] == [
        ("startupProbe", 8882),
        ("livenessProbe", 8883),
        ("readinessProbe", 8884),
    ]
    assert (plans[2].probe.path, plans[2].period_s) == ("/ready", 3)


def test_sidecar_exec_probe_has_no_port() -> None:
    assert sidecar_probe_plans({}) == []
    (plan,) = sidecar_probe_plans({"readinessProbe": {"exec": {"command": ["true"]}}})
    assert (plan.command, plan.port) == (("true",), 0)


@pytest.mark.parametrize(("probe_fields", "delay_s"), [({}, 1), ({"initialDelaySeconds": 5}, 5)])
def test_liveness_probe_is_delayed_by_at_least_one_second(probe_fields: Object, delay_s: float) -> None:
    strict = {**GET, "periodSeconds": 1, "failureThreshold": 1, **probe_fields}
    delays = [plan.initial_delay_s for plan in probe_plans({"startupProbe": GET, "livenessProbe": strict})]
    assert delays == [0, delay_s]
