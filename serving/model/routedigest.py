"""A digest of what an activator serves for a Route, by which the controller sees whether its status has arrived.

Input: a Route object as the API has it. Output: a few characters that are equal exactly when an activator routes the same
way. The controller writes hosts and traffic to a Route's status first, and reports the Route ready once every activator
answers with the digest of that status. Conditions and versions do not count: they change without a change of routing.
"""

import hashlib

import msgspec

from serving.model.knative import CLAIMED_TAGS_ANNOTATION, VISIBILITY_LABEL
from serving.model.objects import Object, annotations_of, labels_of, nested, uid_of
from serving.model.rollout import tag_splits
from serving.model.routehosts import HostRules, claimed_hosts
from serving.model.routepolicy import OPEN_POLICY, route_policy

_LENGTH = 16
_TARGET_FIELDS = ("revisionName", "percent", "tag", "url")


def route_digest(route: Object, rules: HostRules) -> str:
    """16 hexadecimal digits over the uid, visibility, claimed tags, rollout, URLs, hosts, traffic and policy of a Route."""
    annotations = annotations_of(route)
    served: list[object] = [
        uid_of(route),
        labels_of(route).get(VISIBILITY_LABEL),
        annotations.get(CLAIMED_TAGS_ANNOTATION),
        tag_splits(annotations),
        nested(route, "status", "url"),
        nested(route, "status", "address", "url"),
        [[target.get(field) for field in _TARGET_FIELDS] for target in nested(route, "status", "traffic") or ()],
    ]
    served.append([(one.host, one.since, one.is_public) for one in claimed_hosts(route, rules)])
    policy = route_policy(annotations)
    if policy != OPEN_POLICY:
        served.append(policy)
    return hashlib.sha256(msgspec.json.encode(served)).hexdigest()[:_LENGTH]
