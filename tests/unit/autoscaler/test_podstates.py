import msgspec
import pytest

from serving.autoscaler.podstates import PodState, PodStates, state_of
from serving.model.revisionnumbers import PodCounts
from serving.scaling.revision import ScaledPod

READY = ScaledPod(name="p", key=("default", "r"), is_ready=True, is_ending=False, deletion_cost="")


def pod(name: str = "p", *, is_ready: bool = False, is_ending: bool = False, phase: str = "Running") -> ScaledPod:
    return msgspec.structs.replace(READY, name=name, is_ready=is_ready, is_ending=is_ending, phase=phase)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (READY, PodState.READY),
        (pod(), PodState.NOT_READY),
        (pod(phase="Pending"), PodState.PENDING),
        (pod(is_ending=True), PodState.TERMINATING),
        (pod(is_ending=True, phase="Pending"), PodState.TERMINATING),
        (pod(phase="Failed"), None),
        (pod(phase="Succeeded"), None),
    ],
)
def test_a_pod_is_in_one_state_or_has_ended(found: ScaledPod, state: PodState | None) -> None:
    assert state_of(found) is state


def test_each_pod_counts_once_as_it_is_now() -> None:
    states = PodStates()
    for found in (pod("a", phase="Pending"), pod("b"), pod("c", is_ending=True), pod("d", is_ready=True)):
        states.take(found, is_gone=False)
    assert states.counts() == PodCounts(not_ready=1, pending=1, terminating=1)
    states.take(pod("a"), is_gone=False)
    states.take(pod("c", is_ending=True), is_gone=True)
    states.take(pod("b", phase="Failed"), is_gone=False)
    assert states.counts() == PodCounts(not_ready=1)
    assert repr(states) == "PodStates(2 pods)"
