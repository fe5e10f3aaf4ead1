"""Converts a coordination.k8s.io/v1 Lease to a record of ``election``, and back.

A write carries the version that was read, so of two concurrent writes one gets a ``Conflict``. Fields of other writers
(labels, annotations, a preferred holder) stay.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from serving.core.model.errors import NotFound
from serving.core.model.objects import Object, is_older_version, version_of
from serving.net.aio.clock import micro_stamp
from serving.net.cluster.kinds import LEASE
from serving.net.cluster.leases.rules import LeaseRecord, LeaseTimes
from serving.net.cluster.port import Cluster

# Duration of a released lease: the API's minimum is 1 s, but it is free immediately, because it has no holder.
_RELEASED_S = 1.0


class LeaseName(msgspec.Struct, frozen=True, kw_only=True):
    """The namespace and name of a lease."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class LeaseClient:
    """Reads and writes one lease. A write fails if the lease has changed since the last observed version."""

    def __init__(
        self,
        cluster: Cluster,
        name: LeaseName,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._said = {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
        self._last: Object | None = None

    def is_old(self, body: Object) -> bool:
        """Whether a lease is older than the last observed one. A watch may still deliver the state before a write."""
        return is_older_version(version_of(body), version_of(self._last))

    def update(self, body: Object | None) -> LeaseRecord | None:
        """Store a lease from a watch; None if it does not exist."""
        self._last = body
        return None if body is None else record_of(body)

    async def read(self) -> LeaseRecord | None:
        """Read the record; None if the lease does not exist. Raises ``ClusterError``."""
        try:
            return self.update(await self._cluster.get(LEASE, self.name.namespace, self.name.name))
        except NotFound:
            return self.update(None)

    async def write(self, record: LeaseRecord) -> LeaseRecord:
        """Write the record if the lease is unchanged; return the stored one. Raises ``Conflict`` if it has changed."""
        last = self._last
        spec = {**(last or {}).get("spec", {}), **_spec(record)}
        metadata: dict[str, Any] = {"namespace": self.name.namespace, "name": self.name.name}
        metadata |= {} if last is None else last["metadata"]
        metadata |= {key: {**(metadata.get(key) or {}), **entries} for key, entries in self._said.items() if entries}
        body = {**(last or {}), "metadata": metadata, "spec": spec}
        write = self._cluster.create if last is None else self._cluster.replace
        self._last = await write(LEASE, body)
        return record_of(self._last)


def record_of(body: Mapping[str, Any]) -> LeaseRecord:
    """The record in a Lease; missing fields are empty."""
    spec = body.get("spec") or {}
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_s=float(spec.get("leaseDurationSeconds") or 0),
        acquired=spec.get("acquireTime") or "",
        renewed=spec.get("renewTime") or "",
        transition_count=int(spec.get("leaseTransitions") or 0),
    )


def acquired_record(before: LeaseRecord | None, me: str, times: LeaseTimes, *, wall_s: float) -> LeaseRecord:
    """The record of a new holder. A transition is a change from one holder to another."""
    stamp = micro_stamp(wall_s)
    count = 0 if before is None else before.transition_count + (before.holder != me)
    return LeaseRecord(holder=me, duration_s=times.duration_s, acquired=stamp, renewed=stamp, transition_count=count)


def renewed_record(before: LeaseRecord, *, wall_s: float) -> LeaseRecord:
    """The record of a renewing holder."""
    return msgspec.structs.replace(before, renewed=micro_stamp(wall_s))


def released_record(before: LeaseRecord, *, wall_s: float) -> LeaseRecord:
    """The record of a released lease, which any process may acquire immediately."""
    return msgspec.structs.replace(before, holder="", duration_s=_RELEASED_S, renewed=micro_stamp(wall_s))


def _spec(record: LeaseRecord) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder,
        "leaseDurationSeconds": max(1, round(record.duration_s)),
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
        "leaseTransitions": record.transition_count,
    }
