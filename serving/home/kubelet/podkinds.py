"""The kinds of pods on one machine: the actions of each state of a start (``podstate``), and the choice of a kind.

``PodSetup`` has what all kinds need: sources, volumes, environments and isolation. A kind makes the start orders of
containers.

| kind | its apps are | starts first | is probed at |
|---|---|---|---|
| ``ProcessPod`` | processes in the network of the machine | app | 127.0.0.1, its assigned port |
| ``PreloadedPod`` | forks of their revision's warm process | queue-proxy | as a process |
| ``InAppPod`` | processes, with the queue-proxy inside the serving process | app | the pod's address, 8012 |
| ``NetworkedPod`` | processes in a separate network | app | 127.0.0.1 there, containerPort |
| ``ContainerPod`` | containers of images | queue-proxy | as a networked pod |

Cgroups enforce limits of cpu and memory where they take them; otherwise the kubelet watches memory.

A pod runs as processes if its template names a command of this machine (``serving.dev/command``, set by
``serving deploy --command``). Any other pod waits for its images and runs them. A container's command never runs
outside of its image.

With ``serving.dev/network: pod``, processes have a separate network as containers have, but no other isolation of
containers.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import ClusterError, InvalidValue, NotFound
from serving.core.model.knative import (
    FOLDER_ANNOTATION,
    NO_OWN_NETWORK,
    PRELOAD_MODULES_ANNOTATION,
    QUEUE_PROXY,
    QUEUE_PROXY_ANNOTATION,
    REVISION_LABEL,
    REVISION_UID_LABEL,
    SNAPSHOT_ANNOTATION,
)
from serving.core.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, tcp_ports_of
from serving.core.scaling.resolve import resolve_annotations
from serving.core.scaling.spec import ScalingSpec, dormant_variables
from serving.core.traffic.backoff import backoff_s
from serving.home.apiserver.accounttokens import LIFETIME_MIN_S, account_token
from serving.home.containers.cgroups import PodCgroups, limits_of
from serving.home.containers.network import routed_address
from serving.home.containers.podsandbox import PodSandbox
from serving.home.images.pullers import credentials_of
from serving.home.images.store import ImageUnavailable, StoredImage
from serving.home.kubelet.container import ContainerSpec
from serving.home.kubelet.nodecontext import NodeContext
from serving.home.kubelet.podwarnings import memory_limit_bytes
from serving.home.pods.claims import claim_folders, make_claim_folder
from serving.home.pods.diskbudget import DiskUse, overuse
from serving.home.pods.locations import QUEUE_PORTS, PodLocation, is_reserved, listening_ports
from serving.home.pods.machine import node_status, read_machine
from serving.home.pods.podfolder import (
    app_folder,
    disk_error,
    is_secret,
    mount,
    mount_in_memory,
    mount_points,
    root_folder,
    temporary_folder,
)
from serving.home.pods.podplan import (
    AppPlan,
    ContainerState,
    all_containers,
    app_plan,
    container_name_of,
    has_own_network,
    is_init,
    is_own_proxy,
    named_ports,
    proxy_environment,
    runs_images,
    serves,
    serving_ports,
    uses_http2,
)
from serving.home.pods.probeplan import ProbePlan, listening_probe, probe_plans, sidecar_probe_plans
from serving.home.pods.snapshot import linked_paths, path_of_snapshot
from serving.home.pods.sources import (
    TOKEN,
    ByteBudget,
    PodFacts,
    Reference,
    Sources,
    container_environment,
    data_of,
    references,
    volume_files,
)
from serving.home.pods.usage import TICKS_PER_S, SessionTotals
from serving.home.processes.appcopy import AppCopy
from serving.home.processes.isolation import Confinement, files_of, is_open
from serving.home.processes.mounts import MountPoint
from serving.home.processes.orders import StartProcess
from serving.home.trees import is_virtualenv
from serving.net.aio import netns
from serving.net.aio.clock import now_s, wall_s
from serving.net.aio.periodic import wait_for
from serving.net.cluster.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, REVISION, SECRET
from serving.net.wire.tokens import caller_key, pod_secret, pod_token
from serving.queueproxy.podspec import Probe, probing_app

_log = logging.getLogger(__name__)

_NO_PORTS: Mapping[int, int] = {}
# Kubernetes' kubelet checks once a minute; reading an object of this process costs microseconds.
_SOURCES_PERIOD_S = 5.0

CALLER_URL = "SERVING_CALLER_URL"
"""The environment variable with the URL at which an app gets its caller token from its queue-proxy."""
_NO_NETWORK = "pods have separate networks only if containers run as root, see `serving doctor`"
_NO_BOX = "a pod that is a process in the network of this machine: without --fixed-port, and with --command instead of an image"

_PAUSE_FIRST_S, _PAUSE_MAX_S = 5.0, 300.0
_SOURCE_KINDS = {kind.name: kind for kind in (CONFIG_MAP, SECRET, PERSISTENT_VOLUME_CLAIM)}


@functools.cache
def _allocatable() -> Mapping[str, str]:
    """The resources of this machine available to pods."""
    return node_status(read_machine(), at="")["allocatable"]  # type: ignore[no-any-return]  # JSON


class PodSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The input for setting up one pod. ``pod_id`` is its name in the runtime and the name of its folder.

    ``revision`` and ``sources`` are empty until they are read. ``user`` owns the files of volumes; 0 is the user of
    this process.
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
        """Whether the pod belongs to a revision; activators send no requests to other pods."""
        return REVISION_LABEL in labels_of(self.manifest)

    @property
    def proxy_name(self) -> str:
        """The name of the container whose process is, or contains, the queue-proxy."""
        containers = self.manifest["spec"]["containers"]
        inside = (container for container in containers if is_own_proxy(self.manifest, container))
        return next(map(container_name_of, inside), QUEUE_PROXY)

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
        """Read the existing ConfigMaps and Secrets that the pod references."""
        namespace = namespace_of(self.manifest)
        sources: dict[Reference, dict[str, bytes]] = {}
        for reference in references(self.manifest):
            if reference.kind == TOKEN:
                sources[reference] = {"": self._token(reference).encode()}
                continue
            kind = _SOURCE_KINDS[reference.kind]
            with contextlib.suppress(NotFound):
                source = await self.node.cluster.get(kind, namespace, reference.name)
                sources[reference] = data_of(reference.kind, source)
        return sources

    def write_volumes(self, sources: Sources) -> None:
        """Check that nothing is missing, and write the pod's volumes.

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
        mount_in_memory(self.folder, [volume["name"] for volume in spec["volumes"] if is_secret(volume)])
        mount(self.folder, volumes, mounts, user=self.user, claims=claims)

    async def update_volumes(self, stop: asyncio.Event) -> None:
        """Write the volumes again whenever their sources have changed, until ``stop`` is set."""
        known = self.sources
        while not await wait_for(stop, until_s=now_s() + _SOURCES_PERIOD_S):
            try:
                sources = await self.read_sources()
                if not stop.is_set() and sources != known:
                    self.write_volumes(sources)
                    known = sources
            except (ClusterError, InvalidValue, OSError) as error:
                _log.warning("volumes.stale", extra={"error": str(error)})

    def mount_points(self, container: Object) -> tuple[MountPoint, ...]:
        """The volume mounts of a container, each at its mountPath. Raises ``InvalidValue``."""
        volumes = self.manifest["spec"].get("volumes") or ()
        claims = claim_folders(self.node.volumes, self.manifest)
        return mount_points(self.folder, container, volumes, claims=claims)

    @property
    def tcp_ports(self) -> dict[int, int]:
        """The ports assigned to the pod for TCP connections, by containerPort."""
        numbers = tcp_ports_of(self.manifest["spec"]["containers"])
        return dict(zip(numbers, self.location.tcp_ports, strict=False))

    def environment(self, container: Object, tcp_ports: Mapping[int, int] = _NO_PORTS) -> dict[str, str]:
        """The environment in a container's manifest and, if it serves, its TCP ports."""
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
        """The key with which the app requests its caller token from its queue-proxy.

        Apps of other pods can also connect to the queue-proxy, but do not have the key.
        """
        return caller_key(self.node.key, namespace=namespace_of(self.manifest), pod=name_of(self.manifest))

    def proxy_environment(
        self,
        *,
        app: str,
        app_user: int | None,
        tcp_ports: Mapping[int, int] = _NO_PORTS,
        oom_folders: Sequence[str] = (),
    ) -> dict[str, str]:
        """The environment of the pod's queue-proxy, including secrets.

        ``app`` is the app's address, "host:port". The socket there must belong to a process of the app or to the user
        id ``app_user``, which is 0 if the pod has no user of its own; None disables this check. In each of
        ``oom_folders`` the kernel or the kubelet counts OOM kills.
        """
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
        """The dormancy settings of the pod's revision, from the autoscaler's settings and annotations."""
        return resolve_annotations(
            annotations_of(self.manifest), self.node.scaling(), container_concurrency=0, reachable=True
        )

    def confinement(self, container: Object, plan: AppPlan, *, ports: Collection[int] | None) -> Confinement | None:
        """The isolation of a process container: its files, its program, and its ports (None for all)."""
        isolation = self.node.isolation
        if isolation is None:
            return None
        named = annotations_of(self.manifest).get(FOLDER_ANNOTATION, "")
        snapshot = plan.folder if Path(plan.folder).is_relative_to(self.node.snapshots) else ""
        # A pod has a snapshot's folder only where the snapshot links to it; a virtual environment is read.
        links = linked_paths(Path(snapshot)) if snapshot else ()
        is_linked = any(
            Path(link).is_relative_to(Path(named).resolve()) and not is_virtualenv(Path(link)) for link in links
        )
        used = [named] if named and (not snapshot or is_linked) else []
        used += [path for path in (snapshot, plan.folder) if path and not is_open(path) and path != str(self.folder)]

        ours = (self.folder.resolve(), self.node.snapshots.resolve())
        state = Path(isolation.state).resolve()

        def is_allowed(path: str) -> bool:
            # A pod sees only its own folder and snapshots of the state folder, whatever its manifest and scripts name.
            # An app that runs in "/" does not therefore see all closed folders.
            real = Path(path).resolve()
            if str(real) == "/":
                return False
            return not real.is_relative_to(state) or any(map(real.is_relative_to, ours))

        claims = claim_folders(self.node.volumes, self.manifest)
        mounts = [
            (volume["name"], f"/{volume['mountPath'].strip('/')}") for volume in container.get("volumeMounts") or ()
        ]
        # Each pod has its own user, which owns a claim's files both below HOME and at their mount.
        theirs = [path for name, place in mounts if name in claims for path in (str(claims[name]), place)]
        # Mounts of the manifest are visible, also at or below /tmp.
        named_files = [
            *files_of(plan.arguments, plan.environment, plan.folder),
            *links,
            *(place for _, place in mounts),
        ]
        return isolation.confinement(
            address=self.location.address,
            shown=[path for path in (str(self.folder), plan.folder, *named_files) if is_allowed(path)],
            owned=[
                *(path for path in used if path.startswith("/") and Path(path).is_dir() and is_allowed(path)),
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
        """The folder of the pod's logs."""
        return self.node.logs / namespace_of(self.manifest) / name_of(self.manifest)


class ProcessPod:
    """A pod of processes in the network of the machine. The classes of other pods override what differs."""

    is_proxy_first = False
    """Whether the queue-proxy starts before the apps: the slower start goes first."""
    is_boxed = False
    """Whether the next control process also runs it as containers."""
    is_rootless = False
    """Whether its containers have a single user."""
    has_images = False
    """Whether its containers run images."""

    def __init__(self, setup: PodSetup) -> None:
        self.setup = setup
        self.network = ""
        self.resolver = ""
        self.hosts = setup.hosts
        self.port = setup.location.port
        """The port of the app."""
        self.tcp_ports = setup.tcp_ports
        self.cgroups = PodCgroups(setup.node.cgroups, setup.pod_id)

    @property
    def image_ids(self) -> Mapping[str, str]:
        """The image of each container; none for processes."""
        return {}

    @property
    def app_user(self) -> int | None:
        """The user id that only this pod's processes have; 0 if they have the user of this process.

        None if the pod has its own network, in which no process of another pod can listen.
        """
        if self.network:
            return None
        isolation = self.setup.node.isolation
        return 0 if isolation is None else isolation.user_of(self.setup.location.address)

    @property
    def refused_limits(self) -> Mapping[str, Collection[str]]:
        """The limits that no cgroup enforces, by container."""
        return self.cgroups.refused

    def start(self, container: Object) -> StartProcess:
        """The start order of an app container.

        Raises:
            InvalidValue: when there is nothing to run, or its user or a limit cannot be used.
            OSError: when a container's folder cannot be written.
        """
        return self._process(container, self.setup.environment(container, self.tcp_ports))

    def start_proxy(self) -> StartProcess:
        """The start order of the queue-proxy, in the pod's network."""
        setup = self.setup
        # Without a cgroup for the limit, the kubelet counts its own kills there.
        folders = [str(setup.logs), *self.cgroups.memory_folders()]
        return StartProcess(
            pod=setup.pod_id,
            name=QUEUE_PROXY,
            environment=setup.proxy_environment(
                app=f"127.0.0.1:{self.port}",
                app_user=self.app_user,
                tcp_ports=self.tcp_ports,
                oom_folders=folders,
            ),
            log=setup.log_of(QUEUE_PROXY),
            network=self.network,
        )

    def completed(self, container: Object, spec: ContainerSpec) -> ContainerSpec:
        """The spec of an app container with its probes, their address, and its restart policy."""
        manifest = self.setup.manifest
        has_proxy, is_first = self.setup.has_proxy, is_init(manifest, container)
        is_serving = has_proxy and serves(manifest, container)
        policy = "Always" if has_proxy else manifest["spec"].get("restartPolicy", "Always")
        others = () if is_first else map(self._at_reached_port, sidecar_probe_plans(container))
        return msgspec.structs.replace(
            spec,
            exit_reason=functools.partial(self.cgroups.exit_reason, container_name_of(container)),
            probes=tuple(probe_plans(container) if is_serving else others),
            listening=listening_probe(container) if is_serving else None,
            is_http2=uses_http2(container),
            address=("127.0.0.1", self.port),
            app_user=self.app_user,
            restart_policy="OnFailure" if is_first and policy == "Always" else policy,
        )

    def watched_memory(self) -> dict[str, int]:
        """The memory limits that no cgroup enforces, in bytes by container."""
        limits = {
            container_name_of(all_container): memory_limit_bytes(all_container)
            for all_container in all_containers(self.setup.manifest)
        }
        return {
            name: limit for name, limit in limits.items() if limit and "memory" in self.refused_limits.get(name, ())
        }

    def totals(self) -> Mapping[str, SessionTotals]:
        """The usage of each container with cgroups."""
        return {
            name: SessionTotals(round(use.cpu_s * TICKS_PER_S), use.memory_bytes)
            for name, use in self.cgroups.uses().items()
        }

    async def connect(self, port: int, pids: Collection[int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port on which one of these app processes listens. Raises ``OSError``."""
        listening = await asyncio.to_thread(
            lambda: {listening_port for pid in pids for listening_port in listening_ports(pid)}
        )
        if port not in listening and self._declares(port):
            # A declared port is only a wish here: the app listens on its assigned port.
            port = self.tcp_ports.get(port, self.port)
        if port not in listening:
            ports = ", ".join(map(str, sorted(listening))) or "no port"
            raise ConnectionRefusedError(f"the pod listens on {ports}, not on {port}")
        return await asyncio.open_connection("127.0.0.1", port)

    def reach(self, port: int) -> tuple[str, int]:
        """The address and port at which processes of this machine reach a container port.

        The pod shares the machine's network, so the port is the one that this machine assigned.
        """
        return "127.0.0.1", self.tcp_ports.get(port, self.port)

    def _at_reached_port(self, plan: ProbePlan) -> ProbePlan:
        """The plan with the port at which this machine reaches a declared port."""
        return msgspec.structs.replace(plan, port=self.reach(plan.port)[1]) if self._declares(plan.port) else plan

    def _declares(self, port: int) -> bool:
        return any(serving_port.get("containerPort") == port for serving_port in serving_ports(self.setup.manifest))

    def _ports(self, container: Object) -> Collection[int] | None:
        """The ports on which a container may listen; None for all.

        Allowed are the pod's assigned ports, and the ports in its manifest that are not reserved for other pods.
        """
        if self.network:
            return None
        location, manifest = self.setup.location, self.setup.manifest
        ports = {location.port, *location.tcp_ports, *location.named_ports}
        if is_own_proxy(manifest, container):
            ports |= {*QUEUE_PORTS}
        return ports | {port for port in named_ports(manifest) if not is_reserved(port)}

    def _mounts(self, container: Object) -> tuple[MountPoint, ...]:
        return self.setup.mount_points(container)

    def _process(self, container: Object, variables: Mapping[str, str]) -> StartProcess:
        """The start order of a container as a process."""
        setup, manifest, name = self.setup, self.setup.manifest, container_name_of(container)
        snapshot = annotations_of(manifest).get(SNAPSHOT_ANNOTATION, "")
        plan = app_plan(
            manifest,
            container,
            port=self.port,
            home=str(setup.folder),
            variables=variables,
            snapshot=str(path_of_snapshot(setup.node.snapshots, snapshot)) if snapshot else "",
        )
        confinement = setup.confinement(container, plan, ports=self._ports(container))
        copy = None
        if plan.snapshot:
            user = confinement.user if confinement is not None else 0
            copy = AppCopy(source=plan.snapshot, place=str(app_folder(setup.folder)), user=user)
            if confinement is not None:
                confinement = msgspec.structs.replace(confinement, copies={copy.source: copy.root})
        limits = limits_of(container)
        # A container without limits needs no cgroup, which would take a millisecond.
        is_limited = limits.cpu_m is not None or limits.memory_bytes is not None
        return StartProcess(
            pod=setup.pod_id,
            name=name,
            cgroups=self.cgroups.make(name, limits) if is_limited else (),
            arguments=plan.arguments,
            environment=plan.environment,
            folder=plan.folder,
            log=setup.log_of(name),
            mounts=self._mounts(container),
            new_root=str(root_folder(setup.folder)),
            hostname=name_of(manifest),
            network=self.network,
            hosts=self.hosts,
            resolver=self.resolver,
            confinement=confinement,
            copy=copy,
        )


class PreloadedPod(ProcessPod):
    """A pod whose serving app is forked from the warm process of its revision."""

    # The template forks a queue-proxy faster than the warm process forks the app.
    is_proxy_first = True

    @property
    def app_user(self) -> int | None:
        """The user shared by the revision's warm process and its pods."""
        isolation = self.setup.node.isolation
        return (
            0
            if isolation is None
            else isolation.user_of_revision(self.setup.node.warm_revision_of(self.setup.manifest))
        )

    def start(self, container: Object) -> StartProcess:
        """The start order of an app container. The serving app is forked from the warm process of its revision."""
        order, manifest = super().start(container), self.setup.manifest
        if not serves(manifest, container):
            return order
        named = annotations_of(manifest).get(PRELOAD_MODULES_ANNOTATION, "")
        revision, isolation = self.setup.node.warm_revision_of(manifest), self.setup.node.isolation
        confinement = order.confinement
        if confinement is not None and isolation is not None:
            # Like the warm process, which has one user and one /tmp, and sees the folders of all its pods.
            own, around = str(self.setup.folder), str(self.setup.folder.parent)
            shown = tuple(around if path == own else path for path in confinement.shown)
            user = isolation.user_of_revision(revision)
            temporary = str(temporary_folder(self.setup.folder.parent))
            confinement = msgspec.structs.replace(
                confinement, shown=shown, temporary=temporary, user=user, has_own_pids=False, copies={}
            )
        return msgspec.structs.replace(
            order,
            confinement=confinement,
            # A warm process has imported the app from the snapshot.
            copy=None,
            preload=revision,
            modules=tuple(module.strip() for module in named.split(",") if module.strip()),
        )


class InAppPod(ProcessPod):
    """A pod whose serving app has the queue-proxy in its process, at the pod's address."""

    def __init__(self, setup: PodSetup) -> None:
        super().__init__(setup)
        self.port, _ = QUEUE_PORTS

    def start(self, container: Object) -> StartProcess:
        """The start order of an app container. The serving app also gets the environment of a queue-proxy."""
        setup, host = self.setup, self.setup.location.address
        if not is_own_proxy(setup.manifest, container):
            return super().start(container)
        proxy = setup.proxy_environment(app=f"{host}:{self.port}", app_user=self.app_user)
        variables = {**setup.environment(container), **proxy, "HOST": host}
        return msgspec.structs.replace(self._process(container, variables), is_own_proxy=True)

    def completed(self, container: Object, spec: ContainerSpec) -> ContainerSpec:
        """The spec of an app container. The probes carry the pod's secret, which the queue-proxy in the app checks."""
        updated = super().completed(container, spec)
        if not spec.start.is_own_proxy:
            return updated
        return msgspec.structs.replace(
            updated,
            address=(self.setup.location.address, self.port),
            probes=tuple(msgspec.structs.replace(probe, probe=self._marked(probe.probe)) for probe in updated.probes),
            listening=updated.listening and self._marked(updated.listening),
        )

    def reach(self, port: int) -> tuple[str, int]:
        """The address at which processes of this machine reach a container port: the app is at the pod's address."""
        return self.setup.location.address, self.tcp_ports.get(port, self.port)

    async def connect(self, port: int, pids: Collection[int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port of the pod. The serving app contains the queue-proxy and listens at the pod's address."""
        if self._declares(port):
            return await asyncio.open_connection(self.setup.location.address, self.port)
        return await super().connect(port, pids)

    def _marked(self, probe: Probe) -> Probe:
        manifest, key = self.setup.manifest, self.setup.node.key
        return probing_app(probe, secret=pod_secret(key, namespace=namespace_of(manifest), pod=name_of(manifest)))


class NetworkedPod(ProcessPod):
    """A pod of processes in its own network namespace, which ``sandbox`` has created."""

    is_boxed = True

    def __init__(self, setup: PodSetup, sandbox: PodSandbox) -> None:
        super().__init__(setup)
        self.network = sandbox.network
        self.resolver = sandbox.resolver
        self.hosts = sandbox.hosts
        self.port = sandbox.port
        self.tcp_ports = {
            container_port: container_port if self.network else own for container_port, own in self.tcp_ports.items()
        }

    def start(self, container: Object) -> StartProcess:
        """The start order of an app container. Raises ``InvalidValue`` for an app that contains the queue-proxy.

        Such a queue-proxy would be in the pod's network, where activators do not reach it.
        """
        if is_own_proxy(self.setup.manifest, container):
            raise InvalidValue(text=annotations_of(self.setup.manifest)[QUEUE_PROXY_ANNOTATION], expected=_NO_BOX)
        return super().start(container)

    def reach(self, port: int) -> tuple[str, int]:
        """The address at which processes of this machine reach a container port, in the pod's network if it has one."""
        return routed_address(self.setup.location.address) if self.network else "127.0.0.1", port

    async def connect(self, port: int, pids: Collection[int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a port in the pod's network. ``pids`` is unused: only this pod's processes listen there."""
        del pids
        return await netns.open_connection("127.0.0.1", port, network=self.network)


class ContainerPod(NetworkedPod):
    """A pod of containers, started by a container runtime."""

    # A container runtime takes the template longer than a queue-proxy does.
    is_proxy_first = has_images = True

    def __init__(self, setup: PodSetup, sandbox: PodSandbox) -> None:
        super().__init__(setup, sandbox)
        self._sandbox = sandbox
        self.is_rootless = sandbox.is_rootless
        self.cgroups = sandbox.cgroups

    @property
    def app_user(self) -> int | None:
        """0, for an unknown user: the image determines the user. None if the pod has its own network."""
        return None if self.network else 0

    @property
    def image_ids(self) -> Mapping[str, str]:
        """The image of each container as NAME@DIGEST, or sha256:ID without a digest."""
        return self._sandbox.image_ids

    def _process(self, container: Object, variables: Mapping[str, str]) -> StartProcess:
        """The start order of a container."""
        log = self.setup.log_of(container_name_of(container))
        return self._sandbox.order(container, variables=variables, mounts=self._mounts(container), log=log)


def _kind_without_box(setup: PodSetup) -> ProcessPod:
    pod = setup.manifest
    if any(is_own_proxy(pod, container) for container in pod["spec"]["containers"]):
        return InAppPod(setup)
    return (PreloadedPod if setup.node.warm_revision_of(pod) else ProcessPod)(setup)


async def choose_kind(
    setup: PodSetup,
    *,
    was_boxed: bool | None,
    on_state: Callable[[str, ContainerState], None],
    warn: Callable[[str, str], Awaitable[None]],
    stop: asyncio.Event,
) -> ProcessPod:
    """Prepare images and network, and return the kind of pod to run. Repeat after a failure until the pod is deleted.

    ``was_boxed`` is the choice of an earlier control process, None for a new pod. ``on_state`` receives the reason for
    which a container waits, ``warn`` the reason and message of an Event.
    """
    host, pod, failure_count = setup.node.containers, setup.manifest, 0
    has_network, otherwise = has_own_network(pod), _kind_without_box(setup)
    if has_network and (host is None or host.networks is None):
        await warn(NO_OWN_NETWORK, f"the app must listen on $PORT: {_NO_NETWORK}")
        return otherwise
    if host is None or not (has_network or (runs_images(pod) if was_boxed is None else was_boxed)):
        return otherwise
    revision = labels_of(pod).get(REVISION_UID_LABEL, "")
    while True:
        name = ""
        images: dict[str, StoredImage] = {}
        try:
            credentials = b"" if has_network else await _credentials(setup, warn)
            for container in () if has_network else all_containers(pod):
                name, policy = container_name_of(container), container.get("imagePullPolicy", "")
                key = f"{revision}/{name}" if revision else ""
                images[name] = await host.images.ensure(
                    container.get("image", ""), policy=policy, key=key, credentials=credentials
                )
            sandbox = PodSandbox(
                host, pod, images, pod_id=setup.pod_id, location=setup.location, folder=setup.folder, hosts=setup.hosts
            )
            await sandbox.prepare()
        except ImageUnavailable as error:
            waiting = ContainerState(waiting_reason=error.reason, waiting_message=str(error))
            await warn(error.reason, str(error))
        except OSError as error:
            why = disk_error(error, setup.node.pods)
            waiting = ContainerState(waiting_reason="CreatePodSandboxError", waiting_message=why)
        else:
            return ContainerPod(setup, sandbox) if images else NetworkedPod(setup, sandbox)
        on_state(name, waiting)
        failure_count += 1
        pause_s = backoff_s(failure_count, first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S)
        if await wait_for(stop, until_s=now_s() + pause_s):
            return otherwise


async def _credentials(setup: PodSetup, warn: Callable[[str, str], Awaitable[None]]) -> bytes:
    """Registry credentials from the pod's imagePullSecrets. An Event reports a Secret without credentials."""
    secrets = []
    for name in dict.fromkeys(
        image_pull_secret.get("name", "") for image_pull_secret in setup.manifest["spec"].get("imagePullSecrets") or ()
    ):
        try:
            secret = await setup.node.cluster.get(SECRET, namespace_of(setup.manifest), name)
            credentials_of([secret])
        except (NotFound, InvalidValue) as error:
            why = f"expected {error.expected}" if isinstance(error, InvalidValue) else str(error)
            await warn("FailedToRetrieveImagePullSecret", f"imagePullSecrets: {name}: {why}")
        else:
            secrets.append(secret)
    return credentials_of(secrets)
