"""Prepares a pod: reads its sources, writes its volumes, and turns its manifest into start orders.

The decisions are in ``podplan`` and ``sources``; this module reads objects from the store and writes volumes to disk.
``follow_sources`` updates volumes when their sources change.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from serving.aio.clock import now_s, wall_s
from serving.aio.periodic import wait_for
from serving.cluster.kinds import CONFIG_MAP, REVISION, SECRET
from serving.cluster.port import Cluster
from serving.home.apiserver.accounttokens import LIFETIME_MIN_S, account_token
from serving.home.containers.podbox import ContainerHost, PodBox
from serving.home.images.store import StoredImage
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.pods.locations import QUEUE_PORTS, PodLocation
from serving.home.pods.machine import node_status, read_machine
from serving.home.pods.podfolder import mount, mount_points, root_folder
from serving.home.pods.podplan import (
    all_containers,
    app_plan,
    container_name_of,
    is_own_proxy,
    proxy_environment,
    serves,
)
from serving.home.pods.snapshot import path_of_snapshot
from serving.home.pods.sources import (
    TOKEN,
    PodFacts,
    Reference,
    Sources,
    container_environment,
    data_of,
    references,
    volume_files,
)
from serving.home.processes.orders import StartProcess
from serving.model.errors import ClusterError, InvalidValue, NotFound
from serving.model.knative import (
    PRELOAD_MODULES_ANNOTATION,
    QUEUE_PROXY_ANNOTATION,
    REVISION_LABEL,
    SNAPSHOT_ANNOTATION,
    TEMPLATE_ANNOTATION,
)
from serving.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, nested
from serving.queueproxy.podspec import Probe, probing_app
from serving.wire.tokens import pod_secret, pod_token

_log = logging.getLogger(__name__)

# Kubernetes' kubelet looks each minute; reading one object of this process costs microseconds.
_PERIOD_S = 5.0


async def read_sources(
    cluster: Cluster, namespace: str, wanted: Collection[Reference], *, token: Callable[[Reference], str]
) -> Sources:
    """The data of those that exist; ``token`` makes the tokens."""
    found: dict[Reference, dict[str, bytes]] = {}
    for reference in wanted:
        if reference.kind == TOKEN:
            found[reference] = {"": token(reference).encode()}
            continue
        kind = CONFIG_MAP if reference.kind == CONFIG_MAP.name else SECRET
        try:
            found[reference] = data_of(reference.kind, await cluster.get(kind, namespace, reference.name))
        except NotFound:
            continue
    return found


async def follow_sources(
    read: Callable[[], Awaitable[Sources]],
    write: Callable[[Sources], None],
    *,
    known: Sources,
    stop: asyncio.Event,
    period_s: float = _PERIOD_S,
) -> None:
    """Write the volumes again whenever what they show has changed, until ``stop`` is set."""
    while not stop.is_set():
        await wait_for(stop, until_s=now_s() + period_s)
        try:
            found = await read()
            if not stop.is_set() and found != known:
                write(found)
                known = found
        except (ClusterError, InvalidValue, OSError) as error:
            _log.warning("volumes.stale", extra={"error": str(error)})


QUEUE_PROXY = "queue-proxy"
_NO_BOX = "a pod that is a process in the network of this machine: without --fixed-port, and with --command instead of an image"


@functools.cache
def _allocatable() -> Mapping[str, str]:
    """The resources of this machine available to pods."""
    return node_status(read_machine(), at="")["allocatable"]  # type: ignore[no-any-return]  # JSON


class PodSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to set up. ``pod_id`` is its name in the runtime and that of its folder."""

    node: NodeContext
    manifest: Object
    pod_id: str
    location: PodLocation

    async def revision(self) -> Object:
        """The pod's revision; {} if it was deleted."""
        name = labels_of(self.manifest).get(REVISION_LABEL, "")
        try:
            return await self.node.cluster.get(REVISION, namespace_of(self.manifest), name)
        except NotFound:
            return {}

    async def read_sources(self) -> Sources:
        """Read the existing ConfigMaps and Secrets among those named by the pod."""
        namespace = namespace_of(self.manifest)
        return await read_sources(self.node.cluster, namespace, references(self.manifest), token=self._token)

    def write_volumes(self, sources: Sources) -> None:
        """Check that nothing is missing and write the pod's volumes.

        Raises:
            InvalidValue: when an object or a key that is not optional is missing.
            OSError: when a volume cannot be written.
        """
        spec = self.manifest["spec"]
        for container in all_containers(self.manifest):
            container_environment(self._facts, container, sources=sources)
        if not spec.get("volumes"):
            return
        volumes = {volume["name"]: volume_files(self._facts, volume, sources) for volume in spec["volumes"]}
        mounts = [one for container in all_containers(self.manifest) for one in container.get("volumeMounts", ())]
        mount(self.node.pods / self.pod_id, volumes, mounts)

    def box(self, host: ContainerHost, images: Mapping[str, StoredImage]) -> PodBox:
        """The pod as containers."""
        folder = self.node.pods / self.pod_id
        return PodBox(host, self.manifest, images, pod_id=self.pod_id, location=self.location, folder=folder)

    def app(self, container: Object, sources: Sources, box: PodBox | None, *, revision: Object) -> StartProcess:
        """The start order of an app container; of a process if the box has no containers.

        A container that is its own queue-proxy gets the address of the pod, and what a queue-proxy must know.

        Raises:
            InvalidValue: when there is nothing to run, or its user or a limit cannot be used.
            OSError: when a container's folder cannot be written.
        """
        folder = self.node.pods / self.pod_id
        given = container_environment(self._facts, container, sources=sources)
        is_inside, port = is_own_proxy(self.manifest, container), box.port if box else self.location.port
        if is_inside:
            if box is not None:
                place = annotations_of(self.manifest)[QUEUE_PROXY_ANNOTATION]
                raise InvalidValue(text=place, expected=_NO_BOX)
            port = QUEUE_PORTS[0]
            given = {**given, **self._proxy_environment(revision, app=f"{self.location.address}:{port}")}
            given["HOST"] = self.location.address
        mounts = mount_points(folder, container, nested(self.manifest, "spec", "volumes") or ())
        log = self._log(container_name_of(container))
        if box is not None and box.has_containers:
            return box.order(container, given=given, mounts=mounts, log=log)
        snapshot = annotations_of(self.manifest).get(SNAPSHOT_ANNOTATION, "")
        plan = app_plan(
            self.manifest,
            container,
            port=port,
            home=str(folder),
            given=given,
            snapshot=str(path_of_snapshot(self.node.snapshots, snapshot)) if snapshot else "",
        )
        named = annotations_of(self.manifest).get(PRELOAD_MODULES_ANNOTATION, "")
        return StartProcess(
            pod=self.pod_id,
            name=container_name_of(container),
            arguments=plan.arguments,
            environment=plan.environment,
            folder=plan.folder,
            log=log,
            mounts=mounts,
            new_root=str(root_folder(folder)),
            hostname=name_of(self.manifest),
            network=box.network if box else "",
            hosts=box.hosts if box else str(self.node.hosts or ""),
            resolver=box.resolver if box else "",
            # A warm process is in the network of this machine.
            preload=self._preload() if serves(self.manifest, container) and not box and not is_inside else "",
            modules=tuple(one.strip() for one in named.split(",") if one.strip()),
            is_own_proxy=is_inside,
        )

    def _preload(self) -> str:
        """The name of the revision if its pods are forked from a warm process."""
        is_wanted = annotations_of(self.manifest).get(TEMPLATE_ANNOTATION) == "preload"
        revision = labels_of(self.manifest).get(REVISION_LABEL, "")
        return f"{namespace_of(self.manifest)}/{revision}" if is_wanted else ""

    def marked(self, probe: Probe) -> Probe:
        """The probe of an app whose queue-proxy is in its process."""
        secret = pod_secret(self.node.key, namespace=namespace_of(self.manifest), pod=name_of(self.manifest))
        return probing_app(probe, secret=secret)

    def proxy(self, revision: Object, box: PodBox | None) -> StartProcess:
        """The start order of the queue-proxy, in the network of the pod's containers if any."""
        port = box.port if box else self.location.port
        # The kubelet counts there what it kills itself, where no cgroup has the limit.
        oom_folders = [str(self._logs)]
        if box is not None:
            oom_folders += box.memory_cgroups(self.manifest["spec"]["containers"])
        environment = self._proxy_environment(revision, app=f"127.0.0.1:{port}", oom_folders=oom_folders)
        network = box.network if box else ""
        log = self._log(QUEUE_PROXY)
        return StartProcess(pod=self.pod_id, name=QUEUE_PROXY, environment=environment, log=log, network=network)

    def _proxy_environment(self, revision: Object, *, app: str, oom_folders: Sequence[str] = ()) -> dict[str, str]:
        namespace, name, key = namespace_of(self.manifest), name_of(self.manifest), self.node.key
        of = labels_of(self.manifest)[REVISION_LABEL]
        return {
            **proxy_environment(
                self.manifest, revision, app=app, address=self.location.address, given=self.node.proxy()
            ),
            "SERVING_POD_STATS_URL": self.node.stats_url,
            "SERVING_POD_STATS_TOKEN": pod_token(key, namespace=namespace, revision=of, pod=name),
            "SERVING_POD_SECRET": pod_secret(key, namespace=namespace, pod=name),
            "SERVING_POD_OOM_FOLDERS": msgspec.json.encode(oom_folders).decode(),
        }

    @property
    def _facts(self) -> PodFacts:
        return PodFacts(pod=self.manifest, address=self.location.address, allocatable=_allocatable())

    def _token(self, wanted: Reference) -> str:
        lifetime_s = max(LIFETIME_MIN_S, wanted.lifetime_s)
        return account_token(self.node.key, self.manifest, audience=wanted.name, lifetime_s=lifetime_s, now_s=wall_s())

    def _log(self, container: str) -> str:
        return str(self._logs / f"{container}.log")

    @property
    def _logs(self) -> Path:
        return self.node.logs / namespace_of(self.manifest) / name_of(self.manifest)
