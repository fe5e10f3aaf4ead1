"""What of a container's limits is held on one machine, and what has to be said aloud because it is not.

Input: a container; output: its memory limit, and warnings as (reason, message). Memory is watched from outside and a
container above its limit is killed, as a cgroup would; cpu cannot be bounded without one. A process runs as the user of
``serving up``, with that user's rights.
"""

from collections.abc import Collection

from serving.model.errors import InvalidValue
from serving.model.objects import Object, nested
from serving.model.quantity import parse_bytes

_NOT_ENFORCED = "CpuLimitNotEnforced"
_ELSEWHERE = "VolumesElsewhere"
_INSECURE = "SecurityContextNotEnforced"
_NEEDS_USERS = ("runAsUser", "runAsGroup")
_NEEDS_CONTAINER = ("runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "capabilities")


def memory_limit_bytes(container: Object) -> int | None:
    """``resources.limits.memory`` in bytes; None if there is none that can be read."""
    text = nested(container, "resources", "limits", "memory")
    try:
        return None if text is None else parse_bytes(str(text))
    except InvalidValue:
        return None


def warnings_of(
    container: Object, *, security: Object, refused: Collection[str] | None = None, is_rootless: bool = False
) -> list[tuple[str, str]]:
    """What a container asks for and does not get here. ``refused`` are the limits that a cgroup did not take; None without one.

    ``security`` is its security context over that of its pod; ``is_rootless`` says that its container has one user.
    """
    insecure = _insecure(container, security, is_container=refused is not None, is_rootless=is_rootless)
    if refused is not None:
        limits = (container.get("resources") or {}).get("limits") or {}
        name = container.get("name", "")
        return [
            (
                f"{what.title()}LimitNotEnforced",
                f"container {name}: the {what} limit {limits[what]} is not enforced: no cgroup takes it",
            )
            for what in refused
            if what in limits
        ] + insecure
    name, found = container.get("name", ""), []
    cpu = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    if cpu is not None:
        message = f"container {name}: the cpu limit {cpu} is not enforced on one machine; it may use more"
        found.append((_NOT_ENFORCED, message))
    paths = [one["mountPath"] for one in container.get("volumeMounts", ())]
    if paths:
        message = (
            f"container {name}: {', '.join(paths)} is found below $HOME; there is no container with paths of its own"
        )
        found.append((_ELSEWHERE, message))
    return found + insecure


def _insecure(container: Object, security: Object, *, is_container: bool, is_rootless: bool) -> list[tuple[str, str]]:
    fields = _NEEDS_USERS if is_rootless else () if is_container else _NEEDS_CONTAINER
    ignored = [field for field in fields if security.get(field)]
    if not ignored:
        return []
    why = "a rootless container has one user" if is_container else "it runs as a process of this machine"
    return [(_INSECURE, f"container {container.get('name', '')}: {', '.join(ignored)} is not enforced: {why}")]
