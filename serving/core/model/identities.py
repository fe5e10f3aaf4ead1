"""The names of daemons and pods in certificates, as SPIFFE ids.

``spiffe://serving.local/daemon/activator`` is any activator.
``spiffe://serving.local/ns/shop/revision/front-00001/pod/front-x`` is one pod. The trust domain is a constant, because
the authority's key already differs between clusters. Source of the form: SPIFFE-ID, section 2.
"""

import msgspec

TRUST_DOMAIN = "serving.local"
_SCHEME = f"spiffe://{TRUST_DOMAIN}/"

ACTIVATOR = f"{_SCHEME}daemon/activator"
AUTOSCALER = f"{_SCHEME}daemon/autoscaler"
CONTROLLER = f"{_SCHEME}daemon/controller"
DASHBOARD = f"{_SCHEME}daemon/dashboard"
DAEMONS = frozenset({ACTIVATOR, AUTOSCALER, CONTROLLER, DASHBOARD})


def host_of(daemon: str) -> str:
    """The host name in a daemon's certificate, for clients that verify names: ``activator.serving.local``.

    The name has no DNS entry.
    """
    return f"{daemon.rpartition('/')[2]}.{TRUST_DOMAIN}"


class CallerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a calling pod: namespace, ServiceAccount and service; ``service`` is "" if the pod has none."""

    namespace: str
    account: str
    service: str = ""


class PodIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A pod and its revision."""

    namespace: str
    revision: str
    pod: str

    @property
    def spiffe_id(self) -> str:
        """The pod's SPIFFE id."""
        return f"{pods_of(self.namespace, self.revision)}{self.pod}"


def pods_of(namespace: str, revision: str) -> str:
    """The common prefix of the SPIFFE ids of a revision's pods; no other id has this prefix."""
    return f"{_SCHEME}ns/{namespace}/revision/{revision}/pod/"
