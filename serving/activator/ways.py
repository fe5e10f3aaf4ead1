"""How requests go to a pod: the address as sockets want it, and the header lines by which the pod knows us.

Input: a pod, and the revision that it is of. Each way is made once and kept until the pod is another one at that address.
"""

from collections.abc import Callable

import msgspec

from serving.activator.revisions import PodFacts, RevisionFacts
from serving.activator.routes import RevisionKey
from serving.proxy.lines import header_lines
from serving.settings.activator import SECRETS_OF_PODS, ActivatorSettings
from serving.wire.tokens import pod_secret, revision_secret

__all__ = ["Way", "Ways"]

# More pods than one machine runs or one activator should know.
_WAYS_MAX = 65_536


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """To one pod."""

    pod: PodFacts
    address: tuple[str, int]
    extra: bytes
    """Our header lines."""


class Ways:
    """Of all pods. ``key`` is the cluster key; ``facts_of`` knows revisions."""

    __slots__ = ("_facts_of", "_key", "_settings", "_ways")

    def __init__(
        self, settings: ActivatorSettings, *, key: bytes, facts_of: Callable[[RevisionKey], RevisionFacts | None]
    ) -> None:
        self._settings = settings
        self._key = key
        self._facts_of = facts_of
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
        told, _, elsewhere = self._settings.pod_address_override.partition("=")
        address = elsewhere + pod.address.removeprefix(told) if pod.address.startswith(told) else pod.address
        host, _, port = address.rpartition(":")
        lines = [(b"K-Proxy-Request", b"activator")]
        secret = self._secret_of(pod, revision)
        if secret:
            lines.append((b"K-Pod-Secret", secret.encode()))
        way = Way(pod=pod, address=(host.strip("[]"), int(port)), extra=header_lines(*lines))
        self._ways[pod.address] = way
        return way

    def _secret_of(self, pod: PodFacts, revision: RevisionKey) -> str:
        """What a pod believes us by; "" if we do not know who it is."""
        if self._settings.secrets_of == SECRETS_OF_PODS:
            return pod_secret(self._key, namespace=pod.namespace, pod=pod.name) if pod.name else ""
        facts = self._facts_of(revision)
        if facts is None or not facts.uid:
            return ""
        return revision_secret(self._key, namespace=revision[0], uid=facts.uid)
