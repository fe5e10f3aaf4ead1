"""The port from the kubelet to the runtime of pods' processes.

``ProcessRuntime`` starts them as processes of this machine. Another runtime, such as one for container images, implements
the same two protocols and is chosen in ``control``; ``tests/integration/test_pod_conformance.py`` holds it to them.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Protocol

from serving.home.processes.orders import HeldPod, StartProcess


class PodProcess(Protocol):
    """The first process of a container.

    ``pid`` is 0 until it has started. ``started`` raises ``OSError`` with the reason if it cannot start; ``ended`` is its
    exit code, minus the signal's number if one ended it; ``drained`` is done when a queue-proxy lets its app end.
    """

    pid: int
    started: "asyncio.Future[None]"
    ended: "asyncio.Future[int]"
    drained: "asyncio.Future[None]"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its group; ignored after its end."""
        ...

    async def end(self, *, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace; with 0 SIGKILL at once. Return when it has ended."""
        ...

    async def outlast(self, patience_s: float) -> None:
        """Wait until it has ended, and kill it if that takes longer than ``patience_s``."""
        ...


class PodRuntime(Protocol):
    """Starts containers, and keeps them and a note about each pod while the control process restarts.

    ``connected`` is set once ``held`` lists the pods that an earlier control process left.
    """

    connected: asyncio.Event
    held: list[HeldPod]

    def start(
        self,
        start: StartProcess,
        *,
        on_ready: Callable[[bool], None] | None = None,
        on_warning: Callable[[str, str], None] | None = None,
    ) -> PodProcess:
        """Start a container.

        ``on_ready`` gets each change of readiness that a queue-proxy reports, ``on_warning`` reasons and texts of Events.
        """
        ...

    def take_over(
        self,
        pod: str,
        name: str,
        *,
        on_ready: Callable[[bool], None] | None = None,
        on_warning: Callable[[str, str], None] | None = None,
    ) -> PodProcess | None:
        """The process of a container that an earlier control process started; None if there is none."""
        ...

    def keep(self, pod: str, note: dict[str, Any]) -> None:
        """Keep a note about a pod for the next control process."""
        ...

    def forget(self, pod: str) -> None:
        """Drop a pod's note and kill what of it still runs."""
        ...
