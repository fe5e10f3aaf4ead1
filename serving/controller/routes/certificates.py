"""The certificates of a route's public hosts, issued by cert-manager.

With external-domain-tls there is one Certificate of cert-manager for the route's host and one for each tag's. Its Secret has its name,
and the activators serve it for that host alone. A host has http URLs until its Certificate is ready. Input: the route, its hosts and the
existing Certificates; output: writes, the tags whose certificate is ready, and CertificateProvisioned.

Names and reasons follow knative/serving 98e5ef90, pkg/reconciler/route; there a Certificate of Knative's stands between.
"""

from collections.abc import Mapping, Sequence

import msgspec
import yaml

from serving.controller.values.conditions import Condition
from serving.controller.values.writes import deletion_of, patch_of, spec_changes
from serving.core.model.knative import ROUTE_LABEL, ConditionStatus
from serving.core.model.objects import (
    Object,
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
# Longer names cannot be a certificate's common name.
_COMMON_NAME_MAX = 64


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """The Certificates with the label of a route, of any owner. ``missing``: why the server has none, "" if it does."""

    existing: Sequence[Object] = ()
    missing: str = ""


def reconcile_certificates(
    route: Object, hosts: Mapping[str, str], certificates: Certificates, *, issuer: str
) -> tuple[tuple[Write, ...], frozenset[str], Condition]:
    """The writes, the tags with a certificate, and the condition. ``hosts`` are the public ones by tag, "" for the route's."""
    if certificates.missing:
        return (), frozenset(), _condition(ConditionStatus.FALSE, "CertManagerMissing", certificates.missing)
    existing = {name_of(certificate): certificate for certificate in certificates.existing}
    reference = yaml.safe_load(issuer)
    desired = {tag: _certificate(route, tag, host=host, issuer=reference) for tag, host in hosts.items()}
    ready: set[str] = set()
    pending: list[str] = []
    writes: list[Write] = []
    for tag, wanted in desired.items():
        before = existing.pop(name_of(wanted), None)
        if before is None:
            writes.append(Create(kind=kinds.CERTIFICATE, body=wanted))
        elif is_controlled_by(before, route):
            writes += patch_of(kinds.CERTIFICATE, before, spec_changes(before, wanted))
        if before is not None and is_controlled_by(before, route) and _is_ready(before, wanted):
            ready.add(tag)
        else:
            why = condition_of(before or {}, "Ready").get("message") or "it is not issued yet"
            pending.append(f'Certificate "{name_of(wanted)}" of {hosts[tag]} is not ready: {why}')
    leftover = [certificate for certificate in existing.values() if is_controlled_by(certificate, route)]
    writes += [deletion_of(kinds.CERTIFICATE, certificate) for certificate in leftover]
    if pending:
        # As in Knative, http continues to work until then.
        return tuple(writes), frozenset(ready), _condition(ConditionStatus.TRUE, "HTTPDowngrade", "; ".join(pending))
    return tuple(writes), frozenset(ready), Condition(type=_CONDITION, status=ConditionStatus.TRUE)


def _certificate(route: Object, tag: str, *, host: str, issuer: Object) -> Object:
    name = certificate_name(uid_of(route), tag)
    return {
        "apiVersion": kinds.CERTIFICATE.api_version,
        "kind": kinds.CERTIFICATE.name,
        "metadata": {
            "name": name,
            "namespace": namespace_of(route),
            "labels": {ROUTE_LABEL: name_of(route)},
            "ownerReferences": [owner_reference(route)],
        },
        "spec": {
            "secretName": name,
            "dnsNames": [host],
            **({"commonName": host} if len(host) <= _COMMON_NAME_MAX else {}),
            "issuerRef": issuer,
        },
    }


def _is_ready(certificate: Object, wanted: Object) -> bool:
    condition = condition_of(certificate, "Ready")
    is_current = condition.get("observedGeneration", generation_of(certificate)) == generation_of(certificate)
    return condition.get("status") == "True" and is_current and not spec_changes(certificate, wanted)


def _condition(status: ConditionStatus, reason: str, message: str) -> Condition:
    return Condition(type=_CONDITION, status=status, reason=reason, message=message)
