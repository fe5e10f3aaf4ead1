"""The pauses between an app's probes, and its readiness."""

import pytest

from serving.core.settings.queueproxy import QueueProxySettings
from serving.queueproxy.io.readiness import Readiness, after_attempt, at_start
from serving.queueproxy.podspec import Probe

SETTINGS = QueueProxySettings()


def after(state: Readiness, *outcomes: bool, probe: Probe | None = None) -> Readiness:
    for ok in outcomes:
        state = after_attempt(state, ok=ok, probe=probe or Probe(), settings=SETTINGS)
    return state


def test_probe_pauses_of_starting_app_grow_from_2_to_50_ms() -> None:
    state = at_start(SETTINGS)
    pauses = [state.pause_s or 0]
    for _ in range(35):
        state = after(state, False)
        pauses.append(state.pause_s or 0)
    rounded = [round(pause * 1000, 1) for pause in pauses]
    assert (rounded[:5], rounded[-2:]) == ([2, 2.2, 2.4, 2.7, 2.9], [50, 50])
    # Readiness is detected at most a tenth of the elapsed time plus the first pause late.
    assert all(pause_s <= 0.1 * sum(pauses[:number]) + 0.0021 for number, pause_s in enumerate(pauses))


def test_one_success_makes_app_ready() -> None:
    assert after(at_start(SETTINGS), False, True) == Readiness(is_ready=True, pause_s=10.0)


def test_period_of_0_stops_probing_after_success() -> None:
    assert after(at_start(SETTINGS), True, probe=Probe(period_s=0)).pause_s is None


def test_ready_app_becomes_unready_after_3_consecutive_failures() -> None:
    ready = after(at_start(SETTINGS), True)
    assert after(ready, False, False).is_ready
    assert after(ready, False, False, True, False, False).is_ready
    assert after(ready, False, False, False) == at_start(SETTINGS)


@pytest.mark.parametrize("pause_s", [None, 0.05])
def test_pause_is_at_most_its_maximum(pause_s: float | None) -> None:
    state = after(Readiness(is_ready=False, pause_s=pause_s), False)
    assert state.pause_s is not None
    assert state.pause_s <= SETTINGS.probe_pause_max_s
