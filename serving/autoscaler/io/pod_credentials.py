"""Issues the credentials of pods: a certificate with its key, and a caller token.

The autoscaler creates the key, because the queue-proxy's image has no library for it. The key is sent over TLS only, to
a pod that has proved its name. This gives the autoscaler no new right: any holder of the cluster key can sign
certificates.
"""

from collections.abc import Callable

import msgspec

from serving.autoscaler.token_review import PodClaim
from serving.core.model.identities import CallerIdentity, PodIdentity
from serving.core.model.knative import SERVICE_LABEL
from serving.core.model.objects import Object, labels_of
from serving.net.aio.clock import wall_s
from serving.net.wire.issuing import DaemonTls
from serving.net.wire.podcredentials import IssuedCredentials
from serving.net.wire.tokens import caller_token

# Token lifetime in seconds: long enough to survive an autoscaler outage, short enough for a leaked token.
TOKEN_LIFE_S = 3600.0


class CredentialIssuer:
    """Issues credentials.

    ``pod`` finds the last observed pod by namespace and name; ``secured`` is None without inner TLS.
    """

    def __init__(
        self, key: bytes, *, pod: Callable[[str, str], Object | None], secured: DaemonTls | None = None
    ) -> None:
        self.secured = secured
        self._key = key
        self._pod = pod

    def issue(self, claim: PodClaim, *, is_tls: bool, query_digest: str = "") -> str | None:
        """A pod's credentials as JSON, including the certificate over TLS only; None if the pod is unknown."""
        seen = self._pod(claim.namespace, claim.pod)
        if seen is None:
            return None
        now_s = wall_s()
        until_s = now_s + TOKEN_LIFE_S
        caller = CallerIdentity(
            namespace=claim.namespace,
            account=seen["spec"].get("serviceAccountName") or "default",
            service=labels_of(seen).get(SERVICE_LABEL, ""),
        )
        credentials = IssuedCredentials(
            caller_token=caller_token(self._key, caller, until_s=until_s),
            caller_token_not_after_s=until_s,
            caller_token_life_s=TOKEN_LIFE_S,
            query_digest=query_digest,
        )
        if is_tls and self.secured is not None:
            identity = PodIdentity(namespace=claim.namespace, revision=claim.revision, pod=claim.pod).spiffe_id
            life_s = self.secured.settings.certificate_life_s
            signed = self.secured.authority.issue(identity, now_s=now_s, life_s=life_s)
            credentials = msgspec.structs.replace(
                credentials,
                certificate=signed.certificate,
                key=signed.key,
                not_after_s=signed.not_after_s,
                life_s=life_s,
            )
        return msgspec.json.encode(credentials).decode()
