"""Connections between the activator processes of one machine, over unix sockets in a private folder.

Each process listens at its own path. It sends messages on connections that it opened, and receives them on connections
that others opened. The kernel reports which process listens at a path, and a pidfd when that process ends. A peer is
removed when its process ends, not when a connection breaks or is slow. Nothing listens at the path of an ended process,
so a new process finds its live peers immediately. A live peer that does not answer while a view is pending is excluded
after a while. Until the excluded peer answers again, the queue-proxies of the pods enforce the limits.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable

from serving.activator.queueing.outcome import RoutingOutcome
from serving.activator.queueing.router import RevisionTable
from serving.activator.slots.broker import SlotBroker
from serving.activator.slots.messages import Frames, PeerHello, SlotMessage, encode
from serving.core.model.errors import InvalidValue
from serving.core.settings.activator import ActivatorSettings
from serving.net.aio.periodic import every
from serving.net.proxy.forwarding.exchange import Exchange

_log = logging.getLogger("activator")

# Starting a view takes a millisecond; a peer that is silent for one to two periods hangs.
_CHECK_PERIOD_S = 1.0
# Most bytes buffered for a peer that does not read.
_UNSENT_BYTES_MAX = 16 * 1024**2
_CREDENTIALS = struct.Struct("3i")


class _PeerProcess:
    """A live peer process: its connection, and its pidfd, which becomes readable when it ends."""

    def __init__(self, index: int, pid: int, connection: socket.socket) -> None:
        self.index = index
        self.pid = pid
        self.connection = connection
        self.pidfd = os.pidfd_open(pid)
        self.unsent = bytearray()
        self.is_silent = False


class PeerProcesses:
    """All peer connections of one process, and the slot broker that uses them. ``apply`` executes its decisions."""

    def __init__(
        self,
        settings: ActivatorSettings,
        table: RevisionTable[Exchange],
        *,
        clock: Callable[[], float],
        apply: Callable[[RoutingOutcome[Exchange]], None],
    ) -> None:
        # The machine's clock in nanoseconds, which exceeds any round of an earlier process.
        first_round = int(clock() * 1e9)
        self.broker = SlotBroker(table, index=settings.index, first_round=first_round, send=self.send)
        self._apply = apply
        self._index = settings.index
        self._count = settings.count
        self._folder = settings.peer_folder
        self._clock = clock
        self._peers: dict[int, _PeerProcess] = {}
        self._folder_fd = -1
        self._server: asyncio.Server | None = None
        self._view_seen = -1

    async def start(self) -> None:
        """Listen, and connect to all peers; afterwards the broker has slots."""
        # A unix socket's path is limited to 107 bytes, and the folder may be deeply nested.
        self._folder_fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _PeerReceiver(self._received), self._path(self._index))
        for index in range(self._count):
            if index != self._index:
                self._meet(index)
        self._share()

    async def run(self, stop: asyncio.Event) -> None:
        """Exclude unresponsive peers until ``stop`` is set."""

        async def check() -> None:
            ledger = self.broker.ledger
            if ledger.is_frozen and ledger.view_number == self._view_seen:
                ledger.remind()
                for index in ledger.silent_peers:
                    _log.warning("peer.silent", extra={"peer": index})
                    self._peers[index].is_silent = True
                self._share()
            self._view_seen = ledger.view_number

        def on_error(error: Exception) -> None:
            _log.error("peers.failed", exc_info=error)

        await every(_CHECK_PERIOD_S, check, stop=stop, on_error=on_error)

    def stop_sharing(self) -> None:
        """Stop sharing slots because another process takes over; meanwhile the pods' queues enforce the limits."""
        self._close_connections()
        self._share()

    def close(self) -> None:
        """Close all connections. Peers detect the end of the process."""
        self._close_connections()
        os.close(self._folder_fd)

    def _close_connections(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in list(self._peers.values()):
            self._forget(peer)

    def send(self, index: int, message: SlotMessage) -> None:
        """Send a message to a peer; drop it if the peer has ended or does not read."""
        peer = self._peers.get(index)
        if peer is None or len(peer.unsent) > _UNSENT_BYTES_MAX:
            return
        was_empty = not peer.unsent
        peer.unsent += encode(message)
        if was_empty:
            self._flush(peer)

    def _path(self, index: int) -> str:
        return f"/proc/self/fd/{self._folder_fd}/activator-{index}.sock"

    def _meet(self, index: int) -> None:
        """Connect to the peer process ``index``, if it listens, and send a hello."""
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            connection.connect(self._path(index))
            peer = _PeerProcess(index, _pid_of(connection), connection)
        except OSError:
            # No process listens there; a later one will send a hello.
            connection.close()
            return
        self._peers[index] = peer
        asyncio.get_running_loop().add_reader(peer.pidfd, self._lose, peer)
        self.send(index, PeerHello(index=self._index))
        _log.info("peer.met", extra={"peer": index, "peer_pid": peer.pid})

    def _received(self, pid: int, index: int, message: SlotMessage) -> None:
        peer = self._peers.get(index)
        if isinstance(message, PeerHello):
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
        self._apply(self.broker.receive(index, message, self._clock()))

    def _lose(self, peer: _PeerProcess) -> None:
        """Remove a peer whose process has ended."""
        _log.info("peer.gone", extra={"peer": peer.index, "peer_pid": peer.pid})
        self._forget(peer)
        self._share()

    def _forget(self, peer: _PeerProcess) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(peer.pidfd)
        loop.remove_writer(peer.connection)
        os.close(peer.pidfd)
        peer.connection.close()
        del self._peers[peer.index]

    def _share(self) -> None:
        living = [peer.index for peer in self._peers.values() if not peer.is_silent]
        self._apply(self.broker.set_peers(living, self._clock()))

    def _flush(self, peer: _PeerProcess) -> None:
        loop = asyncio.get_running_loop()
        try:
            del peer.unsent[: peer.connection.send(peer.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The peer is ending, which its pidfd reports, or could not read a message. The loop would report the
            # broken connection as writable without end.
            peer.unsent.clear()
        if peer.unsent:
            loop.add_writer(peer.connection, self._flush, peer)
        else:
            loop.remove_writer(peer.connection)


class _PeerReceiver(asyncio.Protocol):
    """Receives the messages of one peer through a Unix socket.

    Peers are trusted: the permissions of the socket's folder admit only processes of the same user.
    """

    def __init__(self, received: Callable[[int, int, SlotMessage], None]) -> None:
        self._received = received
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
                if isinstance(message, PeerHello):
                    self._index = message.index
                if self._index is not None:
                    self._received(self._pid, self._index, message)
        except InvalidValue as error:
            _log.error("peer.unreadable", extra={"peer_pid": self._pid, "error": str(error)})
            self._transport.close()


def _pid_of(connection: socket.socket) -> int:
    """The process id of a connection's peer."""
    pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)
