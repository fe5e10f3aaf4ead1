"""The explanation of a decision agrees with its number of pods."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from serving.core.scaling.kpa.decide import KpaState, count_for
from serving.core.scaling.kpa.delay import DelayWindow
from serving.core.scaling.scaler.explain import explain
from tests.unit.core.scaling.scaler.test_explain import LONG_AGO, NOW_S, outcome_of

_AVERAGE = re.compile(r"([\d.]+) in flight .*, target ([\d.e+-]+) each")

# Loads near a multiple of a target, where rounding may change the count.
loads = st.one_of(
    st.floats(0.0, 300.0), st.builds(lambda count, above: 7.0 * count + above, st.integers(0, 40), st.floats(0.0, 0.06))
)
counts = st.integers(min_value=1, max_value=40)
states = st.builds(
    KpaState,
    panic_since_s=st.one_of(st.none(), st.floats(NOW_S - 70.0, NOW_S)),
    panic_count_max=st.integers(0, 40),
    delay=st.one_of(
        st.just(DelayWindow()), st.builds(lambda count: DelayWindow(peaks=((int(NOW_S) // 2 - 3, count),)), counts)
    ),
    start_hold_count=st.integers(0, 40),
)


@given(
    stable=loads,
    panic=loads,
    ready=counts,
    state=states,
    delay_s=st.sampled_from([0.0, 60.0]),
    target=st.sampled_from([0.7, 1.0, 6.3, 7.0, 70.0]),
    least=st.integers(0, 5),
    most=st.integers(0, 30),
)
@example(stable=49.04, panic=0.0, ready=7, state=KpaState(), delay_s=0.0, target=7.0, least=0, most=0)
def test_explained_count_is_stated_or_follows_from_load_and_target(
    *, stable: float, panic: float, ready: int, state: KpaState, delay_s: float, target: float, least: int, most: int
) -> None:
    outcome = outcome_of(
        stable, panic, ready=ready, scale=ready, state=state, gate=LONG_AGO, proposals=(), waiting=0.0, decided=None,
        proved=False, target_value=target, scale_down_delay_s=delay_s, min_scale=least, max_scale=max(least, most) if most else 0,
    )  # fmt: skip
    head, _, why = explain(outcome).partition(": ")
    wanted = int(head.split()[-1])
    match_ = _AVERAGE.search(why)
    assert match_ is not None
    follows = count_for(float(match_[1]), float(match_[2]))
    numbers = {int(number) for number in re.findall(r"(?<![\d.])\d+(?![\d.])", why[match_.end() :])}
    # The gate decides about the last pod and states its own reason.
    is_gate = wanted <= 1 and follows == 0
    assert wanted in numbers or (wanted == follows and not numbers - {wanted}) or is_gate, f"{head}: {why}"
