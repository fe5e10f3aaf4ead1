"""Names and keys of what the controller makes: children, labels, annotations.

A child is named after its parent with a suffix, cut and hashed where that would be longer than a DNS label; Knative's
rule (knative.dev/pkg kmeta.ChildName), so that a name is the same here and there. ``deployment_name("hello-00001")`` is
"hello-00001-deployment".
"""

import hashlib

__all__ = [
    "APP",
    "BECAME_READY",
    "CLAIMED_TAGS",
    "CONFIGURATION",
    "CONFIGURATION_GENERATION",
    "CONFIGURATION_UID",
    "CREATOR",
    "LAST_APPLIED",
    "LAST_MODIFIER",
    "NO_GC",
    "REVISION",
    "REVISION_UID",
    "ROUTE",
    "ROUTES",
    "ROUTING_STATE",
    "ROUTING_STATE_MODIFIED",
    "SERVICE",
    "SERVICE_UID",
    "TRAFFIC_PATH",
    "VISIBILITY",
    "child_name",
    "deployment_name",
    "private_service_name",
    "revision_name",
]

_GROUP = "serving.knative.dev/"

SERVICE = _GROUP + "service"
SERVICE_UID = _GROUP + "serviceUID"
CONFIGURATION = _GROUP + "configuration"
CONFIGURATION_UID = _GROUP + "configurationUID"
CONFIGURATION_GENERATION = _GROUP + "configurationGeneration"
REVISION = _GROUP + "revision"
REVISION_UID = _GROUP + "revisionUID"
ROUTE = _GROUP + "route"
APP = "app"
ROUTING_STATE = _GROUP + "routingState"
ROUTING_STATE_MODIFIED = _GROUP + "routingStateModified"
# Annotation: the routes that name a revision, separated by commas.
ROUTES = _GROUP + "routes"
CREATOR = _GROUP + "creator"
LAST_MODIFIER = _GROUP + "lastModifier"
# Annotation: "true" keeps a revision from being collected.
NO_GC = _GROUP + "no-gc"
VISIBILITY = "networking.knative.dev/visibility"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
# Annotation of a revision: when it was ready first. Metadata is kept where status is not, so that a restart knows it.
BECAME_READY = "serving.dev/became-ready"
# Annotation of a revision, which the autoscaler alone writes: "serve" puts its pods into its public Service.
TRAFFIC_PATH = "serving.dev/traffic-path"
# Annotation of a route: since when it claims the host of each of its tags, as JSON.
CLAIMED_TAGS = "serving.dev/claimed-tags"

_LABEL_LENGTH_MAX = 63
_DIGEST_LENGTH = 32


def child_name(parent: str, suffix: str) -> str:
    """Parent and suffix, at most 63 characters: a longer parent keeps its head and the MD5 of the whole of it."""
    if len(parent) + len(suffix) <= _LABEL_LENGTH_MAX:
        return parent + suffix
    head = _LABEL_LENGTH_MAX - _DIGEST_LENGTH - len(suffix)
    assert head > 0, suffix
    digest = hashlib.md5(parent.encode(), usedforsecurity=False).hexdigest()
    return parent[:head] + digest + suffix


def revision_name(configuration: str, generation: int) -> str:
    """Generation 1 of "hello" is "hello-00001"."""
    return child_name(configuration, f"-{generation:05d}")


def deployment_name(revision: str) -> str:
    """The Deployment of a revision."""
    return child_name(revision, "-deployment")


def private_service_name(revision: str) -> str:
    """The core Service that collects the pods of a revision."""
    return child_name(revision, "-private")
