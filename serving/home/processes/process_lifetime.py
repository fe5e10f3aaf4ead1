"""Ties the lifetimes of processes together: parent-death signals, subreapers and child lists.

Standard library only: the supervisor uses it.
"""

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

QUEUE_PROXY_NAME = "queue-proxy"
"""The name of a forked queue-proxy in ``ps``, whose command line is the template's."""
STANDBY_NAME = "standby"
"""The name of a process forked ahead, without a pod."""
FORKED_NAMES = frozenset({QUEUE_PROXY_NAME, STANDBY_NAME})
"""Names of processes that share the template's command line."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_TID_ADDRESS = 40
# Fields after the name in /proc/PID/stat.
_START_TIME_FIELD = 19
_ARGUMENT_BOUND_FIELDS = slice(45, 49)
# Loaded before a fork: between fork and exec only safe code may run.
_LIBC = ctypes.CDLL(None, use_errno=True)
# Calls that keep the interpreter lock, because a child has no other thread to return it.
_LOCKED = ctypes.PyDLL(None, use_errno=True)
# <linux/sched.h>, and the number of clone(2) by machine.
_CLONE_PARENT, _CLONE_NEWPID = 0x8000, 0x20000000
_CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x200000, 0x1000000
_CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
_CLONE_NUMBER = _CLONE_NUMBERS.get(os.uname().machine)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process from now on (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """In a forked child: restore the default signal handling, and let the kernel end this process with its parent."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _thread_id_address() -> int:
    """The address at which the C library stores the thread id of the main thread; 0 if the kernel does not tell it."""
    address = ctypes.c_uint64()
    _LIBC.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    return address.value


_THREAD_ID_ADDRESS = _thread_id_address()


def can_fork_sibling() -> bool:
    """Whether ``fork_sibling`` supports this machine."""
    return _CLONE_NUMBER is not None and bool(_THREAD_ID_ADDRESS)


def fork_sibling(*, has_own_pids: bool = False) -> int:
    """Fork a child of this process's parent: return 0 in the child, else its process id. Raises ``OSError``.

    ``has_own_pids`` makes the child the first process of a pid namespace (pid_namespaces(7)), which ends with the
    child; that needs root. The C library does not notice this fork (clone(2), CLONE_PARENT): the kernel stores the
    child's thread id, and no handlers of pthread_atfork(3) run. This process must have one thread.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    flags |= _CLONE_NEWPID if has_own_pids else 0
    # The fourth or the fifth argument is the address, depending on the machine; the other is not used.
    address = ctypes.c_uint64(_THREAD_ID_ADDRESS)
    pid: int = _LOCKED.syscall(ctypes.c_long(_CLONE_NUMBER or -1), ctypes.c_long(flags), 0, 0, address, address)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number), "clone")
    return pid


def name_process(name: str) -> None:
    """Set this process's name in ``ps`` and ``top``, up to 15 characters."""
    _LIBC.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def show_as(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show a command line and an environment in this process's /proc, for ``ps`` and ``environment_of``.

    They overwrite the memory of the original ones, and are cut if they are longer (proc_pid_cmdline(5)). No code may
    use the original ones afterwards.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    bounds = [int(field) for field in fields[_ARGUMENT_BOUND_FIELDS]]
    variables = [f"{name}={text}" for name, text in environment.items()]
    for (begin, end), texts in ((bounds[:2], arguments), (bounds[2:], variables)):
        block = b"".join(os.fsencode(text) + b"\0" for text in texts)[: end - begin - 1]
        ctypes.memmove(begin, block.ljust(end - begin, b"\0"), end - begin)


def children_of(pid: int) -> list[int]:
    """Process ids of all children, including adopted ones."""
    files = list(Path(f"/proc/{pid}/task").glob("*/children"))
    if not files:
        # This kernel keeps no lists (proc_tid_children(5)).
        return [child for child, parent in _parents() if parent == pid]
    children: set[int] = set()
    # A list read while another child ends may lack a child.
    for file in files * 2:
        with contextlib.suppress(OSError):
            children.update(map(int, file.read_text().split()))
    return sorted(children)


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name in brackets may contain anything; the parent is the second field after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            yield int(entry.name), int(fields[1])


def start_ticks(pid: int) -> int | None:
    """A process's start in clock ticks since boot (proc_pid_stat(5)); None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[_START_TIME_FIELD])


def ids_of(stat: int) -> tuple[int, int]:
    """The process ids of a process and its parent, from an open ``/proc/self/stat``, even in another pid namespace."""
    name, _, fields = os.pread(stat, 1024, 0).decode(errors="replace").rpartition(")")
    return int(name.split(" ", 1)[0]), int(fields.split()[1])


def age_s(pid: int) -> float:
    """The age of a process in seconds; 0 if it has ended."""
    ticks = start_ticks(pid)
    if ticks is None:
        return 0.0
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    return max(0.0, up_s - ticks / os.sysconf("SC_CLK_TCK"))


def environment_of(pid: int) -> frozenset[str]:
    """The environment of a process at its start, as NAME=VALUE; empty if it cannot be read."""
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return frozenset()


def set_niceness(group: int, niceness: int) -> None:
    """Set the niceness of a process group, and of its session if the kernel schedules by session (sched(7), autogroup).

    Raises ``OSError`` if this is not allowed: without a special right, a process may only increase its niceness.
    """
    os.setpriority(os.PRIO_PGRP, group, niceness)
    with contextlib.suppress(FileNotFoundError):
        Path(f"/proc/{group or 'self'}/autogroup").write_text(str(niceness))


def expects(session: int, number: int) -> bool:
    """Whether a process of a session handles or ignores a signal (proc_pid_status(5))."""
    # All in one list, because an abandoned glob does not close its folder.
    for entry in list(Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session:
                lines = (entry / "status").read_text().splitlines()
                masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
                if any(mask >> (number - 1) & 1 for mask in masks):
                    return True
    return False


def join_cgroups(folders: Iterable[str], pid: int = 0) -> None:
    """Move a single-threaded process, by default this one, into cgroups. Raises ``OSError``."""
    for folder in folders:
        # The kernel moves another process only after all processors passed a quiet state, 10 ms; a thread moves itself
        # immediately. Version 2 cannot move single threads.
        threads = Path(folder, "tasks")
        is_thread = pid == 0 and threads.exists()
        (threads if is_thread else Path(folder, "cgroup.procs")).write_text(str(pid))


def kill_group(pid: int, number: int) -> None:
    """Send a signal to an unreaped child and its process group, even before the child has created the group."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            os.kill(pid, number)
