"""Copies of the objects of one kind in selected namespaces.

A daemon that needs the pods of a few workloads watches only the namespaces with workloads. A namespace that is no
longer watched reports no deletions; the reader must drop its objects.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from serving.core.model.objects import Key, Object
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Cluster
from serving.net.cluster.reflector import CacheChange, Reflector

# A namespace that must not be listed does not stop the others.
_SYNC_MAX_S = 5.0


class NamespacedReflectors:
    """A reflector for each selected namespace.

    ``run`` maintains them; ``choose`` and ``cache`` may be called at any time.
    """

    def __init__(
        self, cluster: Cluster, kind: Kind, *, label_selector: str = "", on_change: Callable[[CacheChange], None]
    ) -> None:
        self.kind = kind
        self._cluster = cluster
        self._label_selector = label_selector
        self._on_change = on_change
        self._reflectors: dict[str, Reflector] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: SupervisedTasks | None = None

    def choose(self, namespaces: AbstractSet[str]) -> None:
        """Select exactly these namespaces."""
        for namespace in self._reflectors.keys() - namespaces:
            del self._reflectors[namespace]
            if namespace in self._tasks:
                self._tasks.pop(namespace).cancel()
        for namespace in sorted(namespaces - self._reflectors.keys()):
            self._reflectors[namespace] = Reflector(
                self._cluster,
                self.kind,
                namespace,
                label_selector=self._label_selector,
                on_change=self._on_change,
            )
            self._start(namespace)

    def cache(self, namespace: str) -> Mapping[Key, Object]:
        """The known objects of a namespace; empty if it is not selected."""
        reflector = self._reflectors.get(namespace)
        return {} if reflector is None else reflector.cache

    async def synced(self) -> None:
        """Wait until each selected namespace has been listed once, or has refused the list."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SYNC_MAX_S):
                for reflector in list(self._reflectors.values()):
                    await reflector.synced.wait()

    async def run(self) -> None:
        """Watch the selected namespaces until cancelled."""
        async with supervise() as group:
            self._group = group
            for namespace in list(self._reflectors):
                self._start(namespace)
            await asyncio.get_running_loop().create_future()

    def _start(self, namespace: str) -> None:
        if self._group is not None:
            reflector = self._reflectors[namespace]
            name = f"{self.kind.plural} of {namespace}"
            self._tasks[namespace] = self._group.start(reflector.run(), name=name)
