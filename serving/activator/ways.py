"""How requests go to a pod: the address as sockets want it, and the header lines by which the pod knows us.

Input: a pod, and the revision that it is of. Each way is made once and kept until another pod has that address. What the
lines say is not known here.
"""

from collections.abc import Callable

import msgspec

from serving.activator.revisions import PodFacts
from serving.model.knative import RevisionKey

__all__ = ["Way", "Ways"]

# More pods than one machine runs or one activator should know.
_WAYS_MAX = 65_536


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """To one pod."""

    pod: PodFacts
    address: tuple[str, int]
    lines: bytes
    """Our header lines."""


class Ways:
    """Of all pods. ``override`` is the setting ``pod_address_override``, ``lines_to`` writes the header lines for a pod."""

    __slots__ = ("_elsewhere", "_lines_to", "_told", "_ways")

    def __init__(self, override: str, *, lines_to: Callable[[PodFacts, RevisionKey], bytes]) -> None:
        self._told, _, self._elsewhere = override.partition("=")
        self._lines_to = lines_to
        self._ways: dict[str, Way] = {}

    def __repr__(self) -> str:
        return f"Ways({len(self._ways)} pods)"

    def to(self, pod: PodFacts, revision: RevisionKey) -> Way:
        """The way to a pod of a revision."""
        way = self._ways.get(pod.address)
        return self._made(pod, revision) if way is None or way.pod != pod else way

    def _made(self, pod: PodFacts, revision: RevisionKey) -> Way:
        if len(self._ways) >= _WAYS_MAX:
            self._ways.clear()
        address = pod.address
        if address.startswith(self._told):
            address = self._elsewhere + address.removeprefix(self._told)
        host, _, port = address.rpartition(":")
        way = Way(pod=pod, address=(host.strip("[]"), int(port)), lines=self._lines_to(pod, revision))
        self._ways[pod.address] = way
        return way
