"""What the kubelet says of a pod, as Events of the API."""

from serving.model.event import MESSAGE_LENGTH_MAX, About, Words, digest, new_event
from serving.model.objects import Object


def pod_event(pod: Object, *, reason: str, message: str, now: str) -> Object:
    """A warning about a pod. The same words about the same pod have the same name: they are said once."""
    metadata = pod["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    # Without a version: it is the pod that fails, in whatever state its object is.
    of = About(api_version="v1", kind="Pod", namespace=namespace, name=name, uid=metadata.get("uid", ""))
    words = Words(reason=reason, message=message[-MESSAGE_LENGTH_MAX:], is_warning=True)
    return new_event(of, words, suffix=digest(name, reason, message), component="kubelet", now=now, instance="local")
