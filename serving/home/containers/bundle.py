"""Generates the configuration of a container for crun and runc (OCI runtime specification, config.md). Pure.

Input: a container of a pod, its pod, its image, its environment and the user in numbers; output: the JSON of
``config.json``. The manifest overrides the image, as in Kubernetes. A container has Docker's default capabilities,
without the one to create device nodes.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import IMAGES_ONLY_ANNOTATION
from serving.core.model.objects import Object, annotations_of
from serving.home.containers.users import ContainerUser
from serving.home.images.archive import ImageRun
from serving.home.pods.podstandards import BASELINE, violation_text
from serving.home.pods.sources import ByteBudget, expanded
from serving.home.processes.mounts import MountPoint
from serving.home.processes.ownusers import IDS_PER_POD, OwnUsers
from serving.home.processes.seccomp import oci_profile

_CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MASKED = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
)
_PROCESSORS = Path("/sys/devices/system/cpu")
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
# crun(1): a compiled filter replaces the profile, whose compilation takes 10 ms. Other runtimes compile the profile.
_FILTER_ANNOTATION = "run.oci.seccomp_bpf_data"
_CGROUPS = "/sys/fs/cgroup"
_SAFE = ["nosuid", "noexec", "nodev"]
_SYSTEM_MOUNTS: tuple[Object, ...] = (
    {"destination": "/proc", "type": "proc", "source": "proc", "options": _SAFE},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
    {
        "destination": "/dev/pts",
        "type": "devpts",
        "source": "devpts",
        "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
    },
    {
        "destination": "/dev/shm",  # noqa: S108 - the container's own
        "type": "tmpfs",
        "source": "shm",
        "options": [*_SAFE, "mode=1777", "size=65536k"],
    },
    {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": _SAFE},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*_SAFE, "ro"]},
)


def _system_bind(source: str) -> Object:
    return {"destination": "/sys", "type": "bind", "source": source, "options": [*_SAFE, "rbind", "ro"]}


# A single-user container has no group 5, and sysfs belongs to the network's creator.
_ROOTLESS_MOUNTS: tuple[Object, ...] = (
    *(
        {**mount, "options": [option for option in mount["options"] if not option.startswith("gid=")]}
        for mount in _SYSTEM_MOUNTS[:-1]
    ),
    _system_bind("/sys"),
)


class ContainerBox(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a container's OCI bundle.

    ``network`` is the path of the pod's network namespace. ``cgroup`` is the cgroup that the runtime joins, "" if it
    joins none. ``cgroup_views`` are cgroup folders by their path in the container. ``seccomp`` is the container's
    seccomp profile, None for the default profile. ``seccomp_filter`` is the default profile as compiled by crun, in
    base64. ``is_rootless``: the container has a single user, and shares the machine's network.

    ``users`` is the container's own user namespace, created by root; None if there is none. With such a namespace, the
    sources of ``mounts`` are already mounted in its folder, and the runtime runs in ``network``.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    user: ContainerUser
    mounts: tuple[MountPoint, ...]
    hostname: str
    network: str
    cgroup: str = ""
    cgroup_views: Mapping[str, str] = {}
    seccomp: Object | None = None
    seccomp_filter: str = ""
    is_rootless: bool = False
    users: OwnUsers | None = None


def arguments_of(container: Object, image: ImageRun, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The command line: ``command`` replaces the image's entrypoint and arguments, ``args`` only the arguments.

    Raises:
        InvalidValue: when both are empty, or the line is too long.
    """
    command, args = container.get("command") or [], container.get("args") or []
    words = [*command, *args] if command else [*(image.entrypoint or ()), *(args or image.command or ())]
    if not words:
        name = container.get("image", "")
        raise InvalidValue(text=name, expected="a command or args, because the image has no entrypoint and no command")
    is_given = bool(command or args)
    budget = ByteBudget("the command line")
    return tuple(expanded(word, environment, budget) if is_given else word for word in words)


def environment_of(image: ImageRun, overrides: Mapping[str, str], *, hostname: str, port: int | None) -> dict[str, str]:
    """The image's environment, overridden by the manifest's. A ``port``, as of the serving container, becomes PORT."""
    environment = {"PATH": _PATH, "HOSTNAME": hostname}
    environment |= dict(entry.partition("=")[::2] for entry in image.env or ())
    environment |= overrides
    if port is not None:
        environment["PORT"] = str(port)
    return environment


def security_of(pod: Object, container: Object) -> Object:
    """The security context of a container, merged over the security context of its pod."""
    return {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}


def check_rights(pod: Object) -> None:
    """Raise ``InvalidValue`` for a pod with more rights than users may grant.

    Admission refuses such pods too. This second check covers pods that an older version stored, and mistakes in
    admission.
    """
    violations = violation_text(pod, BASELINE) if IMAGES_ONLY_ANNOTATION in annotations_of(pod) else ""
    if violations:
        raise InvalidValue(text=violations, expected="a pod of that level, as its writer does not have the role admin")


def bundle_config(box: ContainerBox, security: Object) -> Object:
    """The ``config.json`` of a container's OCI bundle."""
    namespaces = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "cgroup")]
    if not box.is_rootless and not (box.users and box.network):
        namespaces.append({"type": "network", "path": box.network} if box.network else {"type": "network"})
    system = _ROOTLESS_MOUNTS if box.is_rootless else _SYSTEM_MOUNTS
    root, mapped = "rootfs", dict[str, object]()
    if box.users is not None:
        namespaces.append({"type": "user"})
        ids = [{"containerID": 0, "hostID": box.users.first, "size": IDS_PER_POD}]
        root, mapped = box.users.root, {"uidMappings": ids, "gidMappings": ids}
        # The container's network, which root on this machine has created.
        system = (*_SYSTEM_MOUNTS[:-1], _system_bind(box.users.system))
    linux: Object = {
        **mapped,
        "namespaces": namespaces,
        "maskedPaths": [*_MASKED, *thermal_paths()],
        "readonlyPaths": list(_READ_ONLY),
    }
    annotations = dict[str, str]()
    if (security.get("seccompProfile") or {}).get("type") != "Unconfined":
        linux["seccomp"] = box.seccomp or oci_profile()
        if box.seccomp is None and box.seccomp_filter:
            annotations[_FILTER_ANNOTATION] = box.seccomp_filter
    if box.cgroup:
        linux["cgroupsPath"] = box.cgroup
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": box.user.uid, "gid": box.user.gid, "additionalGids": list(box.user.groups)},
            "args": list(box.arguments),
            "env": [f"{name}={value}" for name, value in box.environment.items()],
            "cwd": box.folder or "/",
            "capabilities": capabilities_of(security, is_root=box.user.uid == 0),
            "noNewPrivileges": security.get("allowPrivilegeEscalation") is not True,
            "oomScoreAdj": 0,
        },
        "root": {"path": root, "readonly": bool(security.get("readOnlyRootFilesystem"))},
        "hostname": box.hostname,
        "mounts": [*system, *_cgroup_mounts(box.cgroup_views), *map(_bind, box.mounts)],
        "annotations": annotations,
        "linux": linux,
    }


@functools.cache
def thermal_paths(processors: Path = _PROCESSORS) -> tuple[str, ...]:
    """The folders of each processor's thermal counters, through which containers could observe each other.

    Docker 28 masks them.
    """
    return tuple(map(str, sorted(processors.glob("cpu[0-9]*/thermal_throttle"))))


def _cgroup_mounts(views: Mapping[str, str]) -> list[Object]:
    """The mounts of a container's own cgroups, where programs read their limits."""
    mounts: list[Object] = []
    if any(path != _CGROUPS for path in views):
        mounts.append(
            {"destination": _CGROUPS, "type": "tmpfs", "source": "tmpfs", "options": [*_SAFE, "mode=755", "size=64k"]}
        )
    binds: list[Object] = [
        {"destination": path, "type": "bind", "source": folder, "options": [*_SAFE, "bind", "ro"]}
        for path, folder in views.items()
    ]
    return [*mounts, *binds]


def _bind(mount: MountPoint) -> Object:
    options = ["rbind", "rprivate", "nosuid", "nodev", "ro" if mount.read_only else "rw"]
    return {"destination": mount.target, "type": "bind", "source": mount.source, "options": options}


def capabilities_of(security: Object, *, is_root: bool) -> dict[str, list[str]]:
    """Capabilities by set. Users other than root have them only in the bounding set, as in Docker."""
    requested = security.get("capabilities") or {}
    added, dropped = _names(requested.get("add") or ()), _names(requested.get("drop") or ())
    retained = set() if "CAP_ALL" in dropped else set(_CAPABILITIES) - dropped
    wanted = sorted(retained | added - {"CAP_ALL"})
    if is_root:
        return dict.fromkeys(("bounding", "effective", "permitted"), wanted)
    return {"bounding": wanted, "effective": [], "permitted": []}


def _names(listed: Sequence[str]) -> set[str]:
    return {f"CAP_{capability.upper().removeprefix('CAP_')}" for capability in listed}
