"""Admission by other objects: ServiceAccounts, LimitRanges, ResourceQuotas, and claims of hosts.

Input: an object to create or replace, after ``admission``, and the store. Templates of pods must meet the Pod Security
Standards (``podsecurity.py``). A pod gets its account, the account's ``imagePullSecrets`` and the defaults of
LimitRanges. Violations are rejected with a real server's messages. The rules do not apply to updates of pods, nor to
pods that ran before a restart (``enforce``).
"""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from serving.core.model.errors import Forbidden, Invalid, InvalidValue, Problem
from serving.core.model.objects import Object, name_of, namespace_of, nested
from serving.core.model.quantity import amounts_of
from serving.home.admission.podsecurity import PodSecurity
from serving.home.admission.quotas import Claim, claim_of, limit_breaches, quota_refusal, with_limit_defaults
from serving.home.pods.claims import claim_problems
from serving.home.schemas.records import Stored, decoded
from serving.home.store.requester import acting_user, may_claim_hosts, may_run_programs
from serving.home.store.state import filter_of
from serving.home.store.tables import KindTable
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    DOMAIN_MAPPING,
    LIMIT_RANGE,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_QUOTA,
    SERVICE_ACCOUNT,
    Kind,
)
from serving.net.cluster.port import Selection, Subresource

DEFAULT_ACCOUNT = "default"
"""The ServiceAccount of each namespace, and of pods without ``serviceAccountName``."""

_LIMIT_FIELDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_LIMIT_TYPES = ("Container", "Pod", "PersistentVolumeClaim")


Tables = Callable[[Kind], KindTable]
"""The current objects in the store."""

# A claim is valid for one version of its object.
_claims: WeakKeyDictionary[Stored, Claim] = WeakKeyDictionary()


def claims_in(tables: Tables, namespace: str) -> Callable[[Kind], Iterable[Claim]]:
    """A function of a kind that returns the quota usage of each object of this kind in a namespace.

    The usage of unchanged objects is cached.
    """
    return lambda kind: (_claim_of(kind, stored) for stored in _stored(tables, kind, namespace))


def _stored(tables: Tables, kind: Kind, namespace: str) -> Iterable[Stored]:
    return tables(kind).select(filter_of(Selection(kind=kind, namespace=namespace)))


def _claim_of(kind: Kind, stored: Stored) -> Claim:
    claim = _claims.get(stored)
    if claim is None:
        try:
            claim = claim_of(kind, decoded(stored.encoded))
        except InvalidValue:
            # Stored before the quota existed, when its amounts were not checked: it does not count.
            claim = Claim(usage={})
        _claims[stored] = claim
    return claim


class NamespaceRules:
    """Admission rules that depend on other objects in a namespace.

    Most rules apply only once ``enforce`` was called.
    """

    def __init__(self, tables: Tables, security: PodSecurity | None = None) -> None:
        self._tables = tables
        self._security = security or PodSecurity(tables)
        self._is_enforced = False

    def enforce(self) -> None:
        """Apply the rules from now on. Pods that were stored or adopted before are exempt."""
        self._is_enforced = True

    def admit(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        """Check and complete an object for its namespace. Raises ``Forbidden`` or ``Invalid``."""
        if self._is_enforced or not may_run_programs():
            self._security.check(kind, new, old, subresource=subresource)
        if subresource is not None or not kind.namespaced:
            return new
        if kind in {RESOURCE_QUOTA, LIMIT_RANGE}:
            _check_amounts(kind, new)
        if kind == PERSISTENT_VOLUME_CLAIM:
            _check_claim(new, old)
        namespace = namespace_of(new)
        # Without its namespace it cannot be created in any case.
        if old is not None or not self._is_enforced or ("", namespace) not in self._tables(NAMESPACE).objects:
            return new
        try:
            return self._admitted(kind, new, namespace)
        except InvalidValue as error:
            raise Invalid(f'{kind.name} "{name_of(new)}" is invalid: {error}') from error

    def _admitted(self, kind: Kind, new: Object, namespace: str) -> Object:
        if kind == POD:
            new = self._with_account(new, namespace)
            ranges = self._objects(LIMIT_RANGE, namespace)
            new = with_limit_defaults(new, ranges) if ranges else new
            breaches = limit_breaches(new, ranges) if ranges else []
            if breaches:
                raise _forbidden(kind, new, breaches[0] if len(breaches) == 1 else f"[{', '.join(breaches)}]")
        if kind == DOMAIN_MAPPING and not may_claim_hosts():
            self._check_host(new, namespace)
        quotas = self._objects(RESOURCE_QUOTA, namespace)
        refusal = quota_refusal(kind, new, quotas, claims_of=claims_in(self._tables, namespace)) if quotas else ""
        if refusal:
            raise _forbidden(kind, new, refusal)
        return new

    def _check_host(self, mapping: Object, namespace: str) -> None:
        """Raise ``Forbidden`` for a DomainMapping whose host has no ClusterDomainClaim of the namespace.

        Called for users who may not claim hosts: the controller would create the missing claim for them.
        """
        host = name_of(mapping)
        claim = self._tables(CLUSTER_DOMAIN_CLAIM).objects.get(("", host))
        if claim is None or nested(decoded(claim.encoded), "spec", "namespace") != namespace:
            what = f'User "{acting_user()}" cannot claim hosts; expected a ClusterDomainClaim "{host}" of namespace "{namespace}"'
            raise _forbidden(DOMAIN_MAPPING, mapping, f"{what}, which an admin of all namespaces can create")

    def _with_account(self, pod: Object, namespace: str) -> Object:
        """The pod with the name of its service account. If it names no pull secrets, it gets those of the account."""
        spec = pod["spec"]
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT
        stored_account = self._tables(SERVICE_ACCOUNT).objects.get((namespace, name))
        # A new namespace gets its default account a moment later.
        if stored_account is None and name != DEFAULT_ACCOUNT:
            missing = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
            raise _forbidden(POD, pod, missing)
        account = {} if stored_account is None else decoded(stored_account.encoded)
        secrets = spec.get("imagePullSecrets") or account.get("imagePullSecrets")
        more: dict[str, Any] = {"imagePullSecrets": secrets} if secrets else {}
        return {**pod, "spec": {**spec, "serviceAccountName": name, **more}}

    def _objects(self, kind: Kind, namespace: str) -> list[Object]:
        return [decoded(stored.encoded) for stored in _stored(self._tables, kind, namespace)]


def _check_claim(claim: Object, old: Object | None) -> None:
    """Raise ``Invalid`` for a new PersistentVolumeClaim that cannot be bound here, or a change except of the size."""
    name, problems = name_of(claim), claim_problems(claim) if old is None else []
    if problems:
        lines = ", ".join(f"{problem.where}: {problem.what}" for problem in problems)
        raise Invalid(f'{PERSISTENT_VOLUME_CLAIM.name} "{name}" is invalid: {lines}', problems)
    before, after = ({**(version.get("spec") or {}), "resources": {}} for version in (old or claim, claim))
    if before != after:
        raise Invalid(
            f'{PERSISTENT_VOLUME_CLAIM.name} "{name}" is invalid: spec: is immutable except resources.requests'
        )


def _forbidden(kind: Kind, whole: Object, why: str) -> Forbidden:
    """The server's message for a refusal. It omits a generated name, so that retries have the same message."""
    name = nested(whole, "metadata", "generateName") or name_of(whole)
    return Forbidden(f'{kind.resource} "{name}" is forbidden: {why}')


def _check_amounts(kind: Kind, whole: Object) -> None:
    """Raise ``Invalid`` for an invalid amount of a quota or LimitRange, or an unknown limit type."""
    problems = [*_amount_problems(nested(whole, "spec", "hard"), "spec.hard")]
    limits = nested(whole, "spec", "limits") or ()
    if not isinstance(limits, list | tuple) or not all(isinstance(limit, dict) for limit in limits):
        problems.append(Problem(where="spec.limits", what="Invalid value: not a list", expected="a list of limits"))
        limits = ()
    for index, item in enumerate(limits):
        place = f"spec.limits[{index}]"
        if item.get("type") not in _LIMIT_TYPES:
            supported = ", ".join(f'"{limit_type}"' for limit_type in _LIMIT_TYPES)
            what = f'Unsupported value: "{item.get("type", "")}": supported values: {supported}'
            problems.append(Problem(where=f"{place}.type", what=what, expected=f"one of {supported}"))
        for field in _LIMIT_FIELDS:
            problems += _amount_problems(item.get(field), f"{place}.{field}")
    if problems:
        texts = [f"{problem.where}: {problem.what}" for problem in problems]
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        raise Invalid(f'{kind.name} "{name_of(whole)}" is invalid: {text}', problems)


def _amount_problems(written: object, where: str) -> Iterable[Problem]:
    if written is not None and not isinstance(written, dict):
        yield Problem(where=where, what="Invalid value: not a map", expected="quantities by resource")
        return
    for name, text in (written or {}).items():
        try:
            (amount,) = amounts_of({name: text}).values()
        except InvalidValue as error:
            yield Problem(where=f"{where}[{name}]", what=f'Invalid value: "{text}": {error}', expected=error.expected)
        else:
            if amount.nanos < 0:
                what = f'Invalid value: "{text}": must be greater than or equal to 0'
                yield Problem(where=f"{where}[{name}]", what=what, expected="a quantity of 0 or more")
