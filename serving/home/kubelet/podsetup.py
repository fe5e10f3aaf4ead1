"""Prepares a pod: reads its sources, writes its volumes, and makes the environment of its containers.

The decisions are in ``podplan`` and ``sources``; this module reads objects from the store and writes volumes to disk.
``follow_sources`` updates volumes when their sources change.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import ClusterError, InvalidValue, NotFound
from serving.core.model.knative import (
    FOLDER_ANNOTATION,
    REVISION_LABEL,
)
from serving.core.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, tcp_ports_of
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.spec import ScalingSpec, dormant_variables
from serving.home.apiserver.accounttokens import LIFETIME_MIN_S, account_token
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.pods.bytebudget import ByteBudget
from serving.home.pods.claims import claim_folders, make_claim_folder
from serving.home.pods.diskbudget import DiskUse, overuse
from serving.home.pods.locations import QUEUE_PORTS, PodLocation
from serving.home.pods.machine import node_status, read_machine
from serving.home.pods.podfolder import is_secret, keep_in_memory, mount, mount_points, temporary_folder
from serving.home.pods.podplan import (
    AppPlan,
    all_containers,
    proxy_environment,
    serves,
)
from serving.home.pods.snapshot import linked_paths
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
from serving.home.processes.isolation import Confinement, files_of, is_open
from serving.home.processes.mounts import MountPoint
from serving.home.trees import is_virtualenv
from serving.net.aio.clock import now_s, wall_s
from serving.net.aio.periodic import wait_for
from serving.net.cluster.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, REVISION, SECRET
from serving.net.cluster.port import Cluster
from serving.net.wire.tokens import caller_key, pod_secret, pod_token

_log = logging.getLogger(__name__)

_NO_PORTS: Mapping[int, int] = {}
# Kubernetes' kubelet looks each minute; reading one object of this process costs microseconds.
_PERIOD_S = 5.0

CALLER_URL = "SERVING_CALLER_URL"
"""Environment variable of an app: where its queue-proxy serves the token that names the app to other services."""


_KINDS = {kind.name: kind for kind in (CONFIG_MAP, SECRET, PERSISTENT_VOLUME_CLAIM)}


async def read_sources(
    cluster: Cluster, namespace: str, wanted: Collection[Reference], *, token: Callable[[Reference], str]
) -> Sources:
    """The data of existing sources; ``token`` makes the tokens."""
    sources: dict[Reference, dict[str, bytes]] = {}
    for reference in wanted:
        if reference.kind == TOKEN:
            sources[reference] = {"": token(reference).encode()}
            continue
        kind = _KINDS[reference.kind]
        try:
            sources[reference] = data_of(reference.kind, await cluster.get(kind, namespace, reference.name))
        except NotFound:
            continue
    return sources


async def follow_sources(
    read: Callable[[], Awaitable[Sources]],
    write: Callable[[Sources], None],
    *,
    known: Sources,
    stop: asyncio.Event,
    period_s: float = _PERIOD_S,
) -> None:
    """Write the volumes again whenever their sources have changed, until ``stop`` is set."""
    while not stop.is_set():
        await wait_for(stop, until_s=now_s() + period_s)
        try:
            sources = await read()
            if not stop.is_set() and sources != known:
                write(sources)
                known = sources
        except (ClusterError, InvalidValue, OSError) as error:
            _log.warning("volumes.stale", extra={"error": str(error)})


@functools.cache
def _allocatable() -> Mapping[str, str]:
    """The resources of this machine available to pods."""
    return node_status(read_machine(), at="")["allocatable"]  # type: ignore[no-any-return]  # JSON


class PodSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One pod to set up. ``pod_id`` is its name in the runtime and that of its folder.

    ``revision`` and ``sources`` are empty until they were read. ``user`` owns the files of volumes, 0 for that of this process.
    """

    node: NodeContext
    manifest: Object
    pod_id: str
    location: PodLocation
    revision: Object = {}
    sources: Sources = {}
    user: int = 0

    @property
    def has_proxy(self) -> bool:
        """Whether the pod belongs to a revision; other pods take no requests of activators."""
        return REVISION_LABEL in labels_of(self.manifest)

    @property
    def folder(self) -> Path:
        """The folder of the pod."""
        return self.node.folder_of(self.manifest, self.pod_id)

    @property
    def hosts(self) -> str:
        """The hosts file that the pod sees, "" for the machine's."""
        return self.node.hosts_of(namespace_of(self.manifest))

    async def read_revision(self) -> Object:
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
            InvalidValue: when an object or a key that is not optional is missing, or the pod's files are too large.
            OSError: when a volume cannot be written.
        """
        spec = self.manifest["spec"]
        for container in all_containers(self.manifest):
            container_environment(self._facts, container, sources=sources)
        if not spec.get("volumes"):
            return
        claims = claim_folders(self.node.volumes, self.manifest)
        for folder in claims.values():
            make_claim_folder(folder)
        budget = ByteBudget("the files of volumes of the pod", self.node.projected_bytes_max())
        volumes = {
            volume["name"]: volume_files(self._facts, volume, sources, budget=budget) for volume in spec["volumes"]
        }
        if text := overuse(self.manifest, DiskUse(total_bytes=budget.spent)):
            raise InvalidValue(text=f"{budget.spent} bytes of projected files", expected=f"fewer: {text.strip()}")
        mounts = [
            volume_mount
            for container in all_containers(self.manifest)
            for volume_mount in container.get("volumeMounts", ())
        ]
        keep_in_memory(self.folder, [volume["name"] for volume in spec["volumes"] if is_secret(volume)])
        mount(self.folder, volumes, mounts, user=self.user, claims=claims)

    def mount_points(self, container: Object) -> tuple[MountPoint, ...]:
        """The mounts of a container at their own paths. Raises ``InvalidValue``."""
        volumes = self.manifest["spec"].get("volumes") or ()
        claims = claim_folders(self.node.volumes, self.manifest)
        return mount_points(self.folder, container, volumes, claims=claims)

    @property
    def tcp_ports(self) -> dict[int, int]:
        """The assigned ports for TCP by containerPort."""
        numbers = tcp_ports_of(self.manifest["spec"]["containers"])
        return dict(zip(numbers, self.location.tcp_ports, strict=False))

    def environment(self, container: Object, tcp_ports: Mapping[int, int] = _NO_PORTS) -> dict[str, str]:
        """The environment in the manifest of a container, and where it listens for TCP if it serves."""
        environment = container_environment(self._facts, container, sources=self.sources)
        if serves(self.manifest, container):
            environment |= {f"PORT_{number}": str(port) for number, port in tcp_ports.items()}
        if self.has_proxy:
            environment.setdefault(
                CALLER_URL, f"http://{self.location.address}:{QUEUE_PORTS[1]}/caller-token?key={self.caller_key}"
            )
        return environment

    @property
    def caller_key(self) -> str:
        """The key with which the app requests its caller token: all processes of the machine share its loopback."""
        return caller_key(self.node.key, namespace=namespace_of(self.manifest), pod=name_of(self.manifest))

    def proxy_environment(
        self,
        *,
        app: str,
        app_user: int | None,
        tcp_ports: Mapping[int, int] = _NO_PORTS,
        oom_folders: Sequence[str] = (),
    ) -> dict[str, str]:
        """The environment of the queue-proxy of the app at an address, with its secrets; ``app_user`` as in ``PodSpec``."""
        namespace, name, key = namespace_of(self.manifest), name_of(self.manifest), self.node.key
        of = labels_of(self.manifest)[REVISION_LABEL]
        return {
            **proxy_environment(
                self.manifest,
                self.revision,
                app=app,
                address=self.location.address,
                tcp_ports=tcp_ports,
                proxy_settings=self.node.proxy(),
            ),
            **({} if app_user is None else {"SERVING_POD_APP_USER": str(app_user)}),
            "SERVING_POD_STATS_URL": self.node.stats_url,
            "SERVING_POD_STATS_TOKEN": pod_token(key, namespace=namespace, revision=of, pod=name),
            **({"SERVING_POD_AUTHORITY": self.node.authority} if self.node.authority else {}),
            "SERVING_POD_SECRET": self.secret,
            "SERVING_POD_CALLER_KEY": self.caller_key,
            "SERVING_POD_OOM_FOLDERS": msgspec.json.encode(oom_folders).decode(),
            **dormant_variables(self.scaling_spec),
        }

    @property
    def secret(self) -> str:
        """The secret that our daemons present to the pod's queue-proxy."""
        return pod_secret(self.node.key, namespace=namespace_of(self.manifest), pod=name_of(self.manifest))

    @property
    def scaling_spec(self) -> ScalingSpec:
        """The sleep settings of the pod's revision, from the autoscaler's settings and annotations."""
        return resolve_annotations(
            annotations_of(self.manifest), self.node.scaling(), container_concurrency=0, reachable=True
        )

    def confinement(self, container: Object, plan: AppPlan, *, ports: Collection[int] | None) -> Confinement | None:
        """The isolation of a container that is a process: it keeps its files, its program and its ports, None for all."""
        isolation = self.node.isolation
        if isolation is None:
            return None
        named = annotations_of(self.manifest).get(FOLDER_ANNOTATION, "")
        snapshot = plan.folder if Path(plan.folder).is_relative_to(self.node.snapshots) else ""
        # Of a snapshot a pod has the folder only where it links to it; a virtual environment is read.
        links = linked_paths(Path(snapshot)) if snapshot else ()
        is_linked = any(
            Path(link).is_relative_to(Path(named).resolve()) and not is_virtualenv(Path(link)) for link in links
        )
        used = [named] if named and (not snapshot or is_linked) else []
        used += [path for path in (snapshot, plan.folder) if path and not is_open(path) and path != str(self.folder)]

        ours = (self.folder.resolve(), self.node.snapshots.resolve())
        state = Path(isolation.state).resolve()

        def is_allowed(path: str) -> bool:
            # Of the state folder a pod has its own folder and snapshots, whatever its manifest and its scripts name. An app that runs in
            # "/" is not shown all closed folders for that.
            real = Path(path).resolve()
            if str(real) == "/":
                return False
            return not real.is_relative_to(state) or any(map(real.is_relative_to, ours))

        claims = claim_folders(self.node.volumes, self.manifest)
        mounted = [
            volume_mount for volume_mount in container.get("volumeMounts") or () if volume_mount["name"] in claims
        ]
        # Each pod has a user of its own: it sees a claim's files as its own, both below its HOME and where it mounts them.
        theirs = [str(claims[mount["name"]]) for mount in mounted] + [
            "/" + mount["mountPath"].strip("/") for mount in mounted
        ]
        named_files = [*files_of(plan.arguments, plan.environment, plan.folder), *links]
        # What the manifest mounts is there, also at or below /tmp.
        named_files += [
            "/" + volume_mount["mountPath"].strip("/") for volume_mount in container.get("volumeMounts") or ()
        ]
        return isolation.confinement(
            address=self.location.address,
            shown=[path for path in (str(self.folder), plan.folder, *named_files) if is_allowed(path)],
            owned=[
                *(
                    path
                    for path in used
                    if path.startswith("/") and path != "/" and Path(path).is_dir() and is_allowed(path)
                ),
                *theirs,
            ],
            ports=ports,
            temporary=str(temporary_folder(self.folder)),
        )

    @property
    def _facts(self) -> PodFacts:
        return PodFacts(pod=self.manifest, address=self.location.address, allocatable=_allocatable())

    def _token(self, wanted: Reference) -> str:
        lifetime_s = max(LIFETIME_MIN_S, wanted.lifetime_s)
        return account_token(self.node.key, self.manifest, audience=wanted.name, lifetime_s=lifetime_s, now_s=wall_s())

    def log_of(self, container: str) -> str:
        """The log of a container."""
        return str(self.logs / f"{container}.log")

    @property
    def logs(self) -> Path:
        """The folder of its logs."""
        return self.node.logs / namespace_of(self.manifest) / name_of(self.manifest)
