"""Assigns loopback addresses to queue-proxies and ports to apps, and lists listening ports.

Addresses are 127.64.x.y, or begin with the prefix of the pod's virtual node. The last two numbers are unique on the
whole machine, because containers of all nodes share one network. Ports are below the kernel's range for outgoing
connections, which could occupy an app's port between two starts. Addresses and ports are random, so that no process can
predict and occupy them, and two systems on one machine rarely collide. Used ones are skipped.
"""

import contextlib
import functools
import math
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from serving.home.pods.userranges import free_firsts, subordinate_range, used_ranges
from serving.net.aio.listeners import listener_at

_NETWORK = "127.64"
_ADDRESSES = 2**16
QUEUE_PORTS = (8012, 8022)
"""Ports of a queue-proxy, on its pod's address."""
_AND_PORTS = " and ".join(map(str, QUEUE_PORTS))
_HOLDERS_SHOWN_MAX, _HOLDERS_SOUGHT_MAX = 3, 64

_PORT_FIRST = 20000
_PORT_END_DEFAULT = 32768
# Takes at most 40 ms. Even with 99 of 100 addresses occupied, one try in 10^17 finds none.
_TRIES = 4096
# One pod must not reserve the whole range.
_NAMED_PORTS_MAX = 16

_LISTEN = "0A"
# Columns of /proc/net/tcp, see proc(5): local address, state, inode.
_ADDRESS, _STATE, _INODE = 1, 3, 9
# Fields of /proc/PID/stat after the name: the session is the 6th of all.
_SESSION = 3
# Cached readings of all processes by kind, with their time; one thread reads while others wait for it.
_READ: dict[Hashable, tuple[float, object]] = {}
_READING = threading.Lock()
_KEPT_S = 10.0
_Found = TypeVar("_Found")


class PodLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The address, ports and users reserved for one pod.

    ``address`` is the pod's loopback address, such as "127.64.3.7". ``port`` is the app's port on 127.0.0.1, and
    ``tcp_ports`` are its further ports there. ``named_ports`` are ports from the manifest that this machine could
    otherwise assign to other pods. ``users`` is the first of the pod's user ids on this machine (``userranges``), or 0.
    """

    address: str
    port: int
    tcp_ports: tuple[int, ...] = ()
    named_ports: tuple[int, ...] = ()
    users: int = 0


class PodLocations:
    """Reserves addresses, ports and users for the pods of one machine."""

    def __init__(self, dice: random.Random) -> None:
        self._used: set[str | int] = set()
        self._dice = dice
        self._port_end = _first_outgoing_port()

    def reserve(self, network: str = _NETWORK) -> PodLocation:
        """Reserve a free location whose address begins with ``network``. Raises ``OSError`` if there is none."""
        return self.occupy(PodLocation(address=self._free_address(network), port=self._free_port()))

    def with_tcp_ports(self, place: PodLocation, count: int) -> PodLocation:
        """Reserve ports until the location has ``count`` ports for TCP. Raises ``OSError`` if too few are free."""
        while len(place.tcp_ports) < count:
            place = self.occupy(msgspec.structs.replace(place, tcp_ports=(*place.tcp_ports, self._free_port())))
        return place

    def with_named_ports(self, place: PodLocation, ports: Collection[int]) -> PodLocation:
        """Reserve ports from a pod's manifest, so that they are not assigned to other pods, up to a fixed number.

        Ports that are in use, or that are never assigned, are skipped.
        """
        free = [port for port in ports if is_reserved(port) and port not in self._used and port not in QUEUE_PORTS]
        named = (*place.named_ports, *free)[:_NAMED_PORTS_MAX]
        return self.occupy(msgspec.structs.replace(place, named_ports=named))

    def with_users(self, place: PodLocation) -> PodLocation:
        """Reserve a range of user ids for a location, unless it has one. Raises ``OSError`` if no range is free."""
        if place.users:
            return place
        whole = subordinate_range()
        start = self._dice.randrange(whole.pod_count)
        for first in free_firsts(whole, used_ranges(), start=start):
            if first not in self._used:
                return self.occupy(msgspec.structs.replace(place, users=first))
        raise OSError("no range of users is free for a pod")

    def occupy(self, place: PodLocation) -> PodLocation:
        """Mark a location as used."""
        self._used |= _numbers_of(place)
        return place

    def release(self, place: PodLocation) -> None:
        """Release a location."""
        self._used -= _numbers_of(place)

    def _free_address(self, network: str) -> str:
        holders: Counter[int | None] = Counter()
        for _ in range(_TRIES):
            number = self._dice.randrange(_ADDRESSES)
            address, host = f"{network}.{number >> 8}.{number & 255}", f"{number >> 8}.{number & 255}"
            # .0 and .255 work, but look like network and broadcast addresses.
            if not 0 < number & 255 < 255 or host in self._used:
                continue
            if _is_free(address, *QUEUE_PORTS):
                return address
            if holders.total() < _HOLDERS_SOUGHT_MAX:
                holders[_holder(address, *QUEUE_PORTS)] += 1
        raise OSError(
            f"no pod can start: no address of {network}.0.0/16 has ports {_AND_PORTS} free: {_users_text(holders)}"
        )

    def _free_port(self) -> int:
        holders: Counter[int | None] = Counter()
        for _ in range(_TRIES):
            port = self._dice.randrange(_PORT_FIRST, self._port_end)
            if port in self._used:
                continue
            if _is_free("", port):
                return port
            if holders.total() < _HOLDERS_SOUGHT_MAX:
                holders[_holder("127.0.0.1", port)] += 1
        raise OSError(
            f"no pod can start: no port from {_PORT_FIRST} to {self._port_end - 1} is free: {_users_text(holders)}"
        )


def _holder(address: str, *ports: int) -> int | None:
    """The user id that listens on one of the ports; None if no socket listens, as when a port is only bound."""
    listeners = (listener_at(address, port) for port in ports)
    return next((listener.user for listener in listeners if listener is not None), None)


def _users_text(holders: Counter[int | None]) -> str:
    """Describe why no address or port is free: the users that occupy the tried ones."""
    if not holders:
        return "all are assigned to pods"
    tried = f"of {holders.total()} tries"
    users = [
        f"user {user} listens on {count}" for user, count in holders.most_common(_HOLDERS_SHOWN_MAX) if user is not None
    ]
    return f"{tried}, {', '.join(users)} (`ss -ltnp` shows the processes)" if users else f"{tried}, none can be bound"


def _numbers_of(place: PodLocation) -> set[str | int]:
    # No pod's user id is as low as a port.
    return {
        host_part(place.address),
        place.port,
        *place.tcp_ports,
        *place.named_ports,
        *((place.users,) if place.users else ()),
    }


def is_reserved(port: int) -> bool:
    """Whether a port can be assigned to an app or a queue-proxy, so that no other pod may listen on it."""
    return port in QUEUE_PORTS or _PORT_FIRST <= port < _first_outgoing_port()


def host_part(address: str) -> str:
    """The last two numbers of a pod's address: "3.7" of 127.66.3.7."""
    return address.split(".", 2)[2]


def _is_free(address: str, *ports: int) -> bool:
    """Whether all ports are free on this address, and on the wildcard address, where many apps listen."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                return False
    return True


@functools.cache
def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return _PORT_END_DEFAULT
    return first if first > _PORT_FIRST + _TRIES else _PORT_END_DEFAULT


def listening_ports(session: int, proc: Path = Path("/proc"), *, age_max_s: float = 0.0) -> frozenset[int]:
    """The ports on which any process of a session listens, on any address.

    The underlying list of processes and sockets may be ``age_max_s`` old, because many pods are examined at the same
    time.
    """
    try:
        network = os.stat(proc / str(session) / "ns/net").st_ino  # noqa: PTH116 - as below
    except OSError:
        network = session
    ports = _recent(("ports", proc, network), lambda: _ports_by_inode(proc / str(session)), age_max_s)
    if not ports:
        return frozenset()
    members = _recent(("members", proc), lambda: _members_by_session(proc), age_max_s)
    listening: set[int] = set()
    for pid in members.get(session, ()):
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(proc / pid / "fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(descriptor.path)  # noqa: PTH115 - a Path for each descriptor costs more than the call
                    if target.startswith("socket:["):
                        listening |= ports.get(target[8:-1], set())
    return frozenset(listening)


def _recent(what: Hashable, read: Callable[[], _Found], age_max_s: float) -> _Found:
    with _READING:
        for key in [key for key, (at_s, _) in _READ.items() if time.monotonic() - at_s >= _KEPT_S]:
            del _READ[key]
        at_s, value = _READ.get(what, (-math.inf, None))
        if time.monotonic() - at_s >= age_max_s:
            value = read()
            _READ[what] = (time.monotonic(), value)
        return cast("_Found", value)


def _ports_by_inode(process: Path) -> dict[str, set[int]]:
    ports_by_inode: dict[str, set[int]] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (process / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[_STATE] == _LISTEN:
                    port = int(fields[_ADDRESS].rpartition(":")[2], 16)
                    ports_by_inode.setdefault(fields[_INODE], set()).add(port)
    return ports_by_inode


def _members_by_session(proc: Path) -> dict[int, list[str]]:
    members_by_session: dict[int, list[str]] = {}
    for name in os.listdir(proc):  # noqa: PTH208 - hundreds of entries, of which only names are wanted
        if name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (proc / name / "stat").read_bytes().rpartition(b")")[2].split()
                members_by_session.setdefault(int(fields[_SESSION]), []).append(name)
    return members_by_session
