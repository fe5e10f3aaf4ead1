"""What decisions read of all ScaledWorkloads: each spec is read once, when its object changes."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.objects import Key, Object, key_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.core.scaling.policies.index import PolicyCheck
from serving.core.scaling.policies.scalingpolicy import ScalingPolicySpec
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind, target_kind


class KnownWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """A ScaledWorkload.

    ``spec`` is None if it is invalid. ``problems`` are the problems of an invalid spec, or of a valid spec's schedules.
    """

    key: Key
    created: str
    spec: ScaledWorkloadSpec | None = None
    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, workload: Object, check: PolicyCheck = lambda _: ()) -> "KnownWorkload":
        """Read a ScaledWorkload."""
        key, created = key_of(workload), nested(workload, "metadata", "creationTimestamp") or ""
        try:
            spec = ScaledWorkloadSpec.from_object(workload)
        except SettingsError as error:
            return cls(key=key, created=created, problems=error.problems)
        problems = tuple(check(ScalingPolicySpec(schedules=spec.scaling.schedules)))
        return cls(key=key, created=created, spec=spec, problems=problems)

    @property
    def age(self) -> tuple[str, Key]:
        """Sorts workloads, the oldest first."""
        return self.created, self.key

    @property
    def target(self) -> tuple[Kind | None, str]:
        """Kind and name of the target. The kind is None if this project does not scale it."""
        assert self.spec is not None, "the spec can be read"
        return target_kind(self.spec.target.api_version, self.spec.target.kind), self.spec.target.name

    def reads(self, kind: Kind, name: str) -> bool:
        """Whether the status depends on an object of the namespace, for example the target or a named Service."""
        if self.spec is None or kind in {kinds.HORIZONTAL_POD_AUTOSCALER, kinds.NAMESPACE}:
            return self.spec is not None
        fallback = self.spec.cold_start.fallback
        services = (self.spec.service.name, None if fallback is None else fallback.name)
        return (kind == kinds.SERVICE and name in services) or (kind, name) == self.target


class KnownWorkloads:
    """All workloads, by namespace."""

    __slots__ = ("_by_namespace", "_check", "scales")

    def __init__(self, check: PolicyCheck) -> None:
        self._check = check
        self.scales: dict[Key, Object | None] = {}
        """The scale of each workload whose target kind is not watched; None if the target does not exist."""

        self._by_namespace: defaultdict[str, dict[str, KnownWorkload]] = defaultdict(dict)

    def __iter__(self) -> Iterator[KnownWorkload]:
        for workloads in self._by_namespace.values():
            yield from workloads.values()

    @property
    def namespaces(self) -> frozenset[str]:
        """The namespaces with workloads."""
        return frozenset(self._by_namespace)

    def put(self, key: Key, workload: Object | None) -> None:
        """Store the present state of a workload; None removes it."""
        namespace, name = key
        if workload is not None:
            known = KnownWorkload.of(workload, self._check)
            before = self._by_namespace[namespace].get(name)
            if before is not None and before.spec != known.spec:
                self.scales.pop(key, None)
            self._by_namespace[namespace][name] = known
            return
        self.scales.pop(key, None)
        del self._by_namespace[namespace][name]
        if not self._by_namespace[namespace]:
            del self._by_namespace[namespace]

    def get(self, key: Key) -> KnownWorkload:
        """A workload that exists."""
        return self._by_namespace[key[0]][key[1]]

    def readers(self, kind: Kind, key: Key) -> Iterator[Key]:
        """The workloads whose status depends on an object."""
        namespace, name = key
        for workload in self._by_namespace.get(namespace or name, {}).values():
            if workload.reads(kind, name):
                yield workload.key
