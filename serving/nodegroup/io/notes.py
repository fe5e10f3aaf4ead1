"""Events about NodeGroups and their nodes: one Event for each message about an object, with a count of repetitions.

Nodes and groups have no namespace; their Events are in "default", as Kubernetes has them. A failed write is logged: no decision
depends on an Event.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from serving.aio.clock import stamp
from serving.cluster.kinds import EVENT
from serving.cluster.port import Cluster
from serving.model.errors import AlreadyExists, ClusterError, NotFound
from serving.model.event import About, Words, digest, name_within, new_event, repeated
from serving.model.objects import Object, name_of, uid_of

_log = logging.getLogger("nodegroup")

_NAMESPACE = "default"
_COMPONENT = "serving-nodegroup"
_KNOWN_MAX = 1024


class NodeGroupNotes:
    """Writes Events at once. ``cluster`` may be fenced."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: OrderedDict[str, Object] = OrderedDict()

    def __repr__(self) -> str:
        return f"NodeGroupNotes({len(self._known)} known)"

    async def write(self, of: Mapping[str, Any], words: Words) -> None:
        """An Event about an object, or one more count of it."""
        suffix = digest(uid_of(of), words.reason, words.message)
        name, now = name_within(name_of(of), suffix), stamp()
        try:
            before = self._known.get(name)
            if before is None:
                about = About(
                    api_version=of["apiVersion"], kind=of["kind"], namespace="", name=name_of(of), uid=uid_of(of)
                )
                event = new_event(about, words, suffix=suffix, component=_COMPONENT, now=now)
                event["metadata"]["namespace"] = _NAMESPACE
                try:
                    self._remember(name, await self._cluster.create(EVENT, event))
                except AlreadyExists:
                    before = await self._cluster.get(EVENT, _NAMESPACE, name)
            if before is not None:
                patch = repeated(before, now=now)
                self._remember(name, await self._cluster.patch(EVENT, _NAMESPACE, name, patch=patch))
        except ClusterError as error:
            was_known = self._known.pop(name, None) is not None
            if was_known and isinstance(error, NotFound):
                # It has expired.
                await self.write(of, words)
                return
            _log.warning("event.unwritten", extra={"reason": words.reason, "error": str(error)})

    def _remember(self, name: str, event: Object) -> None:
        self._known[name] = event
        self._known.move_to_end(name)
        while len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
