"""Maintains namespaces: the default ServiceAccount, and the status of ResourceQuotas.

Follows namespaces, accounts, quotas, and each kind that a quota counts. Quotas are enforced at admission
(``home/admission/namespacerules.py``), from the objects themselves; their status is for readers only.
"""

from serving.core.model.errors import AlreadyExists, NotFound
from serving.core.model.objects import Object, is_being_deleted, name_of, namespace_of
from serving.home.admission.namespacerules import DEFAULT_ACCOUNT, claims_in
from serving.home.admission.quotas import counted_kinds, quota_status
from serving.home.store.memory import MemoryCluster
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import NAMESPACE, RESOURCE_QUOTA, SERVICE_ACCOUNT, Kind
from serving.net.cluster.reflector import CacheChange, Reflector, start_synced
from serving.net.cluster.workqueue import WorkQueue

# Many objects change together; one check of all of them suffices.
_STATUS_LAG_S = 0.1

_WorkKey = tuple[Kind, str]
"""The task for one namespace: its ServiceAccount, or a quota's status."""


class NamespaceObjects:
    """Maintains the default ServiceAccount of each namespace, and the status of ResourceQuotas."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self._namespaces = Reflector(
            cluster, NAMESPACE, on_change=lambda change: self._queue.add((SERVICE_ACCOUNT, change.key[1]))
        )
        self._accounts = Reflector(
            cluster, SERVICE_ACCOUNT, on_change=lambda change: self._queue.add((SERVICE_ACCOUNT, change.key[0]))
        )
        self._quotas = Reflector(cluster, RESOURCE_QUOTA, on_change=self._quota_changed)
        self._queue: WorkQueue[_WorkKey] = WorkQueue("namespace-objects")
        self._counted: dict[Kind, Reflector] = {}
        self._group: SupervisedTasks | None = None

    async def run(self) -> None:
        """Watch namespaces, accounts and quotas, and maintain them until cancelled."""
        async with supervise() as group:
            self._group = group
            await start_synced(group, (self._namespaces, self._accounts, self._quotas), owner="namespaces")
            await self._queue.run(1, self._work)

    def _quota_changed(self, change: CacheChange) -> None:
        for kind in counted_kinds(change.new):
            if kind not in self._counted:
                self._watch_kind(kind)
        self._queue.add((RESOURCE_QUOTA, change.key[0]))

    def _watch_kind(self, kind: Kind) -> None:
        def changed(change: CacheChange) -> None:
            if any(namespace == change.key[0] for namespace, _ in self._quotas.cache):
                self._queue.add_after((RESOURCE_QUOTA, change.key[0]), _STATUS_LAG_S)

        assert self._group is not None, "quotas come while it runs"
        reflector = self._counted[kind] = Reflector(self._cluster, kind, on_change=changed)
        self._group.start(reflector.run(), name=f"quotas {kind.plural}")

    async def _work(self, key: _WorkKey) -> None:
        what, namespace = key
        if what == SERVICE_ACCOUNT:
            await self._ensure_account(namespace)
            return
        for quota in [quota for quota in self._quotas.cache.values() if namespace_of(quota) == namespace]:
            await self._update_status(quota)

    async def _ensure_account(self, namespace: str) -> None:
        there = self._namespaces.cache.get(("", namespace))
        if there is None or is_being_deleted(there) or (namespace, DEFAULT_ACCOUNT) in self._accounts.cache:
            return
        account = {"metadata": {"namespace": namespace, "name": DEFAULT_ACCOUNT}}
        try:
            await self._cluster.create(SERVICE_ACCOUNT, account)
        except (AlreadyExists, NotFound):
            return

    async def _update_status(self, quota: Object) -> None:
        namespace = namespace_of(quota)
        status = quota_status(quota, claims_in(self._cluster.table, namespace))
        if status == quota.get("status"):
            return
        patch = {"metadata": {"uid": quota["metadata"]["uid"]}, "status": status}
        try:
            await self._cluster.patch(RESOURCE_QUOTA, namespace, name_of(quota), patch=patch, subresource="status")
        except NotFound:
            return
