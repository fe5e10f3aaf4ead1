"""In which state each pod of a revision is, and how many are in each, for the gauges beside desired and ready.

Input: pods as the watch brings them. Output: ``PodCounts``. The states are those of Knative's pod counter
(knative/serving 98e5ef90, pkg/resources/podlist.go): a pod that is being deleted is that and nothing else; then what its
phase says; one that runs is ready or not. Pods that have ended are in none. Nothing is decided on them.
"""

import enum
from collections import Counter

from serving.model.revisionnumbers import PodCounts
from serving.scaling.revision import ScaledPod

_PENDING, _RUNNING = "Pending", "Running"


class PodState(enum.StrEnum):
    """What a pod is doing."""

    READY = "ready"
    NOT_READY = "not-ready"
    PENDING = "pending"
    TERMINATING = "terminating"


def state_of(pod: ScaledPod) -> PodState | None:
    """The state of a pod; None if it has ended and stays as an object."""
    if pod.is_ending:
        return PodState.TERMINATING
    if pod.phase == _PENDING:
        return PodState.PENDING
    if pod.phase == _RUNNING:
        return PodState.READY if pod.is_ready else PodState.NOT_READY
    return None


class PodStates:
    """The states of one revision's pods by name."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, PodState] = {}

    def __repr__(self) -> str:
        """One line."""
        return f"PodStates({len(self._by_name)} pods)"

    def take(self, pod: ScaledPod, *, is_gone: bool) -> None:
        """A pod as it is now, or that it is gone."""
        state = None if is_gone else state_of(pod)
        if state is None:
            self._by_name.pop(pod.name, None)
        else:
            self._by_name[pod.name] = state

    def counts(self) -> PodCounts:
        """How many pods are in each state."""
        found = Counter(self._by_name.values())
        return PodCounts(
            not_ready=found[PodState.NOT_READY],
            pending=found[PodState.PENDING],
            terminating=found[PodState.TERMINATING],
        )
