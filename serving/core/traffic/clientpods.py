"""The pod of each client address, for Services with ``sessionAffinity: ClientIP``.

Input: a client's address, the pod of its request, and the time. Output: the pod of its next request. As in kube-proxy,
a client keeps its pod until it sent no request for the timeout, also while pods are added. A client without a pod gets
the pod that the ring of sessions prefers for its address, so that activators mostly agree.
"""

from collections import OrderedDict

from serving.core.model.knative import RevisionKey

# About 4 MB. A client beyond gets the pod of the ring.
_CLIENTS_MAX = 16_384


class ClientPods:
    """The pods of the clients that sent a request last, at most 16,384."""

    __slots__ = ("_pods",)

    def __init__(self) -> None:
        # The client whose request is longest ago first.
        self._pods: OrderedDict[tuple[RevisionKey, str], tuple[str, float]] = OrderedDict()

    def pod_of(self, key: RevisionKey, client: str, now_s: float) -> str:
        """The address of a client's pod of a revision; "" for a client without one."""
        address, until_s = self._pods.get((key, client), ("", now_s))
        return address if now_s < until_s else ""

    def record(self, key: RevisionKey, client: str, address: str, *, until_s: float) -> None:
        """Store the pod that a client's request goes to, until ``until_s``."""
        self._pods[key, client] = (address, until_s)
        self._pods.move_to_end((key, client))
        if len(self._pods) > _CLIENTS_MAX:
            self._pods.popitem(last=False)
