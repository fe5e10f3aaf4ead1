"""What the cluster says about revisions and their pods.

Input: revisions and slices as they change, and answers to probes. Output: the settings of a revision, and the pods that may
get its requests: those that are listed as ready, and those that a probe has confirmed.
"""

from collections.abc import Set as AbstractSet

from serving.activator.queueing.readiness import UnreadyPods
from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod, SliceIndex
from serving.model.knative import RevisionKey


class RevisionDirectory:
    """All revisions and slices. ``slices`` and ``unready`` change by calls of their own."""

    __slots__ = ("_revisions", "slices", "unready")

    def __init__(self) -> None:
        self._revisions: dict[RevisionKey, ServedRevision] = {}
        self.slices = SliceIndex()
        self.unready = UnreadyPods()

    def __repr__(self) -> str:
        return f"RevisionDirectory({len(self._revisions)} revisions, {self.slices!r}, {self.unready!r})"

    @property
    def keys(self) -> AbstractSet[RevisionKey]:
        """All known revisions."""
        return self._revisions.keys()

    def revision(self, key: RevisionKey) -> ServedRevision | None:
        """A revision; None while it is not known."""
        return self._revisions.get(key)

    def set_revision(self, revision: ServedRevision) -> bool:
        """Take a revision as it is now; whether it is new."""
        is_new = revision.key not in self._revisions
        self._revisions[revision.key] = revision
        return is_new

    def remove_revision(self, key: RevisionKey) -> ServedRevision | None:
        """Drop a revision; returns it as it was."""
        self.unready.forget(key)
        return self._revisions.pop(key, None)

    def slot_count(self, key: RevisionKey) -> int:
        """The requests that a pod of a revision takes at once; 0 without a limit, or while that is not known."""
        revision = self._revisions.get(key)
        return 0 if revision is None else revision.container_concurrency

    def pods_of(self, key: RevisionKey) -> dict[str, ServedPod]:
        """The pods of a revision that may get requests, by address."""
        return self.slices.pods_of(key) | self.unready.confirmed(key)

    def watch_unready(self, key: RevisionKey, now_s: float, *, is_on: bool) -> None:
        """Follow the not-ready pods of a revision with requests, or none unless ``is_on`` and a probe can tell."""
        revision = self._revisions.get(key)
        is_probed = is_on and revision is not None and not revision.kubelet_decides
        self.unready.set_pods(key, self.slices.unready_of(key) if is_probed else {}, now_s)
