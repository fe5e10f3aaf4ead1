"""The proof of the hand-off: a service that is asked as a probe answers as the activator does.

While the activator is in the path, a request for the service ends there; then the last pod may go without a request lost.
Source: knative/serving 98e5ef90, pkg/reconciler/autoscaling/kpa/scaler.go.
"""

import aiohttp

__all__ = ["prove_hand_off"]

_HEADERS = {"K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}
_TIMEOUT_S = 1.0


async def prove_hand_off(session: aiohttp.ClientSession, address: str) -> bool:
    """Whether the activator answers at ``address`` ("host:port")."""
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with session.get(f"http://{address}/healthz", headers=_HEADERS, timeout=timeout) as answer:
            return answer.status == 200 and (await answer.text()).strip() == "activator"
    except (aiohttp.ClientError, TimeoutError):
        return False
