"""Triggers and the learnt target of a simulated revision."""

import math

import msgspec
import pytest

from serving.core.model.quantity import Resources
from serving.core.scaling.policies.index import ScalingPolicyView, policy_of
from serving.core.settings.annotations import ScalingAnnotations
from serving.tools.simulator.results import RevisionResult, RunLog
from serving.tools.simulator.revision_run import RevisionRun, RunConfig
from serving.tools.simulator.signals import PodUse
from tests.unit.tools.simulator.test_revision_run import config, simulated

USE = PodUse(requested=Resources(cpu_m=200, memory_bytes=2**20), per_request=Resources(cpu_m=200, memory_bytes=2**20))
# Four requests in flight with a limit of ten per pod: the algorithm wants one pod.
STEADY = [5.0 + number / 8 for number in range(1600)]


def scaling_policy(kind: str, **spec: object) -> ScalingPolicyView:
    trigger = {"type": kind, "usagePercent": 50, "timeSeconds": 20}
    # Without a down trigger the policy would not hold any pods.
    down = {"type": kind, "usagePercent": 10, "timeSeconds": 600}
    directions = {
        "up": {"cooldownSeconds": 20, "triggers": [trigger]},
        "down": {"cooldownSeconds": 600, "triggers": [down]},
        "max": 4,
        **spec,
    }
    manifest = {"metadata": {"name": "busy"}, "spec": {"targetRef": {"kind": "Service", "name": "x"}, **directions}}
    policy = policy_of(manifest, lambda _: ())
    assert policy is not None
    assert policy.spec is not None
    return policy


@pytest.mark.parametrize("kind", ["occupancy", "cpu", "mem"])
def test_scaling_policy_trigger_adds_pods(kind: str) -> None:
    quick = config(start_s=0.5)
    plain = simulated(*STEADY, run_config=quick, until_s=300.0)
    led_config = msgspec.structs.replace(quick, scaling_policy=scaling_policy(kind), use=USE)
    led = simulated(*STEADY, run_config=led_config, until_s=300.0)
    assert plain.pod_starts == 1
    # Each pod is occupied, as requests go to pods in turn; one pod's cpu and memory are used four times over.
    assert led.pod_starts == 4


def reasons(run_config: RunConfig) -> list[str]:
    log = RunLog()
    arrivals = iter([(at_s, math.nan) for at_s in STEADY])
    RevisionRun("f", arrivals, msgspec.structs.replace(run_config, log=log), until_s=200.0).run()
    return [moment.reason for moment in log.moments]


def test_unmeasured_cpu_is_no_data() -> None:
    policy = scaling_policy("cpu")
    unmeasured = msgspec.structs.replace(config(), scaling_policy=policy, use=PodUse(requested=USE.requested))
    assert "policy load has no data" in reasons(unmeasured)[-1]
    measured = msgspec.structs.replace(config(), scaling_policy=policy, use=USE)
    assert "at its max 4" in reasons(measured)[-1]


def learning(source: str) -> RevisionResult:
    # A pod is slower beyond two requests at once, as in each burst of ten seconds; nothing but the learnt target says
    # so.
    times_s = [60.0 * burst + number / 6 for burst in range(20) for number in range(60)]
    scaling = ScalingAnnotations(target_source=source)
    slow = msgspec.structs.replace(config(concurrency=0, start_s=1.0, scaling=scaling), knee=2.0)
    return simulated(*times_s, run_config=slow, until_s=1200.0)


def test_learnt_target_scales_by_simulated_response_times() -> None:
    assert learning("shadow").pod_starts == 1
    assert learning("learnt").pod_starts > 1


def test_scaling_policy_schedule_starts_pods_without_requests() -> None:
    schedule = {"start": "* * * * *", "end": "0 0 1 1 *", "min": 2, "name": "always"}
    policy = scaling_policy("occupancy", schedules=[schedule])
    result = simulated(run_config=msgspec.structs.replace(config(), scaling_policy=policy), until_s=300.0)
    assert result.pod_starts == 2
