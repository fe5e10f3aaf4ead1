"""What a writer was told is kept as Events of the object, for those who look at it later.

A ``Warning`` header is seen by one client once; what is accepted without effect stays so. Each sentence about an object is
one Event, whose count says how often it was told.
"""

import hashlib
import logging
from collections.abc import Iterable

from serving.aio.clock import stamp
from serving.cluster.kinds import EVENT, Kind
from serving.cluster.port import Cluster, Object
from serving.model.errors import AlreadyExists, ClusterError

__all__ = ["record_remarks", "remark_event"]

_log = logging.getLogger(__name__)

_COMPONENT = "serving-api"
_REASON = "AcceptedWithoutEffect"
_DIGEST_LENGTH = 16
_NAME_LENGTH_MAX = 253
# The API refuses longer messages.
_MESSAGE_LENGTH_MAX = 1024


def remark_event(kind: Kind, about: Object, text: str, *, now: str) -> Object:
    """The Event that tells a sentence about an object. The same sentence about the same object has the same name."""
    metadata = about["metadata"]
    digest = hashlib.sha256(f"{metadata.get('uid', '')}\0{text}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][: _NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}.{digest}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata.get("uid", ""),
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": "Warning",
        "reason": _REASON,
        "message": text[:_MESSAGE_LENGTH_MAX],
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": "",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


async def record_remarks(cluster: Cluster, kind: Kind, about: Object, *, texts: Iterable[str]) -> None:
    """Keep what was told about an object of a kind with namespaces. What cannot be kept is logged: the write is done."""
    for text in texts:
        event = remark_event(kind, about, text, now=stamp())
        metadata = event["metadata"]
        try:
            try:
                await cluster.create(EVENT, event)
            except AlreadyExists:
                before = await cluster.get(EVENT, metadata["namespace"], metadata["name"])
                patch = {"count": before.get("count", 1) + 1, "lastTimestamp": event["lastTimestamp"]}
                await cluster.patch(EVENT, metadata["namespace"], metadata["name"], patch=patch)
        except ClusterError as error:
            _log.warning("api.unremarked", extra={"object": metadata["name"], "error": str(error)})
