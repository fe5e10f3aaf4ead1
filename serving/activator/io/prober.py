"""Sends probes to the queue-proxies of pods that the cluster lists as not ready, and connects to starting apps.

``serving.activator.queueing.readiness`` decides which pods to probe, and when. A probe is one GET on a separate
connection. The response must prove that the pod has the secret of its revision: the address may now belong to another
pod, whose app may answer any request. A pod without queue-proxy is probed by a connection alone, after it refused one.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.slices import PodEndpoints, ServedPod
from serving.core.model.knative import RevisionKey
from serving.net.aio.mutualtls import PeerTls, open_tls
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.wire.tokens import matches, probe_proof

# The network silently drops packets to a pod that is being connected. Source: knative/serving 98e5ef90,
# pkg/activator/net.
_TIMEOUT_S = 0.3
_HEAD_BYTES_MAX = 4096
_PROOF = b"k-network-hash"


class PodProber:
    """Sends probes while ``run`` runs; ``on_response`` receives each probe and whether the pod is ready.

    ``secured_to`` returns the TLS parameters of an address; None for plain HTTP.
    """

    def __init__(
        self,
        endpoints: PodEndpoints,
        secret_of: Callable[[ServedPod, RevisionKey], str],
        on_response: Callable[[PodProbe, bool], None],
        *,
        secured_to: Callable[[tuple[str, int]], PeerTls | None],
    ) -> None:
        self._secured_to = secured_to
        self._endpoints = endpoints
        self._secret_of = secret_of
        self._on_response = on_response
        self._group: SupervisedTasks | None = None

    async def run(self) -> None:
        """Run the tasks of all probes until cancelled."""
        async with supervise() as group:
            self._group = group
            await asyncio.get_running_loop().create_future()

    def start(self, probes: Sequence[PodProbe]) -> None:
        """Send probes, each with a timeout."""
        if self._group is None:
            return
        for probe in probes:
            self._group.start(self._probe(probe), name=f"probe {probe.pod.address}")

    async def _probe(self, probe: PodProbe) -> None:
        address = self._endpoints.to(probe.pod, probe.key).address
        if not probe.pod.has_queue_proxy:
            self._on_response(probe, await _accepts(address))
            return
        is_ready = False
        secret = self._secret_of(probe.pod, probe.key)
        if secret:
            is_ready = await is_pod_ready(address, secret, secured=self._secured_to(address))
        self._on_response(probe, is_ready)


async def _accepts(address: tuple[str, int]) -> bool:
    """Whether a connection to an address succeeds."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(*address)
    except OSError:
        return False
    writer.transport.abort()
    return True


async def is_pod_ready(
    address: tuple[str, int], secret: str, *, timeout_s: float = _TIMEOUT_S, secured: PeerTls | None = None
) -> bool:
    """Whether the queue-proxy at an address proves its secret and reports a ready app."""
    nonce = secrets.token_hex(16)
    request = (
        f"GET / HTTP/1.1\r\nHost: {address[0]}\r\nUser-Agent: Knative-Activator-Probe\r\nK-Network-Probe: queue\r\n"
        f"K-Network-Hash: {nonce}\r\nK-Pod-Secret: {secret}\r\nConnection: close\r\n\r\n"
    )
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            if secured is None:
                reader, writer = await asyncio.open_connection(*address, limit=_HEAD_BYTES_MAX)
            else:
                reader, writer = await open_tls(*address, secured, limit=_HEAD_BYTES_MAX)
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
    status, *lines = head.split(b"\r\n")
    if status.split(b" ")[1:2] != [b"200"]:
        return False
    proofs = [value.strip() for line in lines for name, _, value in [line.partition(b":")] if name.lower() == _PROOF]
    return len(proofs) == 1 and matches(proofs[0], probe_proof(secret, nonce=nonce))
