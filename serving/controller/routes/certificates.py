"""The certificates of the hosts of a route or DomainMapping, issued by cert-manager, or on one machine by ``serving up --acme``.

With external-domain-tls the route's public host, each tag's host and each mapped host have one Certificate of
cert-manager each. With cluster-local-domain-tls the three names of each cluster-local host share one Certificate. A
Certificate's Secret has the same name, and the activators serve it for these hosts only. A host has http URLs until its
Certificate is ready. Input: the owner, its hosts and the existing Certificates; output: writes, the hosts whose
certificate is ready, and CertificateProvisioned.

Names and reasons follow knative/serving 98e5ef90, pkg/reconciler/route; there each Certificate of cert-manager belongs
to a Certificate of Knative.
"""

from collections.abc import Sequence

import msgspec
import yaml

from serving.controller.values.conditions import Condition
from serving.controller.values.writes import deletion_of, patch_of, spec_changes
from serving.core.model.knative import DISABLE_TLS_ANNOTATIONS, ROUTE_LABEL, ConditionStatus
from serving.core.model.objects import (
    Object,
    annotations_of,
    condition_of,
    generation_of,
    is_controlled_by,
    name_of,
    namespace_of,
    owner_reference,
    uid_of,
)
from serving.core.model.routehosts import certificate_name
from serving.net.cluster import kinds
from serving.net.cluster.port import Create, Write

_CONDITION = "CertificateProvisioned"
# As strconv.ParseBool of Go, which Knative uses.
_TRUE = {"1", "t", "T", "true", "True", "TRUE"}
# Longer names cannot be a certificate's common name.
_COMMON_NAME_MAX = 64


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The Certificates of a route (with its label, of any owner) or of a mapping.

    ``missing`` is why the server has no Certificates, or "".
    """

    existing: Sequence[Object] = ()
    missing: str = ""


class CertifiedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that needs a certificate. ``tag`` is "" for the route's host; ``is_local``: the host is cluster-local.

    ``names`` are the names in the certificate, the last one is the host. ``issuer`` is the issuer's reference as YAML.
    """

    tag: str
    names: tuple[str, ...]
    issuer: str
    is_local: bool = False


Secured = frozenset[tuple[str, bool]]
"""The hosts with a ready certificate, each as its tag ("" for the route's host) and whether it is cluster-local."""


def reconcile_certificates(
    owner: Object, hosts: Sequence[CertifiedHost], certificates: Certificates
) -> tuple[tuple[Write, ...], Secured, Condition]:
    """The writes of Certificates, the hosts that have a certificate, and the condition."""
    if certificates.missing:
        return (), frozenset(), _condition(ConditionStatus.FALSE, "CertManagerMissing", certificates.missing)
    existing = {name_of(certificate): certificate for certificate in certificates.existing}
    ready: set[tuple[str, bool]] = set()
    pending: list[str] = []
    writes: list[Write] = []
    for host in hosts:
        wanted = _certificate(owner, host)
        before = existing.pop(name_of(wanted), None)
        if before is None:
            writes.append(Create(kind=kinds.CERTIFICATE, body=wanted))
        elif is_controlled_by(before, owner):
            writes += patch_of(kinds.CERTIFICATE, before, spec_changes(before, wanted))
        if before is not None and is_controlled_by(before, owner) and _is_ready(before, wanted):
            ready.add((host.tag, host.is_local))
        else:
            why = condition_of(before or {}, "Ready").get("message") or "it is not issued yet"
            pending.append(f'Certificate "{name_of(wanted)}" of {host.names[-1]} is not ready: {why}')
    leftover = [certificate for certificate in existing.values() if is_controlled_by(certificate, owner)]
    writes += [deletion_of(kinds.CERTIFICATE, certificate) for certificate in leftover]
    if pending:
        # As in Knative, http continues to work until then.
        return tuple(writes), frozenset(ready), _condition(ConditionStatus.TRUE, "HTTPDowngrade", "; ".join(pending))
    return tuple(writes), frozenset(ready), Condition(type=_CONDITION, status=ConditionStatus.TRUE)


def needs_certificate(owner: Object) -> bool:
    """Whether the public hosts of a route or mapping need certificates; an annotation of Knative exempts them."""
    return not any(annotations_of(owner).get(key) in _TRUE for key in DISABLE_TLS_ANNOTATIONS)


def _certificate(owner: Object, host: CertifiedHost) -> Object:
    is_route = owner["kind"] == kinds.ROUTE.name
    kind = "route" if is_route else "mapping"
    name = certificate_name(uid_of(owner), host.tag, is_local=host.is_local, owner=kind)
    common_name = host.names[-1]
    return {
        "apiVersion": kinds.CERTIFICATE.api_version,
        "kind": kinds.CERTIFICATE.name,
        "metadata": {
            "name": name,
            "namespace": namespace_of(owner),
            **({"labels": {ROUTE_LABEL: name_of(owner)}} if is_route else {}),
            "ownerReferences": [owner_reference(owner)],
        },
        "spec": {
            "secretName": name,
            "dnsNames": list(host.names),
            **({"commonName": common_name} if len(common_name) <= _COMMON_NAME_MAX else {}),
            "issuerRef": yaml.safe_load(host.issuer),
        },
    }


def _is_ready(certificate: Object, wanted: Object) -> bool:
    condition = condition_of(certificate, "Ready")
    is_current = condition.get("observedGeneration", generation_of(certificate)) == generation_of(certificate)
    return condition.get("status") == "True" and is_current and not spec_changes(certificate, wanted)


def _condition(status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=_CONDITION, status=status, reason=reason, message=message)
