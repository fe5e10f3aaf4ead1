"""What the kubelet says of a pod, as Events of the API. Follows core/v1 Event."""

import hashlib

from serving.cluster.port import Object

__all__ = ["pod_event"]

_COMPONENT = "kubelet"
_DIGEST_LENGTH = 16
_MESSAGE_LENGTH_MAX = 1024


def pod_event(pod: Object, *, reason: str, message: str, now: str) -> Object:
    """A warning about a pod. The same words about the same pod have the same name: they are said once."""
    metadata = pod["metadata"]
    digest = hashlib.sha256(f"{metadata['name']}\0{reason}\0{message}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{digest}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata.get("uid", ""),
        },
        "type": "Warning",
        "reason": reason,
        "message": message[-_MESSAGE_LENGTH_MAX:],
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": "local",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
