"""The headers that authenticate the activator to pods."""

from collections.abc import Callable

from serving.activator.queueing.revisions import ServedRevision
from serving.activator.queueing.slices import ServedPod
from serving.model.knative import RevisionKey
from serving.proxy.http1.lines import header_lines
from serving.settings.activator import SECRETS_OF_PODS
from serving.wire.tokens import pod_secret, revision_secret


class PodCredentials:
    """Derives the secrets of pods from the cluster key. ``secrets_of`` is the setting of that name."""

    def __init__(
        self, key: bytes, *, secrets_of: str, revision: Callable[[RevisionKey], ServedRevision | None]
    ) -> None:
        self._key = key
        self._are_of_pods = secrets_of == SECRETS_OF_PODS
        self._revision = revision

    def secret(self, pod: ServedPod, key: RevisionKey) -> str:
        """The secret that a pod of a revision shares with activators; "" while it is not known."""
        if self._are_of_pods:
            return pod_secret(self._key, namespace=pod.namespace, pod=pod.name) if pod.name else ""
        revision = self._revision(key)
        known = revision is not None and revision.uid
        return revision_secret(self._key, namespace=key[0], uid=known) if known else ""

    def lines(self, pod: ServedPod, key: RevisionKey) -> bytes:
        """The header lines of each request to a pod of a revision."""
        secret = self.secret(pod, key)
        given = [(b"K-Pod-Secret", secret.encode())] if secret else []
        return header_lines((b"K-Proxy-Request", b"activator"), *given)
