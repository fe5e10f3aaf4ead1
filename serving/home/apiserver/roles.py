"""Decides by roles what an API user may do. Pure, with a kube-apiserver's messages.

There are three roles, and a user has one of them in some namespaces or in all:

- ``view`` reads objects and logs, but no Secrets;
- ``deploy`` also reads Secrets, writes the objects of services, and enters pods. It cannot run programs of the machine,
  nor write status, quotas and objects of a cluster's administrator;
- ``admin`` may do all of that in its namespaces. An admin of all namespaces may do everything.

Only an admin of all namespaces may write the system's namespace and read its Secrets.
"""

from collections.abc import Iterable, Iterator

import msgspec

from serving.core.model.grants import Grant, Role
from serving.core.model.objects import Object
from serving.home.store.requester import ADMIN_USER
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    CONFIGURATION,
    DEPLOYMENT,
    DOMAIN_MAPPING,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    HTTP_SCALED_OBJECT,
    INGRESS,
    INTERCEPTOR_ROUTE,
    KEDA_SCALED_OBJECT,
    KINDS,
    NAMESPACE,
    POD,
    POD_DISRUPTION_BUDGET,
    REVISION,
    ROUTE,
    SCALED_WORKLOAD,
    SCALING_POLICY,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVING_SERVICE,
    Kind,
)

_ALL = ("*",)
_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete", "deletecollection")
# Kinds that a service needs. Slices and status are excluded: writing them could redirect other users' requests.
_DEPLOYED = (
    *(SERVING_SERVICE, CONFIGURATION, REVISION, ROUTE, DOMAIN_MAPPING, SCALING_POLICY, SCALED_WORKLOAD),
    *(DEPLOYMENT, POD, SERVICE, CONFIG_MAP, SECRET, SERVICE_ACCOUNT),
    *(HORIZONTAL_POD_AUTOSCALER, POD_DISRUPTION_BUDGET, HTTP_ROUTE, INGRESS),
    *(HTTP_SCALED_OBJECT, INTERCEPTOR_ROUTE, KEDA_SCALED_OBJECT),
)
_ENTERED = ("attach", "eviction", "exec", "portforward")
_SCOPES = {(kind.group, kind.plural): kind.namespaced for kind in KINDS}
# Non-object paths: discovery, schemas and the version. A trailing "*" matches any suffix.
_OPEN_PATHS = ("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version")


FULL_GRANT = Grant(user=ADMIN_USER, role=Role.ADMIN)
"""The grant of the state folder's token."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """An access to authorize: a verb on a resource, or on a ``path`` outside of the resources.

    ``namespace`` None means all namespaces; "" means a cluster-scoped kind.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str | None = ""
    name: str = ""
    path: str = ""

    @property
    def whole_resource(self) -> str:
        """The resource as written in rules: "pods", "pods/log"."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Rule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A rule of a Role: verbs on resources of API groups. ``resource_names`` restricts it to objects of these names."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()

    def covers(self, access: Access) -> bool:
        """Whether the rule allows the access."""
        return (
            _matches(self.verbs, access.verb)
            and _matches(self.api_groups, access.group)
            and _matches(self.resources, access.whole_resource)
            and (not self.resource_names or access.name in self.resource_names)
        )


def _matches(allowed: tuple[str, ...], requested: str) -> bool:
    return allowed == _ALL or requested in allowed


def _by_group(verbs: tuple[str, ...], kinds: Iterable[Kind], *subresources: str) -> Iterator[Rule]:
    """Yield one rule per API group that allows ``verbs`` on the kinds and their ``subresources``.

    A subresource that a kind does not have is left out.
    """
    groups: dict[str, list[str]] = {}
    for kind in kinds:
        has = {"status": kind.has_status, "scale": kind.has_scale, "log": kind == POD}
        names = [kind.plural] if "" in subresources else []
        names += [f"{kind.plural}/{subresource}" for subresource in subresources if has.get(subresource)]
        groups.setdefault(kind.group, []).extend(names)
    for group, resources in groups.items():
        if resources:
            yield Rule(verbs=verbs, api_groups=(group,), resources=tuple(resources))


_BASIC = (
    Rule(
        verbs=("create",),
        api_groups=("authorization.k8s.io",),
        resources=("selfsubjectaccessreviews", "selfsubjectrulesreviews"),
    ),
    Rule(verbs=("create",), api_groups=("authentication.k8s.io",), resources=("selfsubjectreviews",)),
)
_VIEWED = [kind for kind in KINDS if kind.namespaced and kind != SECRET]
_VIEW = (*_by_group(_READ, _VIEWED, ""), *_by_group(("get",), _VIEWED, "status", "scale", "log"))
_DEPLOY = (
    *_by_group(_READ, [SECRET], ""),
    *_by_group(_WRITE, _DEPLOYED, ""),
    *_by_group(("update", "patch"), _DEPLOYED, "scale"),
    Rule(
        verbs=("create",), api_groups=("",), resources=tuple(f"{POD.plural}/{subresource}" for subresource in _ENTERED)
    ),
)
_CLUSTER = tuple(_by_group(_READ, [kind for kind in KINDS if not kind.namespaced], "", "status"))
_EVERYTHING = (Rule(verbs=_ALL, api_groups=_ALL, resources=_ALL),)


def rules_in(grant: Grant, namespace: str | None) -> tuple[Rule, ...]:
    """The rules of a user in one namespace. None means all namespaces; "" means cluster-scoped kinds."""
    if grant.is_full:
        return _EVERYTHING
    if namespace == "":
        own = tuple(sorted(grant.namespaces or ()))
        named = Rule(verbs=("get",), api_groups=("",), resources=(NAMESPACE.plural,), resource_names=own)
        return (*_BASIC, *(_CLUSTER if grant.namespaces is None else (named,)))
    if grant.namespaces is not None and namespace not in grant.namespaces:
        return ()
    if grant.role is Role.VIEW or namespace in {None, system_namespace()}:
        return _VIEW
    return _EVERYTHING if grant.role is Role.ADMIN else (*_VIEW, *_DEPLOY)


def may(grant: Grant, access: Access) -> bool:
    """Whether a user has this access."""
    if grant.is_full:
        return True
    if access.path:
        is_open = any(
            access.path.startswith(open_path[:-1]) if open_path.endswith("*") else access.path == open_path
            for open_path in _OPEN_PATHS
        )
        return access.verb == "get" and is_open
    return any(rule.covers(access) for rule in rules_in(grant, access.namespace))


def refusal_text(grant: Grant, access: Access) -> str:
    """The message of a 403 response, in kube-apiserver's wording."""
    if access.path:
        return f'forbidden: User "{grant.user}" cannot {access.verb} path "{access.path}"'
    resource = f"{access.resource}.{access.group}" if access.group else access.resource
    named = f'{resource} "{access.name}"' if access.name else resource
    where = f'in the namespace "{access.namespace}"' if access.namespace else "at the cluster scope"
    what = f'cannot {access.verb} resource "{access.whole_resource}" in API group "{access.group}" {where}'
    return f'{named} is forbidden: User "{grant.user}" {what}'


class _Attributes(Access, frozen=True, kw_only=True):
    verb: str = ""


class _AccessSpec(msgspec.Struct, frozen=True, rename="camel"):
    resource_attributes: _Attributes | None = None
    non_resource_attributes: _Attributes | None = msgspec.field(default=None, name="nonResourceAttributes")


class _AccessReview(msgspec.Struct, frozen=True):
    spec: _AccessSpec


class _RulesSpec(msgspec.Struct, frozen=True):
    namespace: str = ""


class _RulesReview(msgspec.Struct, frozen=True):
    spec: _RulesSpec


def access_review(grant: Grant, body: object) -> Object:
    """A SelfSubjectAccessReview with its status. Raises ``ValueError`` if ``body`` is not a valid review."""
    spec = msgspec.convert(body, _AccessReview).spec
    attributes = spec.resource_attributes or spec.non_resource_attributes
    if attributes is None or (spec.resource_attributes and spec.non_resource_attributes):
        raise ValueError("spec has either resourceAttributes or nonResourceAttributes")
    if spec.resource_attributes is None:
        access = Access(verb=attributes.verb, path=attributes.path)
    else:
        is_namespaced = _SCOPES.get((attributes.group, attributes.resource), bool(attributes.namespace))
        namespace = (attributes.namespace or None) if is_namespaced else ""
        access = msgspec.structs.replace(attributes, namespace=namespace, path="")
    is_allowed = may(grant, access)
    reason = f"{grant.role} role" if is_allowed else refusal_text(grant, access)
    status = {"allowed": is_allowed, "reason": reason}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec, "status": status}


def rules_review(grant: Grant, body: object) -> Object:
    """A SelfSubjectRulesReview with the user's rules in a namespace. Raises ``ValueError`` for an invalid ``body``."""
    namespace = msgspec.convert(body, _RulesReview).spec.namespace
    if not namespace:
        raise ValueError("no namespace on request")
    rules = rules_in(grant, namespace)
    paths = _ALL if grant.is_full else _OPEN_PATHS
    status = {
        "resourceRules": rules if grant.is_full else (*rules_in(grant, ""), *rules),
        "nonResourceRules": [{"verbs": _ALL if grant.is_full else ("get",), "nonResourceURLs": paths}],
        "incomplete": False,
    }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "status": status}


def self_review(grant: Grant) -> Object:
    """A SelfSubjectReview: the user of the token."""
    status = {"userInfo": {"username": grant.user, "groups": grant.groups}}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}, "status": status}
