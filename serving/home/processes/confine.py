"""Confines a pod's process before the user's code runs: its view, rights, signals and system calls.

The module runs after a fork, also in the app's interpreter (``preload_program``), so it imports only the standard
library. The layers are mounts (the state folder is hidden, ``/proc`` shows only the pod's processes), a separate user,
no capabilities, ``no_new_privs``, Landlock (landlock(7)), and a filter for system calls (seccomp(2)). If memory runs
out, the kernel kills a pod before any daemon.

A pod with its own user does not own its app's folder. If the app must, an id-mapped mount makes it the owner
(mount_setattr(2)).
"""

# Few imports, because many processes are forked from this one.
# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH112, PTH115, PTH116, PTH118, PTH120, PTH123, PTH208

import base64
import contextlib
import ctypes
import errno
import functools
import os
import resource
import stat
import struct
from collections.abc import Callable, Iterator
from typing import Any

ISOLATION_VARIABLE = "SERVING_ISOLATION"
"""The environment variable that names the mode of ``isolation``."""
# Most processes and threads of a pod with its own user or user namespace.
_PROCESSES_MAX = 4096

LIBC = ctypes.CDLL(None, use_errno=True)
"""The C library. Loaded here, not after a fork: between fork and exec only what is safe may run."""

# <linux/prctl.h>, <linux/sched.h>, <linux/mount.h>, <linux/capability.h>
_PR_CAPBSET_DROP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 22, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL, _SECCOMP_MODE_FILTER = 4, 2
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 2, 4, 8, 32
_MS_RDONLY, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 4096, 16384, 1 << 18
# <linux/mount.h>, <linux/fcntl.h>: the newer mount calls have the same numbers on all machines.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_CWD, _AT_EMPTY_PATH, _OPEN_TREE_CLONE, _MOVE_FROM_EMPTY, _ATTR_IDMAP = -100, 0x1000, 1, 4, 0x00100000
NO_EXEC, _IDS = 8, 1 << 32
# The kernel ends a pod's processes before all others (proc_pid_oom_score_adj(5)).
_OOM_SCORE = "1000"
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES_END = 64
# The same numbers on all machines (<asm-generic/unistd.h>).
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_RULE_PATH, _RULE_PORT = 1, 2
_FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_MAKE_BLOCK, _REFER = 1 << 11, 1 << 13
_BIND_TCP = 1
# Abstract unix sockets and signals.
_SCOPES = 1 | 2
_SCOPE_ABI, _NET_ABI, _REFER_ABI = 6, 4, 2
_PASSWD, _USER_NAME = "/etc/passwd", "pod"
_SHARED_MEMORY, _OPEN_MODE = "/dev/shm", 0o1777  # noqa: S108 - it is replaced
_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")


def confine(plan: dict[str, Any], folder: str, after: Callable[[str], object] = str) -> list[str]:
    """Apply all layers of a plan to this process and change to ``folder``; return failures as texts.

    Files: the folders in ``hidden`` are covered, outer ones first and the state folder last, except for the paths in
    ``shown``. Folders in ``private`` are replaced by the folder ``temporary``, which is created, or by memory for
    /dev/shm, with the same exceptions. Folders in ``owned`` are mounted with ``user`` as owner. ``copies`` are mounted
    at the paths of their originals; without mounts the process runs in the copy.

    Rights: ``user`` is the user and group to become, 0 for none. ``ports`` are the allowed listening ports, None for
    all. ``filter`` is a seccomp program in base64. ``has_own_pids``: this is the first process of a pid namespace.
    ``has_own_mounts``: the process has a separate mount namespace.

    ``after`` is called with each applied layer. A strict plan raises ``OSError`` on a failure.
    """
    failed: list[str] = []
    is_root = os.geteuid() == 0

    def layer(name: str, put: Callable[[], object]) -> bool:
        try:
            put()
        except OSError as error:
            if plan["is_strict"]:
                raise OSError(
                    error.errno, f"isolation: {error.strerror}", f"{name} ({error.filename or 'not allowed'})"
                ) from error
            where = f" ({error.filename})" if error.filename else ""
            failed.append(f"{name}: {error.strerror}{where}")
            return False
        after(name)
        return True

    hidden: list[str] = plan["hidden"]
    state = hidden[-1] if hidden else ""
    user = int(plan["user"]) if is_root else 0
    if plan["has_own_pids"]:
        layer("pid", _check_pids)
    layer("memory", lambda: _written("/proc/self/oom_score_adj", _OOM_SCORE))
    # Repeating it would take milliseconds: the kernel waits until no core uses the old mounts.
    is_hidden = not hidden or plan["has_own_mounts"] or layer("mounts", own_mounts)
    if user and is_hidden:
        for path in plan["owned"]:
            layer("owner", functools.partial(_map_owner, path, user))
    is_hidden = is_hidden and (not hidden or layer("mounts", lambda: _hide(plan, user=user, home=folder)))
    if is_root:
        layer("proc", _guard_proc)
    os.chdir(folder if is_hidden else plan["copies"].get(folder, folder))
    layer("capabilities", _drop_bounds)
    if user:
        layer("user", lambda: _become(user))
    if user or _has_own_users():
        resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES_MAX, _PROCESSES_MAX))
    layer("no_new_privs", lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1))
    layer("landlock", lambda: _landlock("" if is_hidden else state, plan["shown"], plan["ports"]))
    layer("ports", lambda: _check_ports(plan["ports"]))
    layer("capabilities", _drop)
    layer("seccomp", lambda: _filter(base64.b64decode(plan["filter"])))
    return failed


def probe(plan: dict[str, Any]) -> list[str]:
    """Test a plan in a separate process; return the layers that this machine refuses."""
    mine, its = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # The streams become the plan's user's, but not the file to which an operator redirected ours.
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nothing, descriptor)
            failed = ["pid: no pid namespace"] if plan["has_own_pids"] and LIBC.unshare(_CLONE_NEWPID) != 0 else []
            failed += confine({**plan, "is_strict": False, "has_own_pids": False}, "/")
            os.write(its, "\n".join(failed).encode())
        except OSError as error:
            os.write(its, str(error).encode())
        finally:
            os._exit(0)
    os.close(its)
    with os.fdopen(mine) as pipe:
        lines = pipe.read().split("\n")
    os.waitpid(pid, 0)
    return [line for line in lines if line]


def _check_pids() -> None:
    if os.getpid() != 1:
        raise OSError(1, "no pid namespace", "clone")


def own_mounts() -> None:
    """Give this process its own mount namespace, if necessary within a user namespace of the same user.

    Raises ``OSError``.
    """
    if LIBC.unshare(_CLONE_NEWNS) != 0:
        user, group = os.geteuid(), os.getegid()
        checked(LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            _written(f"/proc/self/{name}", text)
    mount_at("none", "/", flags=_MS_REC | _MS_PRIVATE)


def _has_own_users() -> bool:
    """Whether this process is in a user namespace.

    A process limit then counts only the pod's processes (since Linux 5.14), not all processes of the same user.
    """
    with open("/proc/self/uid_map") as file:
        return int(file.read().split()[2]) < _IDS - 1


def _hide(plan: dict[str, Any], *, user: int, home: str) -> None:
    """Cover the folders in ``hidden`` by empty ones, keep the paths in ``shown`` visible, and give ``user`` a name."""
    hidden: list[str] = plan["hidden"]
    copies: dict[str, str] = plan["copies"]
    sources = [(path, copies.get(path, path)) for path in plan["shown"]]
    descriptors = [
        (path, os.open(source, os.O_PATH | os.O_CLOEXEC)) for path, source in sources if os.path.exists(source)
    ]
    covered = []
    # The pod's user must enter the folders above its own.
    umask = os.umask(0o022)
    folders = [*_replace_temporary(plan["private"], plan["temporary"], hidden), *hidden]
    for folder in folders:
        # A hidden folder within another exists there if it has a shown path.
        if folder in hidden and os.path.isdir(folder):
            mount_at("tmpfs", folder, kind="tmpfs", flags=_MS_NOSUID | _MS_NODEV, data="mode=755,size=1m")
            covered.append(folder)
        # A path is shown in the innermost hidden folder.
        for path, descriptor in descriptors:
            if path.startswith(f"{folder}/") and not any(
                path.startswith(f"{other}/") and len(other) > len(folder) for other in folders
            ):
                _show(path, descriptor)
    os.umask(umask)
    for _, descriptor in descriptors:
        os.close(descriptor)
    if user and covered:
        # Not part of the isolation, and a machine may lack the file.
        with contextlib.suppress(OSError):
            _name_user(user, home, f"{covered[-1]}/passwd")
    for folder in covered:
        mount_at("none", folder, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _replace_temporary(private: list[str], temporary: str, hidden: list[str]) -> list[str]:
    """Replace the shared folders ``private``, such as /tmp, by the folder ``temporary``; return them.

    Folders of ``hidden`` that are in them are created, so that they can be covered.
    """
    if private and not os.path.lexists(temporary):
        with contextlib.suppress(FileExistsError):  # Pods that share one may start together.
            os.mkdir(temporary)
            os.chmod(temporary, _OPEN_MODE)
    # Exchanging it for a link gains an app nothing. It is closed by exec, and may itself be in a hidden folder.
    descriptor = os.open(temporary, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY) if private else -1
    for folder in private:
        if folder == _SHARED_MEMORY:
            mount_at("tmpfs", folder, kind="tmpfs", flags=_MS_NOSUID | _MS_NODEV, data="mode=1777")
        else:
            mount_at(f"/proc/self/fd/{descriptor}", folder, flags=_MS_BIND)
        for path in (path for path in hidden if path.startswith(f"{folder}/")):
            os.makedirs(path, exist_ok=True)
    return private


def _name_user(user: int, home: str, path: str) -> None:
    """Provide a passwd(5) with the pod's user, because initdb, ssh and others need a user name."""
    with open(_PASSWD, "rb") as file:
        others = file.read()
    with open(path, "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        file.write(f"{_USER_NAME}:x:{user}:{user}:pod:{home}:/bin/sh\n".encode() + others)
    mount_at(path, _PASSWD, flags=_MS_BIND)


def _show(path: str, descriptor: int) -> None:
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.makedirs(path, mode=0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    mount_at(f"/proc/self/fd/{descriptor}", path, flags=_MS_BIND | _MS_REC)


def _map_owner(path: str, user: int) -> None:
    """Mount a folder over itself with its owner mapped to ``user``."""
    status = os.stat(path)
    if status.st_uid == user:
        return
    with open(open_users(exchanged_ids(status.st_uid, user), exchanged_ids(status.st_gid, user))) as users:
        mount_mapped(path, path, users.fileno())


def mount_mapped(source: str, target: str, users: int, *, cleared: int = 0) -> None:
    """Mount a file or folder with its owners mapped by a user namespace. Raises ``OSError``.

    ``users`` is the descriptor of the user namespace. ``cleared`` are mount attributes to remove, such as ``NO_EXEC``.
    """
    tree = LIBC.syscall(_OPEN_TREE, _AT_CWD, source.encode(), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    checked(min(tree, 0), source)
    try:
        wanted = ctypes.create_string_buffer(struct.pack("=QQQQ", _ATTR_IDMAP, cleared, 0, users), 32)
        checked(LIBC.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, wanted, ctypes.c_size_t(32)), source)
        checked(LIBC.syscall(_MOVE_MOUNT, tree, b"", _AT_CWD, target.encode(), _MOVE_FROM_EMPTY), target)
    finally:
        os.close(tree)


def open_users(user_map: str, group_map: str) -> int:
    """Open a new user namespace with these maps, as in user_namespaces(7). Raises ``OSError``."""
    mine, its = os.pipe()
    waiting, wake = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(wake)
            checked(LIBC.unshare(_CLONE_NEWUSER), "unshare")
            # In the namespace of this ``/proc``.
            os.write(its, os.readlink("/proc/self").encode())
            os.read(waiting, 1)
        except OSError as error:
            os.write(its, f"-{error.errno}".encode())
        finally:
            os._exit(0)
    os.close(its)
    os.close(waiting)
    try:
        name = os.read(mine, 32).decode()
        if not name.isdecimal():
            # The child's error; without one, the child was killed.
            number = int(name.removeprefix("-") or errno.ESRCH)
            raise OSError(number, f"no user namespace: {os.strerror(number)}", "unshare")
        _written(f"/proc/{name}/uid_map", user_map)
        _written(f"/proc/{name}/gid_map", group_map)
        return os.open(f"/proc/{name}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(mine)
        os.close(wake)
        os.waitpid(pid, 0)


def exchanged_ids(first: int, other: int) -> str:
    """The map of a user namespace that exchanges two ids (user_namespaces(7))."""
    low, high = sorted((first, other))
    lines = ((0, 0, low), (low, high, 1), (low + 1, low + 1, high - low - 1), (high, low, 1))
    last = (high + 1, high + 1, _IDS - 2 - high)
    return "".join(f"{inside} {outside} {count}\n" for inside, outside, count in (*lines, last) if count > 0)


def _written(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _guard_proc() -> None:
    """Show only the pod's processes in ``/proc``, with kernel settings read-only."""
    mount_at("proc", "/proc", kind="proc", flags=_MS_NOSUID | _MS_NODEV | _MS_NOEXEC, data="hidepid=4")
    for path in (*_READ_ONLY, "/sys"):
        if os.path.exists(path):
            mount_at(path, path, flags=_MS_BIND | _MS_REC)
            mount_at("none", path, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for path in dict.fromkeys(_mounts_below("/sys")):  # Listed again for the hidden /sys.
        mount_at("none", path, flags=_MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mounts_below(folder: str) -> Iterator[str]:
    with open("/proc/self/mounts") as file:
        for line in file.read().splitlines():
            path = line.split()[1]
            if path.startswith(f"{folder}/"):
                yield path


def _become(user: int) -> None:
    """Become the user and group ``user`` without further groups. The user also gets this process's streams."""
    for descriptor in (0, 1, 2):
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
            os.fchown(descriptor, user, user)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _drop_bounds() -> None:
    """Prevent programs that this process executes from gaining capabilities. Without root there is nothing to drop."""
    for number in range(_CAPABILITIES_END):
        if LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            return


def _drop() -> None:
    """Drop all capabilities of this process."""
    LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24)
    checked(LIBC.capset(ctypes.create_string_buffer(header), ctypes.create_string_buffer(nothing)), "capset")


def landlock_abi() -> int:
    """The version of Landlock in this kernel; 0 without it."""
    return max(0, int(LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)))


def _check_ports(ports: "list[int] | None") -> None:
    """Raise ``OSError`` if ``_landlock`` could not restrict listening ports."""
    if ports is not None and landlock_abi() < _NET_ABI:
        raise OSError(38, f"the kernel has no Landlock of version {_NET_ABI} or later", "")


def _landlock(hidden: str, shown: list[str], ports: "list[int] | None") -> None:
    """Restrict signals, ptrace and sockets to this pod, ports to ``ports``, and files to those outside ``hidden``."""
    abi = landlock_abi()
    if abi < _REFER_ABI:
        raise OSError(38, "the kernel has no Landlock of version 2 or later", "landlock")
    rights = (1 << {2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1 if hidden else 0
    if not rights and abi < _SCOPE_ABI:
        # A domain must restrict something; it also forbids tracing outside processes.
        rights = _MAKE_BLOCK | _REFER
    ports = ports if abi >= _NET_ABI else None
    size = 24 if abi >= _SCOPE_ABI else 16 if abi >= _NET_ABI else 8
    wanted = struct.pack("=QQQ", rights, _BIND_TCP if ports is not None else 0, _SCOPES)[:size]
    ruleset = LIBC.syscall(_LANDLOCK_CREATE, ctypes.create_string_buffer(wanted, size), ctypes.c_size_t(size), 0)
    checked(min(ruleset, 0), "landlock_create_ruleset")
    try:
        for path in _around(hidden, shown) if hidden else ["/"] if rights else ():
            _allow(ruleset, path, rights if hidden else _REFER)
        for port in ports or ():
            rule = ctypes.create_string_buffer(struct.pack("=QQ", _BIND_TCP, port), 16)
            checked(LIBC.syscall(_LANDLOCK_ADD, ruleset, _RULE_PORT, rule, 0), "landlock_add_rule")
        checked(LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    # Paths that were removed meanwhile or cannot be opened need no rule.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FILE_RIGHTS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        LIBC.syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH, rule, 0)
        os.close(descriptor)


def _around(hidden: str, shown: list[str]) -> Iterator[str]:
    """Yield the paths to which access is allowed: everything outside ``hidden``, and the paths in ``shown``.

    To exclude one folder, the siblings of the folder and of each of its parent folders are listed.
    """
    here = "/"
    for part in [part for part in hidden.split("/") if part]:
        with contextlib.suppress(OSError):
            yield from (os.path.join(here, name) for name in os.listdir(here) if name != part)
        here = os.path.join(here, part)
    yield from shown


def _filter(program: bytes) -> None:
    if not program:
        raise OSError(38, f"no list of system calls for {os.uname().machine}", "seccomp")
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions of 8 bytes, and a pointer to them.
    wanted = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.create_string_buffer(wanted, len(wanted)))


def _prctl(option: int, *arguments: Any) -> None:  # noqa: ANN401 - numbers and pointers
    words = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    checked(LIBC.prctl(option, *words, *[ctypes.c_ulong(0)] * (4 - len(words))), f"prctl {option}")


def mount_at(source: str, target: str, *, kind: str = "none", flags: int = 0, data: str = "") -> None:
    """Call mount(2). Raises ``OSError``."""
    result = LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode() or None)
    checked(result, target)


def checked(result: int, what: str) -> None:
    """Raise ``OSError`` if ``result``, of a call of ``LIBC``, is not 0. ``what`` is named in the error."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
