"""PodDisruptionBudgets: whether a pod may be evicted now.

Input: the pod, the budgets and the pods of its namespace. Output: why an eviction is refused, or "". On a real cluster
the disruption controller and the API server decide this together. The store decides it at each eviction, from the
present pods. Follows policy/v1: ``minAvailable`` or ``maxUnavailable``, a number or a percentage of the selected pods,
rounded up; an unready pod may go if the budget holds without it.
"""

import math
from collections.abc import Iterable, Sequence

from serving.core.model.errors import TooManyRequests
from serving.core.model.objects import (
    FINISHED_PHASES,
    Object,
    is_being_deleted,
    is_true,
    labels_of,
    name_of,
    namespace_of,
    nested,
)
from serving.net.cluster.kinds import POD, POD_DISRUPTION_BUDGET
from serving.net.cluster.port import Cluster
from serving.net.cluster.selectors import written_selector

_REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


def eviction_refusal(pod: Object, budgets: Iterable[Object], pods: Sequence[Object]) -> str:
    """Why a pod may not be evicted now; "" if it may.

    Examples: of 3 ready pods with ``minAvailable: 2``, one may be evicted. With ``maxUnavailable: 50%`` of 3, ceil(1.5)
    = 2 may be missing.
    """
    if nested(pod, "status", "phase") in (*FINISHED_PHASES, "Pending") or is_being_deleted(pod):
        return ""
    for budget in budgets:
        written = nested(budget, "spec", "selector")
        # None selects no pod, an empty selector all pods of the namespace (policy/v1).
        if written is None or not written_selector(written).matches(labels_of(pod)):
            continue
        selector = written_selector(written)
        living = [other for other in pods if nested(other, "status", "phase") not in FINISHED_PHASES]
        selected = [other for other in living if selector.matches(labels_of(other))]
        healthy = [other for other in selected if is_true(other, "Ready") and not is_being_deleted(other)]
        wanted = _wanted_count(budget, len(selected))
        remaining = len(healthy) - (1 if is_true(pod, "Ready") else 0)
        if remaining < wanted:
            name = name_of(budget)
            return (
                f"{_REFUSAL} The disruption budget {name} needs {wanted} healthy pods and has {len(healthy)} currently"
            )
    return ""


async def check_budgets(cluster: Cluster, pod: Object) -> None:
    """Check the PodDisruptionBudgets in a pod's namespace. Raises ``TooManyRequests`` if one forbids the eviction."""
    namespace = namespace_of(pod)
    budgets = (await cluster.list(POD_DISRUPTION_BUDGET, namespace)).items
    refusal = eviction_refusal(pod, budgets, (await cluster.list(POD, namespace)).items) if budgets else ""
    if refusal:
        raise TooManyRequests(refusal)


def _wanted_count(budget: Object, selected_count: int) -> int:
    at_least, missing = nested(budget, "spec", "minAvailable"), nested(budget, "spec", "maxUnavailable")
    if missing is not None:
        return max(0, selected_count - _scaled(missing, selected_count))
    return _scaled(1 if at_least is None else at_least, selected_count)


def _scaled(amount: object, whole: int) -> int:
    text = str(amount)
    if text.endswith("%"):
        return math.ceil(int(text[:-1]) * whole / 100)
    return int(text)
