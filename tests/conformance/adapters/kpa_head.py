"""Scenarios of today's autoscaler: load over both windows and ready pods in, decisions out.

Source: knative/serving 98e5ef90, pkg/autoscaler/scaling, run for these cases. Translated: the decider's fields into a
``ScalingSpec`` (the fields that no decision of theirs reads get values that cannot matter), steps with ``now`` into
decisions, steps with ``update_spec`` into the next spec, which has no answer, and ``error`` into ``NoData`` on the pods
("ready") or on the load. On an invalid step the counts are 0 and the state is what it was.
"""

from typing import Any

from serving.core.model.nodata import NoData
from serving.core.scaling.kpa.decide import KpaState, decide, starting_state
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.spec import ScalingSpec, WindowKind, panic_window_s
from serving.core.settings.autoscaler import ORIGINAL
from tests.conformance.compare import same

_PANIC_WINDOW_RATIO = 0.1
_PODS_UNKNOWN = "ready"


def expected(case: dict[str, Any]) -> object:
    """The original's results."""
    return case["expect"]


def result_of(case: dict[str, Any]) -> object:
    """This project's results, step by step."""
    fields = dict(case["spec"])
    spec = _spec(fields)
    start_ready = case.get("start_ready") or 0
    state = starting_state(
        ready_count=start_ready, present_scale=start_ready, spec=spec, now_s=case["start"], quirks=ORIGINAL
    )
    answers = []
    for step in case["steps"]:
        if "update_spec" in step:
            fields |= step["update_spec"]
            spec = _spec(fields)
        else:
            state, result = _step(state, step, spec)
            answers.append(result)
    return answers


def agrees(expected: object, value: object) -> bool:
    """Whether both are equal: whole numbers and flags need no tolerance."""
    return same(expected, value)


def _step(state: KpaState, step: dict[str, Any], spec: ScalingSpec) -> tuple[KpaState, dict[str, object]]:
    error = step.get("error")
    failed = NoData(missing=error) if error else None
    observed = Observation(stable=step.get("observed_stable", 0.0), panic=step.get("observed_panic", 0.0))
    state, decision = decide(
        state,
        observed=failed if failed and error != _PODS_UNKNOWN else observed,
        ready_count=failed if failed and error == _PODS_UNKNOWN else step.get("ready_pods", 0),
        spec=spec,
        now_s=step["now"],
        quirks=ORIGINAL,
    )
    is_valid = not isinstance(decision, NoData)
    return state, {
        "desired": 0 if isinstance(decision, NoData) else decision.desired_count,
        "excess_burst_capacity": 0 if isinstance(decision, NoData) else decision.excess_burst_capacity,
        "panicking": state.panic_since_s is not None,
        "valid": is_valid,
        "max_panic": state.panic_count_max,
    }


def _spec(fields: dict[str, Any]) -> ScalingSpec:
    return ScalingSpec(
        metric=(fields["scaling_metric"] or "concurrency"),
        target_value=fields["target_value"],
        total_value=fields["total_value"],
        target_burst_capacity=fields["target_burst_capacity"],
        panic_threshold_ratio=fields["panic_threshold"],
        max_scale_up_rate=fields["max_scale_up_rate"],
        max_scale_down_rate=fields["max_scale_down_rate"],
        stable_window_s=fields["stable_window_s"],
        panic_window_s=panic_window_s(fields["stable_window_s"], _PANIC_WINDOW_RATIO),
        window_kind=WindowKind.LINEAR,
        scale_down_delay_s=fields["scale_down_delay_s"],
        initial_scale=fields["initial_scale"],
        activation_scale=max(1, fields["activation_scale"]),
        min_scale=0,
        max_scale=0,
        reachable=fields["reachable"],
        progress_deadline_s=600.0,
        enable_scale_to_zero=True,
        scale_to_zero_grace_s=30.0,
        scale_to_zero_pod_retention_s=0.0,
    )
