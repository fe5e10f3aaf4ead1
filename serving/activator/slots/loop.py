"""The lines between activator processes of one machine: a unix socket each, in a folder that only we can read.

Each process listens at a path of its own, and has one line to each other on which it speaks; it hears on those that others
made. Who dials tells by the kernel which process answers, and watches it through a pidfd: a peer is gone when its process
is, not when a line breaks or is slow. Nobody answers at a path whose process is dead, so that a new process knows at once
with whom it shares. A peer that lives and does not answer when shares are to be made anew is left out after a while: then
the pods' own queues keep their limits, until it speaks again.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable

from serving.activator.outcome import Outcome
from serving.activator.slots.desk import SharingDesk
from serving.activator.slots.messages import Frames, Hello, Message, encode
from serving.aio.periodic import every
from serving.model.errors import InvalidValue
from serving.proxy.exchange import Exchange
from serving.settings.activator import ActivatorSettings

__all__ = ["Peers"]

_log = logging.getLogger("activator")

# Views take a millisecond; who is silent for one to two periods is stuck.
_LOOK_PERIOD_S = 1.0
# What a peer that hears nothing may keep us holding for it.
_UNSENT_BYTES_MAX = 16 * 1024**2
_CREDENTIALS = struct.Struct("3i")


class _Peer:
    """A process that lives: its line, and the descriptor that says when it is gone."""

    def __init__(self, index: int, pid: int, line: socket.socket) -> None:
        self.index = index
        self.pid = pid
        self.line = line
        self.pidfd = os.pidfd_open(pid)
        self.unsent = bytearray()
        self.is_silent = False


class Peers:
    """All lines of one process, and the desk that speaks on them. ``draw`` gives numbers from 0 to below 1."""

    def __init__(self, settings: ActivatorSettings, *, draw: Callable[[], float], clock: Callable[[], float]) -> None:
        # The clock is the machine's: in nanoseconds, no earlier life has begun as many rounds.
        first_round = int(clock() * 1e9)
        self.desk = SharingDesk[Exchange](settings, random=draw, first_round=first_round, tell=self.tell)
        self._apply: Callable[[Outcome[Exchange]], None] = lambda _: None
        self._index = settings.index
        self._count = settings.count
        self._folder = settings.peer_folder
        self._clock = clock
        self._peers: dict[int, _Peer] = {}
        self._folder_fd = -1
        self._server: asyncio.Server | None = None
        self._turn_seen = -1

    def __repr__(self) -> str:
        return f"Peers({self._index} of {self._count}, knows {sorted(self._peers)})"

    async def start(self, apply: Callable[[Outcome[Exchange]], None]) -> None:
        """Listen, and meet everybody who is there; from now on the desk has slots. ``apply`` does what it says."""
        self._apply = apply
        # The path of a unix socket may have 107 bytes, and folders lie deep.
        self._folder_fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Hearing(self._heard), self._path(self._index))
        for index in range(self._count):
            if index != self._index:
                self._meet(index)
        self._share()

    async def run(self, stop: asyncio.Event) -> None:
        """Leave out who does not answer, until ``stop`` is set."""

        async def look() -> None:
            ledger = self.desk.ledger
            if ledger.is_frozen and ledger.turn == self._turn_seen:
                ledger.remind()
                for index in ledger.silent_peers:
                    _log.warning("peer.silent", extra={"peer": index})
                    self._peers[index].is_silent = True
                self._share()
            self._turn_seen = ledger.turn

        def on_error(error: Exception) -> None:
            _log.error("peers.failed", exc_info=error)

        await every(_LOOK_PERIOD_S, look, stop=stop, on_error=on_error)

    def close(self) -> None:
        """Let go of all lines; others learn of our end by that of the process."""
        if self._server is not None:
            self._server.close()
        for peer in list(self._peers.values()):
            self._let_go(peer)
        os.close(self._folder_fd)

    def tell(self, index: int, message: Message) -> None:
        """Send a message to a peer; nothing to one that is gone, or takes nothing."""
        peer = self._peers.get(index)
        if peer is None or len(peer.unsent) > _UNSENT_BYTES_MAX:
            return
        was_empty = not peer.unsent
        peer.unsent += encode(message)
        if was_empty:
            self._send(peer)

    def _path(self, index: int) -> str:
        return f"/proc/self/fd/{self._folder_fd}/activator-{index}.sock"

    def _meet(self, index: int) -> None:
        """Know the process that answers at a path, if any does, and greet it."""
        line = socket.socket(socket.AF_UNIX)
        line.setblocking(False)
        try:
            line.connect(self._path(index))
            peer = _Peer(index, _pid_of(line), line)
        except OSError:
            # Nobody is there, or was: whoever starts there will greet us.
            line.close()
            return
        self._peers[index] = peer
        asyncio.get_running_loop().add_reader(peer.pidfd, self._lose, peer)
        self.tell(index, Hello(index=self._index))
        _log.info("peer.met", extra={"peer": index, "peer_pid": peer.pid})

    def _heard(self, pid: int, index: int, message: Message) -> None:
        peer = self._peers.get(index)
        if isinstance(message, Hello):
            if peer is None or peer.pid != pid:
                if peer is not None:
                    self._lose(peer)
                self._meet(index)
                self._share()
            return
        if peer is None or peer.pid != pid:
            return
        if peer.is_silent:
            peer.is_silent = False
            self._share()
        self._apply(self.desk.hear(index, message, self._clock()))

    def _lose(self, peer: _Peer) -> None:
        """The process of a peer is gone."""
        _log.info("peer.gone", extra={"peer": peer.index, "peer_pid": peer.pid})
        self._let_go(peer)
        self._share()

    def _let_go(self, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(peer.pidfd)
        loop.remove_writer(peer.line)
        os.close(peer.pidfd)
        peer.line.close()
        del self._peers[peer.index]

    def _share(self) -> None:
        living = [peer.index for peer in self._peers.values() if not peer.is_silent]
        self._apply(self.desk.set_peers(living, self._clock()))

    def _send(self, peer: _Peer) -> None:
        loop = asyncio.get_running_loop()
        # A line that broke is of a process that ends: its pidfd says so.
        with contextlib.suppress(OSError):
            del peer.unsent[: peer.line.send(peer.unsent)]
        if peer.unsent:
            loop.add_writer(peer.line, self._send, peer)
        else:
            loop.remove_writer(peer.line)


class _Hearing(asyncio.Protocol):
    """A line on which somebody speaks to us, who must be of our own user."""

    def __init__(self, heard: Callable[[int, int, Message], None]) -> None:
        self._heard = heard
        self._frames = Frames()
        self._index: int | None = None
        self._pid = 0
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._pid = _pid_of(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            for message in self._frames.feed(data):
                if isinstance(message, Hello):
                    self._index = message.index
                if self._index is not None:
                    self._heard(self._pid, self._index, message)
        except InvalidValue as error:
            _log.error("peer.unreadable", extra={"peer_pid": self._pid, "error": str(error)})
            self._transport.close()


def _pid_of(line: socket.socket) -> int:
    """The process at the other end. The folder is ours alone, and so is whoever got in."""
    pid, _, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)
