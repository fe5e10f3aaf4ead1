"""Records Events about a pod, among them warnings of limits and security settings without effect."""

from collections.abc import Collection, Mapping

from serving.core.model.errors import InvalidValue
from serving.core.model.event import MESSAGE_LENGTH_MAX, About, EventText, digest, new_event
from serving.core.model.objects import Object, nested
from serving.core.model.quantity import parse_bytes
from serving.home.containers.bundle import security_of
from serving.home.pods.podplan import all_containers, container_name_of
from serving.net.aio.clock import stamp
from serving.net.aio.supervise import SupervisedTasks
from serving.net.cluster.events import write_once
from serving.net.cluster.port import Cluster

_ELSEWHERE = "VolumesElsewhere"
_INSECURE = "SecurityContextNotEnforced"
_NEEDS_USERS = ("runAsUser", "runAsGroup")
_NEEDS_CONTAINER = ("runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "capabilities")


def pod_event(pod: Object, *, reason: str, message: str, now: str) -> Object:
    """A warning Event about a pod. The name depends on pod and text, so that repetitions are dropped."""
    metadata = pod["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    # Without a version, because the Event is about the pod in any state.
    of = About(api_version="v1", kind="Pod", namespace=namespace, name=name, uid=metadata.get("uid", ""))
    words = EventText(reason=reason, message=message[-MESSAGE_LENGTH_MAX:], is_warning=True)
    return new_event(of, words, suffix=digest(name, reason, message), component="kubelet", now=now, instance="local")


def memory_limit_bytes(container: Object) -> int | None:
    """``resources.limits.memory`` in bytes; None if it is missing or unreadable."""
    text = nested(container, "resources", "limits", "memory")
    try:
        return None if text is None else parse_bytes(str(text))
    except InvalidValue:
        return None


def warnings_of(
    container: Object, *, security: Object, refused: Collection[str] = (), has_images: bool, is_rootless: bool = False
) -> list[tuple[str, str]]:
    """Warnings about settings of a container that have no effect here, each as (reason, message).

    ``refused`` lists the limits ("cpu", "memory") that no cgroup enforces; for a process, the kubelet enforces the
    memory limit itself. ``security`` is the container's security context merged over the pod's. ``has_images``: the
    container runs an image, otherwise a process. ``is_rootless``: the container has a single user.
    """
    limits, name = (container.get("resources") or {}).get("limits") or {}, container.get("name", "")
    warnings = [
        (
            f"{what.title()}LimitNotEnforced",
            f"container {name}: the {what} limit {limits[what]} is not enforced: no cgroup supports it",
        )
        for what in refused
        if what in limits and (has_images or what != "memory")
    ]
    paths = [] if has_images else [volume_mount["mountPath"] for volume_mount in container.get("volumeMounts", ())]
    if paths:
        message = (
            f"container {name}: {', '.join(paths)} is below $HOME, because the container is a process of this machine"
        )
        warnings.append((_ELSEWHERE, message))
    return warnings + _insecure(container, security, is_container=has_images, is_rootless=is_rootless)


def _insecure(container: Object, security: Object, *, is_container: bool, is_rootless: bool) -> list[tuple[str, str]]:
    fields = _NEEDS_USERS if is_rootless else () if is_container else _NEEDS_CONTAINER
    ignored = [field for field in fields if security.get(field)]
    if not ignored:
        return []
    why = "a rootless container has one user" if is_container else "it runs as a process of this machine"
    return [(_INSECURE, f"container {container.get('name', '')}: {', '.join(ignored)} is not enforced: {why}")]


class PodWarnings:
    """Writes warnings about one pod as Events. ``group`` runs the writes of ``send_later``."""

    def __init__(self, cluster: Cluster, manifest: Object, group: SupervisedTasks) -> None:
        self._cluster = cluster
        self._manifest = manifest
        self._group = group

    def send_later(self, reason: str, message: str) -> None:
        """Write a warning in the background, without waiting for the store."""
        self._group.start(self.send(reason, message), name="warn")

    async def send(self, reason: str, message: str) -> None:
        """Write a warning. A repeated text is ignored."""
        await write_once(self._cluster, pod_event(self._manifest, reason=reason, message=message, now=stamp()))

    async def send_not_enforced(
        self, refused: Mapping[str, Collection[str]], *, has_images: bool, is_rootless: bool
    ) -> None:
        """Warn of container settings without effect here; the parameters are those of ``warnings_of``."""
        for container in all_containers(self._manifest):
            security = security_of(self._manifest, container)
            limits = refused.get(container_name_of(container), ())
            warnings = warnings_of(
                container, security=security, refused=limits, has_images=has_images, is_rootless=is_rootless
            )
            for warning in warnings:
                await self.send(*warning)
