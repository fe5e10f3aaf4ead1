"""The anticipated pods of a revision, as the autoscaler publishes them in an annotation.

Converts a number of pods and its validity to the annotation's text, and back. Node groups read the annotation, so that
a node boots before the pods exist. An expired or invalid annotation is ignored, because its author may have stopped.
"""

from collections.abc import Mapping

import msgspec

from serving.core.model.errors import UNREADABLE
from serving.core.model.knative import ANTICIPATED_PODS_ANNOTATION


class AnticipatedPods(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The number of pods expected until ``until_s`` (unix seconds). ``count`` includes existing pods."""

    count: int
    until_s: float

    def text(self) -> str:
        """The value of ``ANTICIPATED_PODS_ANNOTATION``, as JSON: {"count":8,"untilS":1700000000}."""
        return msgspec.json.encode({"count": self.count, "untilS": round(self.until_s)}).decode()


def anticipated_pods_of(annotations: Mapping[str, str]) -> AnticipatedPods | None:
    """Read ``ANTICIPATED_PODS_ANNOTATION``; None if the annotation is absent or invalid."""
    text = annotations.get(ANTICIPATED_PODS_ANNOTATION)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=AnticipatedPods)
    except UNREADABLE:
        return None
