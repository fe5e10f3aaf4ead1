"""Probes whether the activator is in the path: asks the public listener and believes the activator's own answer alone.

Source: knative/serving 98e5ef90, pkg/reconciler/autoscaling/kpa/scaler.go.
"""

import asyncio
import contextlib
import logging

_log = logging.getLogger("autoscaler")

# From the first packet of a probe to the end of its answer, in seconds. Source: Knative's probe timeout is 1.5 s.
_PROBE_TIMEOUT_S = 1.5
# The answer is a line, a few headers and nine letters.
_ANSWER_BYTES_MAX = 8192
_NAME = b"activator"


class Prober:
    """Asks one address, "127.0.0.1:8080"."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._host, _, port = address.rpartition(":")
        self._port = int(port)

    async def __call__(self) -> bool:
        """Whether the activator answers there. By hand: one request, of which nothing is kept."""
        head = (
            f"GET /healthz HTTP/1.1\r\nHost: {self._address}\r\nUser-Agent: Knative-Autoscaling-Probe\r\n"
            "K-Network-Probe: activator\r\nConnection: close\r\n\r\n"
        )
        answer = b""
        with contextlib.suppress(OSError, TimeoutError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    writer.write(head.encode())
                    while len(answer) < _ANSWER_BYTES_MAX and (piece := await reader.read(_ANSWER_BYTES_MAX)):
                        answer += piece
                finally:
                    writer.close()
        status, _, rest = answer.partition(b"\r\n")
        return status.split(b" ")[1:2] == [b"200"] and rest.partition(b"\r\n\r\n")[2].strip() == _NAME
