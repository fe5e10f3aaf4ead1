"""Maps the EndpointSlices of ScaledWorkloads' Services to revisions.

Input: ScaledWorkload and EndpointSlice objects. Output: for each workload, the slices of its Service, with the port
that the workload names.
"""

from collections.abc import Iterator, Mapping

import msgspec

from serving.activator.queueing.slices import ServedSlice, workload_slice_of
from serving.core.model.nodata import NoData
from serving.core.model.objects import Key, Object, key_of, labels_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadService

SERVICE_NAME_LABEL = "kubernetes.io/service-name"


class WorkloadBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's Service. ``port_name`` None means its only port."""

    service: str
    port_name: str | None


def backend_of(workload: Object, spec: ScaledWorkloadSpec) -> WorkloadBackend:
    """The Service of a workload with this spec, and its port by name.

    The controller resolves a port number to a name in the status. Until then, a Service's only port is used.
    """
    return _backend(spec.service, nested(workload, "status", "portName"))


def fallback_backend_of(workload: Object, spec: ScaledWorkloadSpec) -> WorkloadBackend | None:
    """The Service of a workload's fallback; None without one."""
    service = spec.cold_start.fallback
    return None if service is None else _backend(service, nested(workload, "status", "fallbackPortName"))


def _backend(service: WorkloadService, resolved: str | None) -> WorkloadBackend:
    port_name = service.port if isinstance(service.port, str) else resolved
    return WorkloadBackend(service=service.name, port_name=port_name)


class WorkloadBackends:
    """The Services of all ScaledWorkloads, indexed to match slices."""

    __slots__ = ("_backends", "_of_service")

    def __init__(self) -> None:
        self._backends: dict[Key, WorkloadBackend] = {}
        self._of_service: dict[Key, set[str]] = {}

    @property
    def namespaces(self) -> set[str]:
        """The namespaces with workloads."""
        return {namespace for namespace, _ in self._backends}

    def backend(self, key: Key) -> WorkloadBackend | None:
        """The Service of a workload; None if it is unknown."""
        return self._backends.get(key)

    def put(self, key: Key, backend: WorkloadBackend | None) -> None:
        """Store the Service of a workload, or remove it with None."""
        before = self._backends.pop(key, None)
        namespace, name = key
        if before is not None:
            names = self._of_service[namespace, before.service]
            names.discard(name)
            if not names:
                del self._of_service[namespace, before.service]
        if backend is not None:
            self._backends[key] = backend
            self._of_service.setdefault((namespace, backend.service), set()).add(name)

    def slices(self, endpoint_slice: Object) -> Iterator[ServedSlice | NoData]:
        """A slice for each workload that uses the Service of ``endpoint_slice``."""
        namespace, _ = key_of(endpoint_slice)
        service = labels_of(endpoint_slice).get(SERVICE_NAME_LABEL, "")
        for name in sorted(self._of_service.get((namespace, service), ())):
            yield workload_slice_of(endpoint_slice, name, port_name=self._backends[namespace, name].port_name)

    def own_slices(self, key: Key, cached: Mapping[Key, Object]) -> Iterator[ServedSlice | NoData]:
        """The slices among ``cached`` that belong to one workload."""
        backend = self._backends.get(key)
        for endpoint_slice in cached.values():
            if backend is not None and labels_of(endpoint_slice).get(SERVICE_NAME_LABEL) == backend.service:
                yield workload_slice_of(endpoint_slice, key[1], port_name=backend.port_name)
