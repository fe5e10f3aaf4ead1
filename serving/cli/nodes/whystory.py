"""From a burst of requests to a node, and back: where the pods of a revision are, what waits, and what node groups did for them.

Input: pods, nodes, NodeGroups and their Events as the API has them; output: lines for ``serving why``. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from serving.model.anticipation import anticipated_pods_of
from serving.model.knative import REVISION_LABEL
from serving.model.objects import Object, annotations_of, condition_of, labels_of, name_of, nested

_OVER = ("Succeeded", "Failed")
# Events of node groups in the story of a revision: the last ones.
_EVENTS_MAX = 10


def revision_story(
    pods: Sequence[Object], *, nodes: Sequence[Object], groups: Sequence[Object], events: Sequence[Object]
) -> list[str]:
    """Where the pods of a revision are and which wait, then what the groups of its nodes did; nothing without groups.

    ``events`` are those of NodeGroups, oldest first. A pod that waits may get a node of any group.
    """
    if not groups:
        return []
    living = [one for one in pods if nested(one, "status", "phase") not in _OVER]
    placed = Counter(str(node) for one in living if (node := nested(one, "spec", "nodeName")))
    waiting = [one for one in living if not nested(one, "spec", "nodeName")]
    lines = []
    if placed:
        lines.append("pods: " + ", ".join(f"{count} on {node}" for node, count in sorted(placed.items())))
    if waiting:
        why = str(condition_of(waiting[0], "PodScheduled").get("message") or "the scheduler has not looked at it")
        lines.append(f"pods: {len(waiting)} wait{'s' if len(waiting) == 1 else ''} for a node: {why}")
    by_name = {name_of(one): one for one in nodes}
    ours = {name_of(group) for group in groups if waiting or any(_has(group, by_name.get(node)) for node in placed)}
    said = [one for one in events if nested(one, "involvedObject", "name") in ours][-_EVENTS_MAX:]
    for one in said:
        stamp = str(one.get("lastTimestamp") or nested(one, "metadata", "creationTimestamp") or "")
        lines.append(f"{stamp[11:19]} nodegroup/{nested(one, 'involvedObject', 'name')}: {one.get('message')}")
    if ours:
        lines.append("more: " + ", ".join(f"serving why nodegroup/{name}" for name in sorted(ours)))
    return lines


def pods_by_revision(pods: Sequence[Object]) -> str:
    """Pods by what they are of, most first: "hello-00001 3, words-00002 1, others 2"."""
    counts = Counter(
        labels_of(one).get(REVISION_LABEL, "others") for one in pods if nested(one, "status", "phase") not in _OVER
    )
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def expected_lines(revisions: Sequence[Object], *, now_s: float) -> Iterator[str]:
    """What autoscalers publish of pods to come, of each revision that does."""
    for one in revisions:
        found = anticipated_pods_of(annotations_of(one))
        if found is not None and found.until_s > now_s:
            yield f"now: {name_of(one)} expects to want {found.count} pods within the time that a node takes to boot"


def _has(group: Object, node: Object | None) -> bool:
    key = nested(group, "spec", "labelKey")
    return node is not None and bool(labels_of(node).get(str(key)) == nested(group, "spec", "labelValue"))
