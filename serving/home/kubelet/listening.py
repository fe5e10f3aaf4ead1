"""Which TCP ports the processes of a container listen on, from /proc.

A container leads a session. Its sockets are found by inode: /proc/PID/net/tcp lists the sockets that listen in the network
namespace of the process, /proc/PID/fd those that a process has open.
"""

import contextlib
import os
from pathlib import Path

_LISTEN = "0A"
# Columns of /proc/net/tcp, see proc(5): local address, state, inode.
_ADDRESS, _STATE, _INODE = 1, 3, 9
# Fields of /proc/PID/stat after the name: the session is the 6th of all.
_SESSION = 3


def listening_ports(session: int, proc: Path = Path("/proc")) -> frozenset[int]:
    """Ports on which any process of a session listens, on any address."""
    ports = _listening_by_inode(proc / str(session))
    if not ports:
        return frozenset()
    found: set[int] = set()
    for pid in _members(session, proc):
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(proc / pid / "fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(descriptor.path)  # noqa: PTH115 - a Path for each descriptor costs more than the call
                    if target.startswith("socket:["):
                        found |= ports.get(target[8:-1], set())
    return frozenset(found)


def _listening_by_inode(process: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (process / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_STATE] == _LISTEN:
                    port = int(fields[_ADDRESS].rpartition(":")[2], 16)
                    found.setdefault(fields[_INODE], set()).add(port)
    return found


def _members(session: int, proc: Path) -> list[str]:
    found = []
    for name in os.listdir(proc):  # noqa: PTH208 - hundreds of entries, of which only names are wanted
        if name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (proc / name / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[_SESSION]) == session:
                    found.append(name)
    return found
