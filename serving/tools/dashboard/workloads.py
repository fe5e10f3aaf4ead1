"""ScaledWorkloads for the page: each is shown as a revision without a service, with its kind.

Input: ScaledWorkload and Pod objects. Output: the view of a workload, and its pods with the label of a revision, by
which the dashboard assigns pods. A workload's pods are those of the selector in its status. Pure.
"""

from serving.core.model.errors import Invalid, SettingsError
from serving.core.model.knative import REVISION_LABEL, SERVING_STATE_ANNOTATION, ServingState
from serving.core.model.objects import Key, Object, annotations_of, labels_of, namespace_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec, as_revision
from serving.net.cluster.selectors import LabelSelector, label_selector
from serving.tools.dashboard.views import View, revision_view


def workload_view(workload: Object) -> View:
    """The fields of a ScaledWorkload that the dashboard shows.

    They are the fields of ``revision_view``, with ``kind``, ``target`` and ``url``. Only the conditions are known of a
    workload with an unreadable spec.
    """
    try:
        revision = as_revision(workload, ScaledWorkloadSpec.from_object(workload))
    except SettingsError:
        revision = {"metadata": workload["metadata"], "spec": {}}
    status = nested(workload, "status") or {}
    at_zero = annotations_of(workload).get(SERVING_STATE_ANNOTATION, ServingState.RESERVE.value)
    state = ServingState.ACTIVE.value if status.get("desiredReplicas") else at_zero
    view = revision_view({**revision, "spec": {**revision["spec"], "servingState": state}, "status": status})
    target = nested(workload, "spec", "target") or {}
    return {
        **view,
        "kind": target.get("kind") or "Deployment",
        "target": target.get("name", ""),
        "url": status.get("url", ""),
    }


class WorkloadPods:
    """Finds the workload of a pod."""

    def __init__(self) -> None:
        self._selectors: dict[str, dict[str, LabelSelector]] = {}

    def put(self, key: Key, workload: Object | None) -> bool:
        """Store a workload, or remove it with None; return whether the set of its pods has changed."""
        namespace, name = key
        selectors = self._selectors.setdefault(namespace, {})
        before = selectors.pop(name, None)
        after = None if workload is None else _selector(workload)
        if after is not None:
            selectors[name] = after
        return before != after

    def workload_of(self, pod: Object) -> str:
        """The workload that selects a pod; "" if there is none, or if the pod belongs to a revision."""
        labels = labels_of(pod)
        selectors = {} if REVISION_LABEL in labels else self._selectors.get(namespace_of(pod), {})
        return next((name for name, selector in selectors.items() if selector.matches(labels)), "")


def labelled(pod: Object, workload: str) -> Object:
    """A copy of a workload's pod in which the label of the revision names the workload."""
    return {**pod, "metadata": {**pod["metadata"], "labels": {**labels_of(pod), REVISION_LABEL: workload}}}


def _selector(workload: Object) -> LabelSelector | None:
    """The selector of a workload's pods; None while it selects none."""
    try:
        selector = label_selector(str(nested(workload, "status", "selector") or ""))
    except Invalid:
        return None
    return selector if selector.requirements else None
