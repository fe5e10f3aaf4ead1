"""Converts pods anticipated by autoscalers to pending pods for a pass.

Input: Revisions, their Deployments, and which pods exist; output: ``GroupPod`` records, one for each pod that is
missing. The autoscaler publishes how many pods a revision will need by the time a new node has booted. A revision needs
the larger of this number and its Deployment's scale. An anticipated pod has the requests of the Deployment's template.
Pure: the daemon passes changes from watches.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.anticipation import AnticipatedPods, anticipated_pods_of
from serving.core.model.knative import REVISION_LABEL, RevisionKey
from serving.core.model.objects import annotations_of, is_being_deleted, labels_of, name_of, namespace_of, nested
from serving.nodes.nodegroup.facts import pod_of
from serving.nodes.nodegroup.records import GroupPod, PodPhase

# Most anticipated pods per revision, so that a wrong number does not exhaust memory.
_PODS_MAX = 5000


class AnticipatedBook:
    """The Revisions of a cluster, with their existing and anticipated pods."""

    def __init__(self) -> None:
        self._published: dict[RevisionKey, AnticipatedPods] = {}
        self._templates: dict[RevisionKey, tuple[int, GroupPod]] = {}
        self._revision_of: dict[str, RevisionKey] = {}
        self._existing: Counter[RevisionKey] = Counter()

    def set_revision(self, revision: Mapping[str, Any]) -> None:
        """Add or update a Revision."""
        key = (namespace_of(revision), name_of(revision))
        published = None if is_being_deleted(revision) else anticipated_pods_of(annotations_of(revision))
        if published is None:
            self._published.pop(key, None)
        else:
            self._published[key] = published

    def drop_revision(self, key: RevisionKey) -> None:
        """Drop a deleted Revision."""
        self._published.pop(key, None)

    def set_deployment(self, deployment: Mapping[str, Any]) -> None:
        """Add or update the Deployment of a revision; other Deployments are ignored."""
        key = _revision_key(deployment)
        if key is None or is_being_deleted(deployment):
            return
        replicas = nested(deployment, "spec", "replicas")
        template = nested(deployment, "spec", "template") or {}
        labelled = {"metadata": {"namespace": key[0], "name": key[1]}, "spec": template.get("spec") or {}}
        facts = msgspec.structs.replace(pod_of(labelled), phase=PodPhase.PENDING, is_anticipated=True)
        self._templates[key] = (1 if replicas is None else int(replicas), facts)

    def drop_deployment(self, deployment: Mapping[str, Any]) -> None:
        """Drop a deleted Deployment."""
        key = _revision_key(deployment)
        if key is not None:
            self._templates.pop(key, None)

    def set_pod(self, name: str, pod: Mapping[str, Any]) -> None:
        """Add or update a Pod by "namespace/name". A pod being deleted counts as missing."""
        key = None if is_being_deleted(pod) else _revision_key(pod)
        before = self._revision_of.get(name)
        if key == before:
            return
        self.drop_pod(name)
        if key is not None:
            self._revision_of[name] = key
            self._existing[key] += 1

    def drop_pod(self, name: str) -> None:
        """Drop a deleted Pod."""
        key = self._revision_of.pop(name, None)
        if key is not None:
            self._existing[key] -= 1
            if not self._existing[key]:
                del self._existing[key]

    def pods(self, now_s: float) -> dict[str, GroupPod]:
        """The anticipated pods that do not exist at ``now_s`` (unix seconds), by an invented name.

        Example: autoscalers published 8 pods of a revision, and 2 exist: the result has 6.
        """
        missing: dict[str, GroupPod] = {}
        for key, (replica_count, template) in self._templates.items():
            published = self._published.get(key)
            is_valid = published is not None and now_s < published.until_s
            wanted = max(replica_count, published.count if published is not None and is_valid else 0)
            for number in range(min(wanted - self._existing[key], _PODS_MAX)):
                name = f"{template.name}/anticipated-{number}"
                missing[name] = msgspec.structs.replace(template, name=name)
        return missing


def _revision_key(source: Mapping[str, Any]) -> RevisionKey | None:
    revision = labels_of(source).get(REVISION_LABEL)
    return None if revision is None else (namespace_of(source), revision)
