"""Warnings about a write, kept as Events of the object for later readers.

One client sees a ``Warning`` header once, but a field without effect stays in the object. Each warning about an object is
one Event; its count says how often the server returned it.
"""

import logging
from collections.abc import Iterable

from serving.aio.clock import stamp
from serving.cluster.kinds import EVENT, Kind
from serving.cluster.port import Cluster
from serving.model.errors import AlreadyExists, ClusterError
from serving.model.event import Words, about, digest, new_event, repeated
from serving.model.objects import Object

_log = logging.getLogger(__name__)

_COMPONENT = "serving-api"
_REASON = "AcceptedWithoutEffect"


def remark_event(kind: Kind, of: Object, text: str, *, now: str) -> Object:
    """The Event for one warning about an object. The same warning about the same object gets the same name."""
    spoken_of = about({**of, "apiVersion": kind.api_version, "kind": kind.name})
    words = Words(reason=_REASON, message=text, is_warning=True)
    return new_event(spoken_of, words, suffix=digest(spoken_of.uid, text), component=_COMPONENT, now=now)


async def record_remarks(cluster: Cluster, kind: Kind, of: Object, *, texts: Iterable[str]) -> None:
    """Record warnings about a namespaced object. A failure is logged only, because the write itself has succeeded."""
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
