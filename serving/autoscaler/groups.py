"""What belongs together when revisions are shared out among autoscalers: those of one Configuration.

A ScalingPolicy of a Service or Configuration holds for all its revisions, and has one status: they are decided on by one
autoscaler, which writes that status, and a rollout is seen by one pair of eyes. A revision of no Configuration stands
alone. Knative hashes each revision by itself; it has no policies.
"""

from serving.model.knative import RevisionKey
from serving.scaling.revision import ScaledRevision

Group = tuple[str, str]
"""Namespace and name of a Configuration, or of a revision that has none."""


def group_of(key: RevisionKey, revision: ScaledRevision | None) -> Group:
    """The group of a revision; of one that is not known yet, as if it stood alone."""
    return key if revision is None or not revision.configuration else (key[0], revision.configuration)
