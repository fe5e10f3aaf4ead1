"""Which pods should go when some of them must: the idlest, by the annotation ``pod-deletion-cost``.

Input: the ready pods with the cost that they have, the latest report of each, and how many will go. Output: the pods of
which the cost must change, so that the victims have -1 and no other pod has. A pod that reports nothing counts as idle:
it has served no request in the last seconds. The ReplicaSet controller honours the cost; nothing here does.
"""

from collections.abc import Iterable, Mapping

from serving.model.stat import Stat
from serving.scaling.revision import ScaledPod

# Below the 0 of pods without the annotation.
VICTIM_COST = "-1"


def cost_changes(
    pods: Iterable[ScaledPod], reports: Mapping[str, Stat], *, victim_count: int
) -> list[tuple[str, str | None]]:
    """Pods and their new cost; None takes the annotation away.

    Of a, b and c with 3, 0 and 1 requests inside, two go: b and c get -1, unless they have it. Equally idle pods go by
    name, so that the same ones are chosen again by a decision that repeats.
    """

    def load(pod: ScaledPod) -> float:
        report = reports.get(pod.name)
        return report.concurrency if report else 0.0

    ranked = sorted(pods, key=lambda pod: (load(pod), pod.name))
    victims, others = ranked[:victim_count], ranked[victim_count:]
    marked = [(pod.name, VICTIM_COST) for pod in victims if pod.deletion_cost != VICTIM_COST]
    return [*marked, *((pod.name, None) for pod in others if pod.deletion_cost == VICTIM_COST)]
