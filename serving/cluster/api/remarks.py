"""What a writer was told is kept as Events of the object, for those who look at it later.

A ``Warning`` header is seen by one client once; what is accepted without effect stays so. Each sentence about an object is
one Event, whose count says how often it was told.
"""

import logging
from collections.abc import Iterable

from serving.aio.clock import stamp
from serving.cluster.kinds import EVENT, Kind
from serving.cluster.port import Cluster, Object
from serving.model.errors import AlreadyExists, ClusterError
from serving.model.event import Words, about, digest, new_event, repeated

__all__ = ["record_remarks", "remark_event"]

_log = logging.getLogger(__name__)

_COMPONENT = "serving-api"
_REASON = "AcceptedWithoutEffect"


def remark_event(kind: Kind, of: Object, text: str, *, now: str) -> Object:
    """The Event that tells a sentence about an object. The same sentence about the same object has the same name."""
    spoken_of = about({**of, "apiVersion": kind.api_version, "kind": kind.name})
    words = Words(reason=_REASON, message=text, is_warning=True)
    return new_event(spoken_of, words, suffix=digest(spoken_of.uid, text), component=_COMPONENT, now=now)


async def record_remarks(cluster: Cluster, kind: Kind, of: Object, *, texts: Iterable[str]) -> None:
    """Keep what was told about an object of a kind with namespaces. What cannot be kept is logged: the write is done."""
    for text in texts:
        event = remark_event(kind, of, text, now=stamp())
        metadata = event["metadata"]
        try:
            try:
                await cluster.create(EVENT, event)
            except AlreadyExists:
                before = await cluster.get(EVENT, metadata["namespace"], metadata["name"])
                patch = repeated(before, now=event["lastTimestamp"])
                await cluster.patch(EVENT, metadata["namespace"], metadata["name"], patch=patch)
        except ClusterError as error:
            _log.warning("api.unremarked", extra={"object": metadata["name"], "error": str(error)})
