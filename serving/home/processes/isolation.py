"""Decides how processes of pods are isolated from this machine and from each other; ``confine`` applies it.

- ``default``: a pod's process cannot read the state folder and closed folders except its own. It can signal and trace
  only the pod's processes, and listen only on the pod's ports. It has no capabilities and cannot gain any, and makes no
  system call that Docker forbids. As root it has a user that no other pod has.
- ``strict``: as ``default``, and as root with a pid namespace. A pod whose layers fail does not start.
- ``none``: it has the rights of the user that runs ``serving up``.
"""

import base64
import contextlib
import functools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.event import digest
from serving.home.processes.confine import probe
from serving.home.processes.seccomp import filter_program

GAP_VARIABLE = "SERVING_ISOLATION_GAP"
"""The environment variable with which the supervisor passes ``isolation_gap`` to the control process."""

MODES = ("default", "strict", "none")
"""The values of ``serving up --isolation``."""

# Above all ranges assigned by systemd and container managers (systemd, UIDS-GIDS). Users of revisions follow those of
# addresses.
_USER_FIRST = 0x70000000
_REVISION_USER_FIRST, _REVISION_USERS = 0x70010000, 0x0F000000
_OTHERS_MAY_ENTER, _OTHERS_MAY_READ = 0o001, 0o005
# Absolute paths in an argument, for example of a shell.
_PATH = re.compile(r"(?<![^\s'\"=:;,(@])/[^\s'\":;,()<>|&$]*")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_WORD = re.compile(r"[^\s'\"=:;,()<>|&$]+")
_SCRIPT_BYTES_MAX = 65536
# Folders for temporary files, whose names others can foresee.
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - they are replaced, not used
_TOO_MUCH = frozenset({"/", "/usr", "/proc", "/dev", "/sys", "", *_TEMPORARY})


class Confinement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The isolation of one process: the input of ``confine.confine``.

    The process does not see the folders ``hidden`` and ``private``, except for the paths in ``shown``; a private folder
    is replaced by ``temporary``. It runs as ``user``, the owner of the folders ``owned``; 0 is this process's user. It
    listens only on ``ports``, None for any. ``copies`` are mounted at the paths of their originals. ``is_strict``: a
    layer that cannot be applied is an error.
    """

    hidden: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    temporary: str = ""
    user: int = 0
    has_own_pids: bool = False
    has_own_mounts: bool = False
    ports: tuple[int, ...] | None = None
    is_strict: bool = False
    copies: dict[str, str] = {}


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation of all pods of a machine.

    ``mode`` is "default" or "strict"; strict isolation refuses a pod if a layer is missing. ``state`` is the system's
    folder, which is hidden from pods. ``is_root``: this process is root, so that each pod has its own user.
    """

    mode: str
    state: str
    is_root: bool

    @property
    def is_strict(self) -> bool:
        """Whether a pod must not start if it cannot be isolated completely."""
        return self.mode == "strict"

    def user_of(self, address: str) -> int:
        """The user id of the pod at an address; 0 means the user of this process.

        Pods whose addresses differ in the last two numbers have different users.
        """
        if not self.is_root:
            return 0
        third, fourth = address.split(".")[2:]
        return _USER_FIRST + (int(third) << 8) + int(fourth)

    def user_of_revision(self, name: str) -> int:
        """The user id of a revision's warm process and of its pods; 0 means the user of this process."""
        return _REVISION_USER_FIRST + int(digest(name), 16) % _REVISION_USERS if self.is_root else 0

    def confinement(
        self,
        *,
        address: str,
        shown: Collection[str],
        ports: Collection[int] | None,
        owned: Collection[str] = (),
        temporary: str = "",
    ) -> Confinement:
        """The confinement of the processes of the pod at ``address``.

        ``ports`` are the ports on which they may listen, None for all. ``shown`` and ``owned`` are the pod's files. A
        pod's user must be able to reach them, so each parent folder that is closed to other users is hidden except for
        these files. The folder ``temporary`` replaces /tmp and similar folders of the machine, except one that is
        itself among the pod's files; "" replaces none.
        """
        paths = tuple(dict.fromkeys((*owned, *shown)))
        hidden = {self.state}
        if self.is_root:
            hidden |= {closed for path in (self.state, *paths) if (closed := closed_above(path))}
        # A command that names a closed folder sees all of it; the state folder hides its own closed folders.
        hidden -= {
            folder
            for folder in hidden
            if folder != self.state and any(folder == path or _is_in(folder, path) for path in (self.state, *paths))
        }
        private = tuple(
            folder
            for folder in _TEMPORARY
            if temporary
            and Path(folder).is_dir()
            and folder not in paths
            and not _is_in(folder, self.state)
            and folder != self.state
        )
        return Confinement(
            hidden=tuple(sorted(hidden, key=lambda folder: (folder == self.state, len(folder)))),
            shown=tuple(path for path in paths if any(_is_in(path, folder) for folder in (*hidden, *private))),
            private=private,
            temporary=temporary,
            owned=tuple(owned) if self.is_root else (),
            user=self.user_of(address),
            has_own_pids=self.is_root and self.is_strict,
            # Port 0 means any free port.
            ports=None if ports is None else tuple(sorted({0, *ports})),
            is_strict=self.is_strict,
        )


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/")


def closed_above(path: str) -> str:
    """The first parent folder of a path that other users cannot enter; "" without one."""
    names = path.rstrip("/").split("/")
    for count in range(1, len(names)):
        parent = "/".join(names[:count]) or "/"
        try:
            if not os.stat(parent).st_mode & _OTHERS_MAY_ENTER:  # noqa: PTH116 - a Path for each parent costs more
                return parent
        except OSError:
            return ""
    return ""


def is_open(path: str) -> bool:
    """Whether other users may read and enter a folder."""
    try:
        return Path(path).stat().st_mode & _OTHERS_MAY_READ == _OTHERS_MAY_READ
    except OSError:
        return False


def files_of(arguments: Sequence[str], environment: Mapping[str, str], folder: str = "/") -> list[str]:
    """Find installations and files named by a command, by PYTHONPATH, and in its scripts; links are followed.

    The installation of a program in a folder "bin" is the parent of that folder: /venv for /venv/bin/python. For a
    virtual environment, the installation of its Python is included. ``folder`` is where the command runs.
    """
    program_folders = environment.get("PATH", os.defpath)
    texts = [*arguments, environment.get("PYTHONPATH", "")]
    texts = [_VARIABLE.sub(lambda match: environment.get(match[1], match[0]), text) for text in texts]
    words = [word for text in texts for word in _WORD.findall(text)]
    # A shell finds programs in PATH by name, as in "exec gunicorn".
    names = dict.fromkeys(word for word in (*arguments[:1], *words) if "/" not in word)
    programs = [program for name in names if (program := shutil.which(name, path=program_folders))]
    texts += programs
    words = list(dict.fromkeys([*words, *programs]))
    top = os.path.realpath(folder)
    texts += [outside for word in words if (outside := _path_outside(folder, top, word))]
    texts += [script for word in words if (script := _script(os.path.join(folder, word)))]  # noqa: PTH118 - may be absolute
    paths: dict[str, None] = {}
    named = dict.fromkeys(path for text in texts for path in _PATH.findall(text))
    for name in dict.fromkeys([*named, *filter(None, map(_python_below, named))]):
        # False also for text that is no path, as it is too long.
        if not os.path.exists(name):  # noqa: PTH110
            continue
        for path in dict.fromkeys((Path(name), Path(os.path.realpath(name)))):
            installation = _installation_of(path, is_target=str(path) != name)
            # A home folder with a "bin" folder is not an installation.
            closed = closed_above(str(path))
            paths[str(path if closed and not _is_in(str(installation), closed) else installation)] = None
            paths |= dict.fromkeys(_editable_projects(installation))
    return [path for path in paths if path not in _TOO_MUCH]


def _path_outside(folder: str, top: str, word: str) -> str:
    """The path of a word, such as .venv/bin/python, that a link leads out of ``folder``; "" if it stays within.

    The link may be the file or one of its parent folders. ``top`` is the real path of ``folder``.
    """
    path = os.path.join(folder, word)  # noqa: PTH118 - may be absolute
    above, _, name = path.rpartition("/")
    if not name or not os.path.lexists(path):
        return ""
    above = os.path.realpath(above)
    path = f"{above}/{name}"
    is_inside = all(place == top or _is_in(place, top) for place in (above, os.path.realpath(path)))
    return "" if is_inside else path


def _installation_of(path: Path, *, is_target: bool) -> Path:
    """The folder with everything that a program at ``path`` needs.

    For /venv/bin/python it is /venv, and for a file in a folder node_modules it is that folder. For other files it is
    the file's own folder if ``is_target`` (a link leads to the file), otherwise the file.
    """
    parts = path.parts
    if "node_modules" in parts:
        return Path(*parts[: parts.index("node_modules") + 1])
    if path.parent.name == "bin":
        return path.parent.parent
    return path.parent if is_target and path.is_file() and str(path.parent) not in _TOO_MUCH else path


def _python_below(program: str) -> str:
    """The Python on which the virtual environment of ``program`` is based, and whose standard library it needs.

    "" if the program is in no virtual environment.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in _content(f"{Path(program).parent.parent}/pyvenv.cfg").decode().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                return f"{value.strip()}/python3"
    return ""


def _editable_projects(installation: Path) -> tuple[str, ...]:
    """The folders of projects that a virtual environment imports in place (PEP 610)."""
    if not (installation / "pyvenv.cfg").exists():
        return ()
    folders = tuple(sorted(installation.glob("lib/python*/site-packages")))
    return _editable_in(folders, tuple(folder.stat().st_mtime_ns for folder in folders))


@functools.lru_cache(maxsize=64)
def _editable_in(folders: Sequence[Path], changed_ns: Sequence[int]) -> tuple[str, ...]:
    del changed_ns
    projects = []
    for note in (note for folder in folders for note in folder.glob("*.dist-info/direct_url.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            origin = json.loads(_content(note))
            if origin["dir_info"].get("editable") and Path(path := unquote(urlsplit(origin["url"]).path)).is_dir():
                projects.append(path)
    return tuple(projects)


def _script(path: str) -> str:
    """The text of a file if it is a script, with or without "#!"; "" if it is a binary program or cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        content = _content(path)
        return "" if b"\0" in content else content.removeprefix(b"#!").decode(errors="replace")
    return ""


def _content(path: str | Path) -> bytes:
    """The beginning of a regular file; b"" for any other file, because opening or reading a pipe would block.

    Raises:
        OSError: when it cannot be read.
        ValueError: when the path contains a null byte.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        return b""
    # It may have been replaced by a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _SCRIPT_BYTES_MAX)
    finally:
        os.close(descriptor)


def isolation_of(mode: str, state: Path, *, is_root: bool | None = None) -> Isolation | None:
    """The isolation for a mode; None for the mode "none"."""
    if mode == "none":
        return None
    is_root = os.geteuid() == 0 if is_root is None else is_root
    return Isolation(mode=mode, state=str(state.absolute()), is_root=is_root)


@functools.cache
def _encoded_filter() -> str:
    return base64.b64encode(filter_program()).decode()


def plan_of(confinement: Confinement) -> dict[str, Any]:
    """A confinement as JSON types, for ``confine``."""
    return {
        "hidden": list(confinement.hidden),
        "shown": list(confinement.shown),
        "owned": list(confinement.owned),
        "private": list(confinement.private),
        "temporary": confinement.temporary,
        "user": confinement.user,
        "has_own_pids": confinement.has_own_pids,
        "has_own_mounts": confinement.has_own_mounts,
        "ports": None if confinement.ports is None else list(confinement.ports),
        "is_strict": confinement.is_strict,
        "copies": confinement.copies,
        "filter": _encoded_filter(),
    }


def missing_layers(isolation: Isolation, *, tried: Callable[[dict[str, Any]], list[str]] = probe) -> list[str]:
    """The layers of isolation that this machine refuses, with reasons. Forks, so it must not run in a thread."""
    wanted = isolation.confinement(address="127.64.0.1", shown=(), ports=(8080,))
    return tried(plan_of(msgspec.structs.replace(wanted, is_strict=False)))


SAME_USER = "user: without root a pod is the user who runs serving, and reads and writes the files of that user"
"""The isolation that process pods without root always lack. Strict isolation accepts it."""


def isolation_gap(mode: str, state: Path) -> str:
    """Why pods of processes have less than the default isolation; "" if they have all of its layers.

    It forks, so it must not run in a thread. Raises ``SettingsError`` if strict isolation is requested and this machine
    lacks a layer.
    """
    wanted = isolation_of(mode, state)
    if wanted is None:
        return "--isolation none: the pod has the rights of the user who runs serving"
    missing = missing_layers(wanted)
    if wanted.is_strict and missing:
        expected = "a machine that has all layers, see docs/isolation.md, or --isolation default"
        raise SettingsError(
            [
                Problem(where="--isolation strict", what=f"not possible here: {gap}", expected=expected)
                for gap in missing
            ]
        )
    gaps = missing if wanted.is_root else [*missing, SAME_USER]
    return f"not isolated by {'; '.join(gaps)}" if gaps else ""
