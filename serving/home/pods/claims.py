"""PersistentVolumeClaims of one machine: a folder each, ``volumes/NAMESPACE/NAME`` of the state folder.

A pod can mount only claims of its namespace. Names that would lead outside of the folder, and links in the path, are
refused.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from serving.core.model.errors import InvalidValue, Problem
from serving.core.model.objects import Object, condition_of, nested, with_transition_time
from serving.core.model.quantity import parse_bytes

STORAGE_CLASS = "local"
"""The only class of this machine; an empty name means this class too."""

CLAIM = "PersistentVolumeClaim"
FINALIZER = "kubernetes.io/pvc-protection"
"""Keeps a deleted claim until nothing uses it, as in Kubernetes."""

ENFORCED, OVER_SIZE = "SizeEnforced", "OverSize"
"""Conditions of a claim: its size is enforced by the kernel; its content exceeds its size."""

_SOURCE = "persistentVolumeClaim"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_CLOSED, _OPEN = 0o700, 0o777


def claims_of(pod_spec: Object) -> dict[str, str]:
    """The PersistentVolumeClaims that a pod's spec names, by volume name."""
    volumes = pod_spec.get("volumes") or ()
    return {volume["name"]: volume[_SOURCE]["claimName"] for volume in volumes if volume.get(_SOURCE)}


def users_of(name: str, pods: Iterable[Object], revisions: Iterable[Object]) -> list[str]:
    """The pods, and revisions as "revision/NAME", that use the claim ``name``. A revision at scale zero counts too."""
    kinds = (("pod", pods), ("revision", revisions))
    return [
        f"{kind}/{whole['metadata']['name']}"
        for kind, objects in kinds
        for whole in objects
        if name in claims_of(nested(whole, "spec") or {}).values()
    ]


def claim_folder(volumes: Path, namespace: str, name: str) -> Path:
    """The folder of a claim. Raises ``InvalidValue`` for an invalid name or a link in the path."""
    for text in (namespace, name):
        if not _NAME.fullmatch(text) or ".." in text:
            raise InvalidValue(text=text, expected=f"a name of a {CLAIM}: a-z, 0-9, '-' and '.'")
    folder = volumes / namespace / name
    for path in (volumes, folder.parent, folder):
        if path.is_symlink():
            raise InvalidValue(text=str(path), expected="a folder: it is a link")
    return folder


def make_claim_folder(folder: Path) -> None:
    """Create the folder of a claim if it is missing. Raises ``OSError``.

    Any user of a pod may write into the folder; the folders above it are closed to other users of the machine.
    """
    folder.parent.parent.mkdir(mode=_CLOSED, exist_ok=True)
    folder.parent.mkdir(mode=_CLOSED, exist_ok=True)
    folder.mkdir(mode=_CLOSED, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, _OPEN)
    finally:
        os.close(descriptor)


def claim_folders(volumes: Path, pod: Object) -> dict[str, Path]:
    """The folders of a pod's claims by volume name. Raises ``InvalidValue``, also if a mount has a subPath.

    A subPath is refused because a pod could create a link there that leads out of the folder.
    """
    spec = pod["spec"]
    claims = claims_of(spec)
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        for volume_mount in container.get("volumeMounts") or ():
            if volume_mount["name"] in claims and (volume_mount.get("subPath") or volume_mount.get("subPathExpr")):
                expected = f"possible with a {CLAIM} on one machine: mount it whole, and use the folder in it"
                raise InvalidValue(text=f"subPath of {volume_mount['name']}", expected=expected)
    return {volume: claim_folder(volumes, pod["metadata"]["namespace"], name) for volume, name in claims.items()}


def claim_bytes(claim: Object) -> int:
    """The size that a claim requests; 0 if none. Raises ``InvalidValue``."""
    text = nested(claim, "spec", "resources", "requests", "storage")
    return parse_bytes(str(text)) if text else 0


def is_over_size(claim: Object, used_bytes: int) -> bool:
    """Whether a folder's content exceeds the size that its claim requests. Raises ``InvalidValue``."""
    return 0 < claim_bytes(claim) < used_bytes


def claim_status(claim: Object, *, gap: str, used_bytes: int | None, now: str) -> Object:
    """The status of a claim whose folder exists, at the time ``now``.

    ``gap`` is why the claim's size is not enforced, or "". ``used_bytes`` is the size of the folder's content, None if
    it was not measured.
    """
    spec: Mapping[str, Object] = claim.get("spec") or {}
    requests = nested(claim, "spec", "resources", "requests") or {}
    wanted = [_condition(ENFORCED, "NotEnforced" if gap else "ProjectQuota", gap, is_true=not gap)]
    if gap and used_bytes is not None and is_over_size(claim, used_bytes):
        message = f"it holds more than its size of {requests['storage']}, and nothing enforces the size"
        wanted.append(_condition(OVER_SIZE, OVER_SIZE, message, is_true=True))
    conditions = [
        with_transition_time(condition, condition_of(claim, condition["type"]), now=now)
        for condition in (wanted if requests else ())
    ]
    status: Object = {"phase": "Bound", "accessModes": spec.get("accessModes") or [], "capacity": dict(requests)}
    return {**status, "conditions": conditions} if conditions else status


def _condition(name: str, reason: str, message: str, *, is_true: bool) -> Object:
    condition = {"type": name, "status": str(is_true), "reason": reason}
    return {**condition, "message": message} if message else condition


def claim_problems(claim: Object) -> list[Problem]:
    """The fields of a claim that this machine cannot satisfy."""
    spec = claim.get("spec") or {}
    problems = []
    if spec.get("storageClassName") not in (None, "", STORAGE_CLASS):
        problems.append(_unsupported("spec.storageClassName", spec["storageClassName"], STORAGE_CLASS))
    if spec.get("volumeMode") not in (None, "Filesystem"):
        problems.append(_unsupported("spec.volumeMode", spec["volumeMode"], "Filesystem"))
    problems += [
        _unsupported(f"spec.{key}", spec[key], "nothing")
        for key in ("volumeName", "selector", "dataSource")
        if spec.get(key)
    ]
    return problems


def _unsupported(where: str, value: object, expected: str) -> Problem:
    return Problem(where=where, what=f"Unsupported value: {value!r}: this machine has {expected}", expected=expected)
