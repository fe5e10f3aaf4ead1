"""The sandbox of one pod: turns its manifest and images into start orders for its containers.

``ContainerHost`` is the container runtime of this machine with its images, networks and cgroups. The containers of a
pod share its network namespace, where they and the queue-proxy find each other at 127.0.0.1. All their files are in the
pod's folder and are removed with it.
"""

import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.imagereference import parse_reference
from serving.core.model.objects import Object, name_of, namespace_of
from serving.core.model.ports import CONTAINER_PORT
from serving.home.containers.bundle import (
    ContainerBox,
    arguments_of,
    bundle_config,
    capabilities_of,
    check_rights,
    environment_of,
    security_of,
)
from serving.home.containers.cgroups import CgroupTree, PodCgroups, find_cgroups, limits_of
from serving.home.containers.engine import find_engine, joins_cgroups, runtime_arguments
from serving.home.containers.network import PodNetworks, cgroup_name_of, networks_of
from serving.home.containers.users import ContainerUser, user_of
from serving.home.images.pullers import installed_pullers
from serving.home.images.source import ID_SCHEME, ImageSource
from serving.home.images.store import ImageStore, StoredImage
from serving.home.pods.locations import PodLocation
from serving.home.pods.podplan import all_containers, container_name_of, refuse_unsupported, serves
from serving.home.processes.mounts import HOSTS_PATH, MountPoint, OverlayMount
from serving.home.processes.orders import Launch, StartProcess
from serving.home.processes.ownusers import IDS_PER_POD, OwnUsers
from serving.net.aio.cooperative import finished_in_thread

_FOLDER_MODE = 0o755
_HOSTNAME_MAX = 63


class ContainerHost(msgspec.Struct, frozen=True, kw_only=True):
    """The container runtime of this machine: its path, images, networks, and cgroups if available.

    Without ``networks`` containers are rootless: they share the machine's network and this process's user. ``profiles``
    is the folder of seccomp profiles. ``users_place`` is the folder in which the files of containers with their own
    user namespace are mounted; if it is "", ``no_users`` says why there can be none. ``seccomp_filter`` is the compiled
    default profile (``ContainerEngine``).
    """

    runtime: str
    images: ImageSource
    networks: PodNetworks | None
    cgroups: CgroupTree | None
    profiles: Path
    users_place: str = ""
    no_users: str = ""
    seccomp_filter: str = ""

    def remove(self, pod: str) -> None:
        """Remove a pod's network and cgroups, if any, and kill the processes in them. Blocks."""
        if self.cgroups is not None:
            self.cgroups.remove(pod)
        if self.networks is not None:
            self.networks.remove(pod)

    def sweep(self, pod_ids: Collection[str]) -> None:
        """Remove leftovers of pods not in ``pod_ids``, after a system was killed. Blocks."""
        if self.cgroups is not None:
            self.cgroups.sweep(pod_ids)
        if self.networks is not None:
            self.networks.sweep(pod_ids)


class PodSandbox:
    """A pod with a network namespace. It runs a container for each of ``images``, or processes if there are none.

    ``location`` and ``folder`` are the pod's. Rootless containers share the network of the machine, and see the file
    ``hosts`` as their hosts file.
    """

    def __init__(  # noqa: PLR0913 - what a pod is made of
        self,
        host: ContainerHost,
        manifest: Object,
        images: Mapping[str, StoredImage],
        *,
        pod_id: str,
        location: PodLocation,
        folder: Path,
        hosts: str,
    ) -> None:
        self._host = host
        self._manifest = manifest
        self._images = images
        self._pod_id = pod_id
        self._location = location
        self._folder = folder
        self._hosts = hosts
        self.cgroups = PodCgroups(host.cgroups, pod_id)

    @property
    def image_ids(self) -> dict[str, str]:
        """The image of each container as NAME@DIGEST, or sha256:ID without a digest."""
        images = {
            container_name_of(all_container): all_container.get("image", "")
            for all_container in all_containers(self._manifest)
        }
        return {
            name: parse_reference(images[name]).pinned(image.digest) if image.digest else f"{ID_SCHEME}{image.id}"
            for name, image in self._images.items()
        }

    @property
    def hosts(self) -> str:
        """The file that the pod sees as its hosts file."""
        return str(self._folder / "etc" / "hosts")

    @property
    def resolver(self) -> str:
        """The file that the pod sees as the configuration of its resolver."""
        return str(self._folder / "etc" / "resolv.conf")

    @property
    def is_rootless(self) -> bool:
        """Whether the containers of the pod have a single user and share the machine's network."""
        return self._host.networks is None

    @property
    def network(self) -> str:
        """The path of the pod's network namespace; "" if it has none."""
        networks = self._host.networks
        return "" if networks is None else str(networks.path_of(self._pod_id))

    @property
    def port(self) -> int:
        """The port at which the app listens: the containerPort or 8080, or in a shared network the assigned port."""
        return port_of(self._manifest) if self._host.networks is not None else self._location.port

    async def prepare(self) -> None:
        """Create the network and the files that all containers see. Raises ``OSError``."""
        shared = self._folder / "etc"
        shared.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        name, networks = hostname_of(self._manifest), self._host.networks
        (shared / "hostname").write_text(f"{name}\n")
        if networks is None:
            return
        if not networks.claim(self._pod_id, self._location.address):
            await finished_in_thread(networks.make, self._pod_id, self._location.address)
        # Without ::1 for localhost: an app that listens on that name is reached at 127.0.0.1.
        (shared / "hosts").write_text(f"127.0.0.1\tlocalhost\n::1\tip6-localhost\n127.0.0.1\t{name}\n")
        domain = "svc.cluster.local"
        search = f"{namespace_of(self._manifest)}.{domain} {domain} cluster.local"
        (shared / "resolv.conf").write_text(f"nameserver {networks.gateway.inner}\nsearch {search}\noptions ndots:5\n")

    def order(
        self, container: Object, *, variables: Mapping[str, str], mounts: tuple[MountPoint, ...], log: str
    ) -> StartProcess:
        """The order that starts a container.

        Raises:
            InvalidValue: when its user, its command or a quantity cannot be used.
            OSError: when its folder cannot be written.
        """
        name = container_name_of(container)
        check_rights(self._manifest)
        refuse_unsupported(self._manifest, container, is_process=False, no_users=self._host.no_users)
        image = self._images[name]
        folder = self._folder / "containers" / name
        folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        root, run = self._host.images.store.root_of(image), image.config.config
        security = security_of(self._manifest, container)
        user = user_of(security, run.user, root)
        users = self._users_of(user)
        if self.is_rootless:
            user = msgspec.structs.replace(user, uid=0, gid=0, groups=())
        port = self.port if serves(self._manifest, container) else None
        environment = environment_of(run, variables, hostname=hostname_of(self._manifest), port=port)
        environment.setdefault("HOME", user.home)
        volumes = users.place if users else str(folder / "volumes")
        shown = (*self._shared_mounts(), *sorted(mounts, key=lambda mount: mount.target.count("/")))
        launched, shown = _split_mounts(volumes, shown, is_all=users is not None)
        cgroups = self.cgroups.make(name, limits_of(container))
        cgroup = self.cgroups.path_of(name) if joins_cgroups(self._host.runtime) else ""
        box = ContainerBox(
            arguments=arguments_of(container, run, environment),
            environment=environment,
            folder=container.get("workingDir") or run.folder or "/",
            user=user,
            mounts=shown,
            hostname=hostname_of(self._manifest),
            network=self.network,
            cgroup=cgroup,
            cgroup_views=self.cgroups.views(name),
            is_rootless=self.is_rootless,
            users=users,
            seccomp=self._profile(security),
            seccomp_filter=self._host.seccomp_filter,
        )
        (folder / "config.json").write_bytes(msgspec.json.encode(bundle_config(box, security)))
        state, errors, pid_file = (str(folder / name) for name in ("state", "errors", "pid"))
        return StartProcess(
            pod=self._pod_id,
            name=name,
            arguments=(
                *runtime_arguments(self._host.runtime, state, errors),
                *("run", "--detach", "--pid-file", pid_file, "--bundle", str(folder), f"{self._pod_id}-{name}"),
            ),
            environment={},
            log=log,
            network=self.network,
            launch=Launch(
                pid_file=pid_file,
                error_log=errors,
                state=state,
                cgroups=() if cgroup else cgroups,
                stop_signal=_stop_signal_of(run.stop_signal),
                root=_root_of(folder, str(root)),
                is_rootless=self.is_rootless,
                volumes=volumes,
                mounts=launched,
                users=users,
            ),
        )

    def _users_of(self, user: ContainerUser) -> OwnUsers | None:
        """The users of a container's user namespace; None if it has the machine's users. Raises ``InvalidValue``."""
        if not self._location.users:
            return None
        ids = (user.uid, user.gid, *user.groups)
        if max(ids) >= IDS_PER_POD:
            raise InvalidValue(
                text=str(max(ids)), expected=f"users and groups below {IDS_PER_POD} with hostUsers: false"
            )
        return OwnUsers(first=self._location.users, place=self._host.users_place)

    def _profile(self, security: Object) -> Object | None:
        """The seccomp profile of a container; None for the default one. Raises ``InvalidValue``."""
        if (security.get("seccompProfile") or {}).get("type") != "Localhost":
            return None
        from serving.home.containers.seccompprofile import local_profile  # noqa: PLC0415 - few containers name a file

        capabilities = frozenset(capabilities_of(security, is_root=True)["bounding"])
        return local_profile(self._host.profiles, security, capabilities=capabilities)

    def _shared_mounts(self) -> tuple[MountPoint, ...]:
        own = self._folder / "etc"
        files = {name: own / name for name in ("hostname", "hosts", "resolv.conf")}
        if self.is_rootless:
            # With a shared network, the machine's names are right.
            files |= {"hosts": Path(self._hosts or HOSTS_PATH), "resolv.conf": Path("/etc/resolv.conf")}
        return tuple(
            MountPoint(source=str(source), target=f"/etc/{name}") for name, source in files.items() if source.exists()
        )


def _root_of(folder: Path, lower: str) -> OverlayMount:
    upper, work, target = (str(folder / name) for name in ("upper", "work", "rootfs"))
    return OverlayMount(lower=lower, upper=upper, work=work, target=target)


def _split_mounts(
    folder: str, mounts: Sequence[MountPoint], *, is_all: bool
) -> tuple[tuple[MountPoint, ...], tuple[MountPoint, ...]]:
    """The mounts for the launcher to make in ``folder``, and the mounts for the runtime, with these as sources.

    ``is_all``: the launcher makes all mounts of the container, otherwise only those with a subPath. The runtime would
    follow links that a pod has created in a subPath and, as another user, could not read the state folder.
    """
    sources = {number: f"{folder}/{number}" for number, mount in enumerate(mounts) if mount.below or is_all}
    launched = tuple(msgspec.structs.replace(mounts[number], target=path) for number, path in sources.items())
    shown = (
        msgspec.structs.replace(mount, source=sources[number], below="") if number in sources else mount
        for number, mount in enumerate(mounts)
    )
    return launched, tuple(shown)


def hostname_of(pod: Object) -> str:
    """A pod's name as a host name: its first 63 characters, as in Kubernetes."""
    return name_of(pod)[:_HOSTNAME_MAX].rstrip("-.")


def port_of(pod: Object) -> int:
    """The containerPort of the serving container, or Knative's default."""
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if serves(pod, container) and port.get("containerPort"):
                return int(port["containerPort"])
    return CONTAINER_PORT


def _stop_signal_of(text: str) -> int:
    """Parse an image's stop signal: "SIGQUIT", "QUIT" or "3". SIGTERM if it is unknown."""
    if text.isdecimal() and int(text) in signal.valid_signals():
        return int(text)
    number = signal.Signals.__members__.get(f"SIG{text.upper().removeprefix('SIG')}")
    return int(number or signal.SIGTERM)


def container_host(state: Path, runtime: str = "") -> tuple[ContainerHost | None, str]:
    """The container host, or None and the reason. Runs a container: blocks for tens of milliseconds.

    ``runtime`` is "crun" or "runc", "" for the first of them that works.
    """
    engine = find_engine(runtime, state)
    if not engine.runtime:
        return None, engine.reason
    profiles = state / "seccomp"
    source = ImageSource(ImageStore(state / "images"), installed_pullers())
    shared = ContainerHost(
        runtime=engine.runtime,
        images=source,
        networks=None,
        cgroups=None,
        profiles=profiles,
        seccomp_filter=engine.seccomp_filter,
    )
    if engine.is_rootless:
        return shared, ""
    networks = networks_of(state)
    try:
        networks.prepare()
    except OSError as error:
        return None, f"pods cannot have networks of their own: {error.filename}: {error.strerror}"
    return msgspec.structs.replace(
        shared,
        networks=networks,
        cgroups=find_cgroups(cgroup_name_of(state)),
        users_place=engine.users_place,
        no_users=engine.no_users,
    ), ""
