"""Small builders for tests of the present autoscaler, with Knative's defaults."""

import msgspec

from serving.core.model.nodata import NoData
from serving.core.model.stat import Stat
from serving.core.scaling.kpa.decide import KpaState, ScaleDecision, decide
from serving.core.scaling.kpa.window import Observation
from serving.core.scaling.spec import ScalingSpec, WindowKind
from serving.core.settings.autoscaler import SAFE, KpaQuirks

DEFAULTS = ScalingSpec(
    metric="concurrency",
    target_value=70.0,
    total_value=100.0,
    target_burst_capacity=211.0,
    panic_threshold_ratio=2.0,
    max_scale_up_rate=1000.0,
    max_scale_down_rate=2.0,
    stable_window_s=60.0,
    panic_window_s=6.0,
    window_kind=WindowKind.LINEAR,
    scale_down_delay_s=0.0,
    initial_scale=1,
    activation_scale=1,
    min_scale=0,
    max_scale=0,
    reachable=True,
    progress_deadline_s=600.0,
    enable_scale_to_zero=True,
    scale_to_zero_grace_s=30.0,
    scale_to_zero_pod_retention_s=0.0,
)

CALM = KpaState()
"""State of a scaler without panic or restart."""


def spec_with(**changes: object) -> ScalingSpec:
    """The defaults with some fields changed."""
    return msgspec.structs.replace(DEFAULTS, **changes)


def stat_of(concurrency: float, *, requests: float = 0.0, proxied: float = 0.0, proxied_requests: float = 0.0) -> Stat:
    """A stat of a pod with an old timestamp."""
    return Stat(
        pod="pod-1",
        at_s=-1000.0,
        concurrency=concurrency,
        request_count=requests,
        proxied_concurrency=proxied,
        proxied_request_count=proxied_requests,
    )


def decided(
    state: KpaState = CALM,
    *,
    load: float,
    panic_load: float | None = None,
    ready_count: int = 1,
    spec: ScalingSpec = DEFAULTS,
    now_s: float = 0.0,
    quirks: KpaQuirks = SAFE,
) -> tuple[KpaState, ScaleDecision]:
    """Decide on a load; ``panic_load`` is the same by default."""
    observed = Observation(stable=load, panic=load if panic_load is None else panic_load)
    state, decision = decide(state, observed=observed, ready_count=ready_count, spec=spec, now_s=now_s, quirks=quirks)
    assert not isinstance(decision, NoData)
    return state, decision
