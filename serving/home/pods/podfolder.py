"""A pod's folder, its volumes and its logs on disk.

The folder is HOME of the pod's containers. A volume is a folder below ``.volumes``. Each mount is a link to the volume,
or to a file in it for a subPath: /etc/config is ``etc/config`` here. A log at its size limit is copied and emptied; it
cannot be replaced, because its writer has the file open.
"""

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from serving.core.model.errors import InvalidValue
from serving.core.model.event import digest
from serving.core.model.objects import Object
from serving.home.pods.sources import VolumeFile
from serving.home.processes.appcopy import remove_copy
from serving.home.processes.mounts import MountPoint, mount_memory, unmount
from serving.home.trees import discard_tree

LOG_BYTES_MAX = 10 * 2**20
_LOGS_KEPT = 3
_TAIL_BYTES = 2048
_TAIL_LINES = 10
_OF_NPM = ("npm notice", "npm error", "npm ERR!")
# The first line of a failure is often far above the last ones.
_SOUGHT_BYTES = 16_384
# First lines of tracebacks of Python, Go and Java, the start of a frame, and the lines inside.
_HEADERS = ("Traceback (most recent call last):", "panic: ", "fatal error: ", "Exception in thread ")
_FRAME = re.compile(r"\s+File \"|\s+at |\S.*\(.*\)$")
_INSIDE = (" ", "\t", "")
_PRIVATE_FOLDER = 0o700
_SHARED_FOLDER, _OPEN_FOLDER = 0o755, 0o777
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REMOVALS_MAX, _REMOVAL_PAUSE_S = 5, 0.05
_VOLUMES = ".volumes"
_ROOT = ".root"
_TEMPORARY = ".tmp"
_APP = ".app"
_WARM = "warm-"
# Several times as many as an API Secret may have.
_SECRETS_BYTES_MAX = 8 * 2**20


def disk_error(error: Exception, folder: Path) -> str:
    """The message about an error. A disk error has its path, or ``folder`` if unknown, and a full disk has advice."""
    if not isinstance(error, OSError) or error.errno is None:
        # An error without a number is our own, not about a file.
        return str(error)
    message = f"{error.filename or folder}: {error.strerror or error}"
    way_out = "make room on this disk, for example by `serving image rm` or `serving delete`"
    return f"{message}; {way_out}" if error.errno in _FULL else message


def make_folder(path: Path) -> None:
    """Create a private folder if it is missing."""
    path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)


def warm_folder(pods: Path, revision: str) -> Path:
    """The parent folder of the pods that are forked from a revision's warm process. ``revision`` is NAMESPACE/NAME."""
    return pods / f"{_WARM}{digest(revision)}"


def mount(
    folder: Path,
    volumes: Mapping[str, Mapping[str, VolumeFile]],
    mounts: Iterable[Object],
    *,
    user: int = 0,
    claims: Mapping[str, Path] = MappingProxyType({}),
) -> None:
    """Write the files of each volume, and link each mount of a container to its volume.

    ``volumes`` maps names of volumes to their files by name; the files belong to ``user``, if it is not 0. ``claims``
    are the folders of volumes that outlive the pod. Raises ``InvalidValue``, ``OSError``.
    """
    for name, target in claims.items():
        with _entered(folder, (_VOLUMES,)) as volumes_folder, contextlib.suppress(FileExistsError):
            os.symlink(target, name, dir_fd=volumes_folder)
    for name, files in volumes.items():
        if name not in claims:
            _write_volume(folder, name, files, user=user)
    if claims or volumes:
        make_folder(root_folder(folder))
    for mount in mounts:
        *above, place = _parts(mount["mountPath"]) or ["."]
        source = os.path.join(_VOLUMES, mount["name"], *_sub_path(mount))  # noqa: PTH118 - the text of a link
        try:
            with _entered(folder, above, mode=_OPEN_FOLDER) as here, contextlib.suppress(FileExistsError):
                os.symlink("../" * len(above) + source, place, dir_fd=here)
        except NotADirectoryError:
            # It is below another mount, in which a pod may have made a link to anywhere.
            continue


@contextlib.contextmanager
def _entered(folder: Path | int, parts: Iterable[str], *, mode: int = _SHARED_FOLDER) -> Iterator[int]:
    """Open a descriptor of a folder below a pod's. Missing folders are created.

    Raises ``NotADirectoryError`` for a link in the path, because this process has rights that the pod does not have.
    """
    descriptor = os.dup(folder) if isinstance(folder, int) else os.open(folder, _FOLDER_FLAGS)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, mode, dir_fd=descriptor)
            above, descriptor = descriptor, os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def _write_volume(folder: Path, name: str, files: Mapping[str, VolumeFile], *, user: int) -> None:
    with _entered(folder, (_VOLUMES, *_parts(name))) as volume:
        # The pod's folder is closed to others; within it a container's user may read everything, and write where there
        # are no files.
        os.fchmod(volume, _SHARED_FOLDER if files else _OPEN_FOLDER)
        for path, wanted in files.items():
            *above, last = _parts(path)
            with _entered(volume, above) as here:
                _write(here, last, wanted, user=user)
        if files:
            _remove_others(volume, {"/".join(_parts(path)) for path in files})


def _remove_others(volume: int, paths: Collection[str]) -> None:
    """Remove the files of a volume that are not in ``paths``, such as those of removed keys."""
    for above, _, names, here in os.fwalk(".", dir_fd=volume):
        for name in names:
            if f"{above}/{name}".removeprefix("./") not in paths:
                os.unlink(name, dir_fd=here)


def mount_points(
    folder: Path, container: Object, volumes: Collection[Object], *, claims: Mapping[str, Path] = MappingProxyType({})
) -> tuple[MountPoint, ...]:
    """The volume mounts of a container, each at its mountPath. Raises ``InvalidValue``.

    ``claims`` are the folders of volumes that outlive the pod; a pod cannot replace them by links. Volumes other than
    emptyDirs and claims are read-only, as in Kubernetes.
    """
    writable = {
        volume["name"]
        for volume in volumes
        if "emptyDir" in volume or not (volume.get("persistentVolumeClaim") or {"readOnly": True}).get("readOnly")
    }
    own = {volume["name"] for volume in volumes if "emptyDir" in volume}
    return tuple(
        MountPoint(
            source=str(claims.get(volume_mount["name"], folder / _VOLUMES / volume_mount["name"])),
            home="" if volume_mount["name"] in claims else str(folder),
            below="/".join(_sub_path(volume_mount)),
            target="/" + volume_mount["mountPath"].strip("/"),
            read_only=bool(volume_mount.get("readOnly")) or volume_mount["name"] not in writable,
            is_own=volume_mount["name"] in own,
        )
        for volume_mount in container.get("volumeMounts", ())
    )


def root_folder(folder: Path) -> Path:
    """An empty folder of a pod, at which the root of a container with mounts is built."""
    return folder / _ROOT


def temporary_folder(folder: Path) -> Path:
    """The folder of a pod that its processes see as /tmp."""
    return folder / _TEMPORARY


def app_folder(folder: Path) -> Path:
    """The folder of a pod that contains its copy of the application."""
    return folder / _APP


def _write(folder: int, name: str, wanted: VolumeFile, *, user: int) -> None:
    # The folder is closed to other users, whatever the file's mode.
    temporary = f"{name}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(temporary, flags, wanted.mode, dir_fd=folder), "wb") as file:  # noqa: PTH123 - a descriptor
        # Without the umask.
        os.fchmod(file.fileno(), wanted.mode)
        if user:
            os.fchown(file.fileno(), user, user)
        file.write(wanted.content)
    os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _sub_path(volume_mount: Object) -> list[str]:
    """The parts of a mount's subPath."""
    if volume_mount.get("subPathExpr"):
        # Otherwise the container would see the whole volume.
        raise InvalidValue(
            text=f"subPathExpr of {volume_mount['name']}", expected="subPath: no variables are expanded in it here"
        )
    return _parts(volume_mount.get("subPath", ""))


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part]
    if ".." in parts or "." in parts:
        raise InvalidValue(text=path, expected="a path without '.' and '..'")
    return parts


def remove_folder(path: Path) -> None:
    """Remove a pod's folder and its contents. Links are not followed."""
    _unmount_memory(path)
    remove_copy(app_folder(path))
    for _ in range(_REMOVALS_MAX):
        discard_tree(path)
        if not path.exists():
            return
        # A command that was starting in the pod, such as a probe, has just written its error.
        time.sleep(_REMOVAL_PAUSE_S)


def sweep_folders(pods: Path, pod_ids: Collection[str]) -> list[str]:
    """Remove the folders of pods not in ``pod_ids``, for example after a system was killed; return their names."""
    paths = list(pods.iterdir()) if pods.is_dir() else []
    warm = [path for path in paths if path.name.startswith(_WARM)]
    paths = [path for path in (*paths, *(child for folder in warm for child in folder.iterdir())) if path not in warm]
    gone = [path for path in paths if path.name not in (*pod_ids, _TEMPORARY)]
    for path in gone:
        remove_folder(path)
    for folder in warm:
        # Pods share temporary files with a warm process there, possibly with mounts, so they are removed with the last
        # pod.
        if all(child.name == _TEMPORARY for child in folder.iterdir()):
            remove_folder(folder)
    return sorted(path.name for path in gone)


def is_secret(volume: Object) -> bool:
    """Whether a volume holds a Secret or a token."""
    parts = [volume, *((volume.get("projected") or {}).get("sources") or ())]
    return any("secret" in part or "serviceAccountToken" in part for part in parts)


def mount_in_memory(folder: Path, volumes: Iterable[str]) -> None:
    """Mount a memory file system for these volumes of a pod, if this process may; otherwise they stay on disk."""
    for name in volumes:
        with _entered(folder, (_VOLUMES, *_parts(name))) as volume:
            if not (folder / _VOLUMES / name).is_mount():
                with contextlib.suppress(OSError):
                    mount_memory(f"/proc/self/fd/{volume}", bytes_max=_SECRETS_BYTES_MAX)


def _unmount_memory(folder: Path) -> None:
    for volume in folder.glob(f"{_VOLUMES}/*"):
        if volume.is_mount() and not volume.is_symlink():
            with contextlib.suppress(OSError):
                unmount(str(volume))


def rotate(log: Path, *, bytes_max: int = LOG_BYTES_MAX, log_count: int = _LOGS_KEPT) -> bool:
    """Rotate a log larger than ``bytes_max``: LOG becomes LOG.1, LOG.1 becomes LOG.2, ...; return whether it was.

    The log is copied and then emptied; lines written in between are lost. On a full disk no copy is made, and older
    copies are removed. Raises ``OSError``.
    """
    try:
        if log.stat().st_size <= bytes_max:
            return False
        for number in range(log_count - 1, 0, -1):
            older = log.with_name(f"{log.name}.{number}")
            if older.exists():
                _move(older, log.with_name(f"{log.name}.{number + 1}"))
        try:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            _move_times(log, log.with_name(f"{log.name}.1"))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # A full disk: the copies are removed, so that the container can continue to write.
            for copy in log.parent.glob(f"{log.name}.[0-9]*"):
                copy.unlink(missing_ok=True)
        os.truncate(log, 0)
    except FileNotFoundError:
        return False
    return True


def count_oom_kill(folder: Path) -> None:
    """Increment ``oom_kill`` in a folder's file ``memory.events``.

    The file has the kernel's format. The kubelet counts its own kills there, for the queue-proxy to read.
    """
    path = folder / "memory.events"
    with contextlib.suppress(OSError):
        count = int(path.read_text().split()[1]) if path.exists() else 0
        path.write_text(f"oom_kill {count + 1}\n")


def rotated_of(log: Path) -> list[Path]:
    """The copies of a log that was rotated, oldest first."""
    copies = (log.with_name(f"{log.name}.{number}") for number in range(_LOGS_KEPT, 0, -1))
    return [copy for copy in copies if copy.is_file()]


def times_of(log: Path) -> Path:
    """The file with the times of a log (``podlogs``)."""
    return log.with_name(f"{log.name}.times")


def _move(log: Path, target: Path) -> None:
    log.replace(target)
    _move_times(log, target)


def _move_times(log: Path, target: Path) -> None:
    times_of(target).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        times_of(log).replace(times_of(target))


def previous_of(log: Path) -> Path:
    """The path of the previous run's log: ``app.previous.log``."""
    return log.with_suffix(f".previous{log.suffix}")


def rotate_previous(log: Path) -> None:
    """Rename the log of an ended run, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        _move(log, previous_of(log))


def size_of(log: Path) -> int:
    """Bytes of a log; 0 if it does not exist."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def tail(log: Path, *, after: int = 0) -> str:
    """The last lines of a log, for messages. The first ``after`` bytes are skipped, unless the log is shorter.

    If the lines begin within a traceback, its first line is added, so that the traceback is recognizable.
    """
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(after if after <= end else 0, end - _SOUGHT_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return excerpt(lines)


def excerpt(lines: Sequence[str], *, count: int = _TAIL_LINES) -> str:
    """The last ``count`` lines. A traceback that is cut keeps its first line, followed by "..." and whole frames.

    Lines that npm adds after an app's error are left out.
    """
    lines = [line for line in lines if not line.startswith(_OF_NPM)] or lines
    start = max(0, len(lines) - count)
    header = next((at for at in range(start - 1, -1, -1) if lines[at].startswith(_HEADERS)), None)
    # A Python program may continue after it prints a traceback; the others end.
    is_over = header is not None and lines[header].startswith(_HEADERS[0])
    if header is None or (is_over and not all(line[:1] in _INSIDE for line in lines[header + 1 : start])):
        return _last_bytes("\n".join(lines[start:]))
    frames = (at for at in range(start, len(lines)) if _FRAME.match(lines[at]) or lines[at][:1] not in _INSIDE)
    shown = "\n".join(lines[next(frames, start) :])
    return f"{lines[header]}\n  ...\n{_last_bytes(shown)}"


def _last_bytes(text: str) -> str:
    """The end of a text with very long lines, from the start of a line if possible."""
    if len(text) <= _TAIL_BYTES:
        return text
    cut = text[-_TAIL_BYTES:]
    return cut.partition("\n")[2] or cut
