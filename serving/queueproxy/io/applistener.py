"""Checks that a socket at an app's address belongs to the app.

Any process of the machine may listen at an app's port before the app's bind(2) and while the app restarts. The check
runs before and after a connection is opened. If both checks succeed, the connection is to a socket of the app.
"""

import os
from collections.abc import Callable, Iterable, Iterator

from serving.net.aio.listeners import ListeningSocket, has_socket, is_closed, listener_at
from serving.queueproxy.io.processes import AppProcesses, read_roots
from serving.queueproxy.podspec import PodSpec


class ForeignListener(ConnectionRefusedError):
    """A process outside the pod listens at the app's address."""


class ListenerCheck:
    """Recognises listening sockets of a pod's app.

    They belong to one of ``processes``, or to ``user``, whose processes are all in this pod (0: there is no such user).
    """

    def __init__(self, user: int, processes: Callable[[], Iterable[int]]) -> None:
        self._user = user
        self._processes = processes
        # Sockets found in ``processes``.
        self._own: set[int] = set()

    def may_listen(self, host: str, port: int) -> bool:
        """Whether the app may accept a connection at an address; False if no process does.

        Costs a fifth of a refused connection. Raises ``ForeignListener`` as ``require`` does.
        """
        if is_closed(host, port):
            return False
        self.require(host, port)
        return True

    def require(self, host: str, port: int) -> None:
        """Raise ``ForeignListener``, an ``OSError``, if a process other than the app listens at an address."""
        if foreign := self.foreign_at(host, port):
            raise ForeignListener(foreign)

    def foreign_at(self, host: str, port: int) -> str:
        """A description of a foreign listener; "" if there is none."""
        listener = listener_at(host, port)
        if listener is None or self._is_own(listener):
            return ""
        return f"port {port} is held by user {listener.user}, by a process that is not of this pod"

    def _is_own(self, listener: ListeningSocket) -> bool:
        if (self._user and listener.user == self._user) or listener.cookie in self._own:
            return True
        is_own = any(has_socket(pid, listener.inode) for pid in self._processes())
        if is_own:
            self._own.add(listener.cookie)
        return is_own


def check_of(spec: PodSpec) -> ListenerCheck:
    """The listener check of a pod's app."""
    # Without process records, the queue-proxy runs in the app's process.
    return ListenerCheck(spec.app_user or 0, lambda: _processes_of(spec.processes) if spec.processes else [os.getpid()])


def _processes_of(prefix: str) -> Iterator[int]:
    """An app's processes: first the recorded ones, where most apps listen, then all."""
    yield from (root.pid for root in read_roots(prefix))
    yield from (process.pid for process in AppProcesses(prefix).find()[0])
