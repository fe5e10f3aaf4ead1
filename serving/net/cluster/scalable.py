"""Reads the scales of kinds of other operators. The server's discovery finds the kinds."""

from serving.core.model.errors import NotFound, Unsupported
from serving.core.model.objects import Object, nested
from serving.core.model.scaledworkload import WorkloadTarget
from serving.net.aio.clock import now_s
from serving.net.cluster.kinds import Kind, target_kind
from serving.net.cluster.port import Cluster

SCALES_PERIOD_S = 2.0
"""Time between two reads of the scale of an object whose kind is not watched."""

# A definition may come and go.
_VALID_S = 30.0


class ScalableKinds:
    """The kinds of one cluster that have a scale. A discovery response is cached for half a minute."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[str, str], tuple[float, Kind | None]] = {}

    async def kind(self, target: WorkloadTarget) -> Kind:
        """The kind of a target. Raises ``Unsupported`` if the kind is unknown or has no scale, and ``ClusterError``."""
        key = (target.api_version, target.kind)
        kind = target_kind(*key)
        if kind is None:
            until_s, kind = self._known.get(key, (0.0, None))
            if now_s() >= until_s:
                kind = await self._cluster.kind_named(*key)
                self._known = {known: entry for known, entry in self._known.items() if now_s() < entry[0]}
                self._known[key] = (now_s() + _VALID_S, kind)
        if kind is None or not kind.namespaced or not (kind.has_scale or target_kind(*key)):
            raise Unsupported(f"{target.kind} of {target.api_version} has no scale")
        return kind

    async def scale(self, target: WorkloadTarget, namespace: str) -> Object | None:
        """The scale of a target with its replicas; None if the target does not exist. Raises the errors of ``kind``."""
        kind = await self.kind(target)
        try:
            scale = await self._cluster.get(kind, namespace, target.name, subresource="scale")
        except NotFound:
            return None
        # JSON leaves out 0.
        return {**scale, "spec": {"replicas": nested(scale, "spec", "replicas") or 0}}
