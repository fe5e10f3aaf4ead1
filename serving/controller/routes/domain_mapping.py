"""The status of a DomainMapping, and the ClusterDomainClaim that reserves its host.

Input: the mapping, the claim of its host, the referenced object, its Certificate, and the route that holds the host if
one does. Output: the writes. A host belongs to the namespace that its claim names. Where the settings allow it, the
controller creates the claim with the first mapping and deletes it with the last; a claim that a user created is left
alone. The activators serve a mapping while DomainClaimed and ReferenceResolved are true.

Follows knative/serving 98e5ef90, pkg/reconciler/domainmapping. Knative deletes claims by a finalizer. Here the
controller deletes its own unused claims, so that the deletion of a mapping never waits for the controller.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from serving.controller.routes.certificates import (
    Certificates,
    CertifiedHost,
    needs_certificate,
    reconcile_certificates,
)
from serving.controller.routes.hosts import public_url
from serving.controller.values.conditions import Condition, false_condition, ready_of, status_with
from serving.controller.values.writes import WritePlan, deletion_of, status_patch
from serving.core.model.knative import (
    SERVING_API_VERSION,
    SERVING_GROUP,
    ConditionStatus,
    DomainClaimFields,
    DomainMappingFields,
    MappingReference,
)
from serving.core.model.objects import (
    Key,
    Object,
    is_being_deleted,
    labels_of,
    name_of,
    namespace_of,
    nested,
)
from serving.core.settings.controller import ControllerSettings
from serving.net.cluster import kinds
from serving.net.cluster.kinds import Kind
from serving.net.cluster.port import Create, Write

_CREATED_BY = "app.kubernetes.io/managed-by"
_CREATOR = "serving-controller"
_TARGETS = {
    (SERVING_GROUP, "Service"): kinds.SERVING_SERVICE,
    (SERVING_GROUP, "Route"): kinds.ROUTE,
    ("", "Service"): kinds.SERVICE,
}

_Target = tuple[Kind, Key]


class MappingContext(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a decision about a mapping.

    ``claim`` and ``target`` are None if they do not exist. ``holder`` is the route that already has the host.
    ``certificates`` is None without external-domain-tls.
    """

    claim: Object | None = None
    target: Object | None = None
    holder: Key | None = None
    certificates: Certificates | None = None


def target_of(mapping: Object) -> tuple[Kind, Key] | None:
    """The object referenced by a mapping; None for a kind that cannot receive requests."""
    ref = _spec_of(mapping).get("ref") or MappingReference()
    group = ref.get("group") or (ref.get("apiVersion") or "").rpartition("/")[0]
    kind = _TARGETS.get((group, ref.get("kind", "")))
    return None if kind is None else (kind, (namespace_of(mapping), ref.get("name", "")))


def reconcile_domain_mapping(
    mapping: Object, context: MappingContext, *, settings: ControllerSettings, now: str
) -> WritePlan:
    """The writes for a mapping."""
    if is_being_deleted(mapping):
        return WritePlan()
    if context.claim is None and settings.autocreate_cluster_domain_claims:
        # The claim's watch event causes another decision about the mapping.
        return WritePlan(writes=(Create(kind=kinds.CLUSTER_DOMAIN_CLAIM, body=_claim(mapping)),))
    claimed, resolved = _claimed(mapping, context.claim), _resolved(mapping, context.target, settings)
    is_served = claimed.status is ConditionStatus.TRUE and context.holder is None
    writes, has_certificate, certificate = _certificate(mapping, context, settings, is_served=is_served)
    conditions = [claimed, resolved, certificate, _ingress(mapping, [claimed, resolved], context.holder)]
    url = public_url(name_of(mapping), settings, has_certificate=has_certificate)
    changing = {"url": url, "address": {"url": url}}
    status = status_with(mapping, [*conditions, ready_of(conditions)], changing, now=now)
    return WritePlan(writes=(*writes, *status_patch(kinds.DOMAIN_MAPPING, mapping, status)))


def reconcile_claim(claim: Object, mapping: Object | None) -> WritePlan:
    """Delete a claim that the controller created, when its mapping is deleted."""
    is_ours = labels_of(claim).get(_CREATED_BY) == _CREATOR
    if mapping is not None or not is_ours or is_being_deleted(claim):
        return WritePlan()
    return WritePlan(writes=(deletion_of(kinds.CLUSTER_DOMAIN_CLAIM, claim),))


def _spec_of(mapping: Object) -> DomainMappingFields:
    return mapping.get("spec") or DomainMappingFields()


def _claim(mapping: Object) -> Object:
    return {
        "apiVersion": "networking.internal.knative.dev/v1alpha1",
        "kind": "ClusterDomainClaim",
        "metadata": {"name": name_of(mapping), "labels": {_CREATED_BY: _CREATOR}},
        "spec": DomainClaimFields(namespace=namespace_of(mapping)),
    }


def _claimed(mapping: Object, claim: Object | None) -> Condition:
    host = name_of(mapping)
    if claim is None:
        message = (
            f'There is no ClusterDomainClaim "{host}". Create one for namespace "{namespace_of(mapping)}", or set '
            "autocreate-cluster-domain-claims to true in ConfigMap config-network."
        )
        return false_condition("DomainClaimed", "DomainClaimFailed", message)
    if nested(claim, "spec", "namespace") != namespace_of(mapping):
        message = "The domain name is already in use by another DomainMapping"
        return false_condition("DomainClaimed", "DomainAlreadyClaimed", message)
    return Condition(type="DomainClaimed", status=ConditionStatus.TRUE)


def _resolved(mapping: Object, target: Object | None, settings: ControllerSettings) -> Condition:
    why = _unresolved(mapping, target, settings)
    if why:
        return false_condition("ReferenceResolved", "ResolveFailed", why)
    return Condition(type="ReferenceResolved", status=ConditionStatus.TRUE)


def _unresolved(mapping: Object, target: Object | None, settings: ControllerSettings) -> str:
    """Why the reference cannot be resolved; "" if it can."""
    ref = _spec_of(mapping).get("ref") or MappingReference()
    namespace, name = namespace_of(mapping), ref.get("name", "")
    wanted = target_of(mapping)
    if wanted is None:
        named = f"{ref.get('apiVersion') or ref.get('group')} {ref.get('kind')}"
        return f'{named} "{name}" takes no requests: reference a Service or Route of {SERVING_API_VERSION}'
    kind, _ = wanted
    if ref.get("namespace") not in (None, "", namespace):
        return f'{kind.resource} "{ref["namespace"]}/{name}" must be in same namespace as DomainMapping'
    if target is None:
        return f'{kind.resource} "{name}" not found'
    if kind is kinds.SERVICE:
        owners = {
            owner_reference.get("kind") for owner_reference in nested(target, "metadata", "ownerReferences") or ()
        }
        is_ours = bool(owners & {"Route", "Revision"})
        return "" if is_ours else f'services "{name}" is of no Route or Revision: requests cannot be routed to it'
    return _wrong_address(target, f"{name}.{namespace}.svc.{settings.cluster_domain}", what=f'{kind.resource} "{name}"')


def _wrong_address(target: Object, host: str, *, what: str) -> str:
    url = nested(target, "status", "address", "url") or ""
    if not url:
        return f"address not set for {what}"
    return "" if urlsplit(url).hostname == host else f'resolved URI "{url}" must be of the form http://{host}'


def _certificate(
    mapping: Object, context: MappingContext, settings: ControllerSettings, *, is_served: bool
) -> tuple[Sequence[Write], bool, Condition]:
    """The writes of the mapping's Certificate, whether the host has a certificate, and the condition."""
    has_own = bool(_spec_of(mapping).get("tls"))
    writes: Sequence[Write] = ()
    if context.certificates is not None:
        hosts = [CertifiedHost(tag="", names=(name_of(mapping),), issuer=settings.issuer)]
        # Where the host is not served, the Certificate is deleted.
        wanted = hosts if is_served and not has_own and needs_certificate(mapping) else []
        writes, secured, condition = reconcile_certificates(mapping, wanted, context.certificates)
        if wanted:
            return writes, bool(secured), condition
    if has_own:
        reason, message = "CertificateExternallyProvided", "TLS certificate was provided externally"
    elif context.certificates is not None and not is_served:
        reason, message = "HTTPDowngrade", "the host is not served"
    else:
        reason, message = "TLSNotEnabled", "external-domain-tls is not enabled"
    condition = Condition(type="CertificateProvisioned", status=ConditionStatus.TRUE, reason=reason, message=message)
    return writes, has_own, condition


def _ingress(mapping: Object, needed: list[Condition], holder: Key | None) -> Condition:
    if holder is not None:
        message = f'The host "{name_of(mapping)}" is already in use by Route "{"/".join(holder)}".'
        return false_condition("IngressReady", "DomainAlreadyClaimed", message)
    if any(condition.status is not ConditionStatus.TRUE for condition in needed):
        message = "Ingress has not yet been reconciled."
        status = ConditionStatus.UNKNOWN
        return Condition(type="IngressReady", status=status, reason="IngressNotConfigured", message=message)
    return Condition(type="IngressReady", status=ConditionStatus.TRUE)


class Domains:
    """The mappings, indexed by host and by target."""

    __slots__ = ("_by_host", "_by_target")

    def __init__(self) -> None:
        self._by_host: defaultdict[str, set[Key]] = defaultdict(set)
        self._by_target: defaultdict[_Target, set[Key]] = defaultdict(set)

    def put(self, key: Key, *, before: Object | None, after: Object | None) -> None:
        """Update a mapping from ``before`` to ``after``; None means that it does not exist."""
        old, new = before and target_of(before), after and target_of(after)
        if old and not _discard(self._by_target[old], key):
            del self._by_target[old]
        if new:
            self._by_target[new].add(key)
        if after:
            self._by_host[key[1]].add(key)
        elif not _discard(self._by_host[key[1]], key):
            del self._by_host[key[1]]

    def of_host(self, host: str) -> set[Key]:
        """The mappings of a host, in any namespace."""
        return self._by_host.get(host, set())

    def woken(
        self, kind: Kind, key: Key, *, before: Object | None, after: Object | None
    ) -> Iterator[tuple[Kind, str, str]]:
        """The mappings and claims to reconcile after a change of an object."""
        match kind:
            case kinds.DOMAIN_MAPPING:
                yield (kind, *key)
                yield (kinds.CLUSTER_DOMAIN_CLAIM, "", key[1])
            case kinds.CLUSTER_DOMAIN_CLAIM:
                yield (kind, *key)
                yield from ((kinds.DOMAIN_MAPPING, *mapping) for mapping in self.of_host(key[1]))
            case _ if (mappings := self._by_target.get((kind, key))) and _address_of(before) != _address_of(after):
                yield from ((kinds.DOMAIN_MAPPING, *mapping) for mapping in mappings)


def _address_of(resource: Object | None) -> object:
    """The address of a mapping's target; None if the target does not exist."""
    return resource and (nested(resource, "status", "address", "url"), nested(resource, "metadata", "ownerReferences"))


def _discard(keys: set[Key], key: Key) -> bool:
    """Remove a key; return whether another key remains."""
    keys.discard(key)
    return bool(keys)
