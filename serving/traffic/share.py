"""Which slots of which pods an activator owns, so that several activators need not ask each other.

Inputs: the pods, the number of activators, the place of this one among them, and the slots of a pod
(containerConcurrency). Output: pod to slots. Every activator computes it alone from the same lists, and together they
never send a pod more than it takes. While a list is changing two activators may differ for a moment; then the pod's own
queue holds the limit.

The rule: line up all slots, pod after pod in the order of addresses, and cut the line into as many pieces as there are
activators, in their order, the first ones longer by one where it does not divide. So no two activators differ by more
than a slot, and a pod that comes or goes moves each cut by no more than a pod. knative/serving 98e5ef90
pkg/activator/net/throttler.go applies this rule to whole pods (``ShareQuirks``).
"""

from collections.abc import Iterable, Sequence

from serving.settings.activator import ShareQuirks

__all__ = ["share"]

_SAFE = ShareQuirks()


def share(
    pods: Iterable[str],
    *,
    activator_count: int,
    index: int | None,
    slots_per_pod: int,
    quirks: ShareQuirks = _SAFE,
) -> dict[str, int | None]:
    """The slots that activator ``index`` of ``activator_count`` owns, by pod; pods without any are left out.

    ``index`` is None while an activator does not find itself in the list: it owns nothing then. ``slots_per_pod`` 0 means
    that pods have no limit: every activator may use all of them, and the value is None.

    3 pods of 10 slots and 2 activators: 15 slots each, the middle pod split in 5 and 5. 1 pod of 1 slot and 2
    activators: the first owns it, and what reaches the second must be passed on to the first.
    """
    assert index is None or 0 <= index < activator_count, (index, activator_count)
    in_order = sorted(pods)
    if slots_per_pod == 0:
        return dict.fromkeys(in_order, None)
    if index is None:
        return dict.fromkeys(in_order, slots_per_pod) if quirks.unknown_index_takes_all else {}
    if quirks.pods_are_assigned_whole:
        return dict.fromkeys(_whole_pods(in_order, activator_count, index), slots_per_pod)
    start, end = _piece(len(in_order) * slots_per_pod, activator_count, index)
    return {
        in_order[place]: min(end, (place + 1) * slots_per_pod) - max(start, place * slots_per_pod)
        for place in range(start // slots_per_pod, -(-end // slots_per_pod))
        if start < end
    }


def _piece(length: int, count: int, index: int) -> tuple[int, int]:
    """Start and end of a piece of a line cut in ``count``: 7 in 3 is 0-3, 3-5, 5-7."""
    size, longer_count = divmod(length, count)
    start = index * size + min(index, longer_count)
    return start, start + size + (index < longer_count)


def _whole_pods(in_order: Sequence[str], activator_count: int, index: int) -> Sequence[str]:
    """The original's rule: pod ``index`` modulo their number where pods are fewer.

    Elsewhere each activator gets the same number in blocks, in order, and what is left over goes one by one to the first
    activators: of 5 pods and 2 activators the first gets pods 0, 1 and 4, the second 2 and 3.
    """
    pod_count = len(in_order)
    if pod_count == 0:
        return ()
    if pod_count < activator_count:
        return (in_order[index % pod_count],)
    size, left_over_count = divmod(pod_count, activator_count)
    block = in_order[index * size : (index + 1) * size]
    return [*block, in_order[activator_count * size + index]] if index < left_over_count else block
