"""Permissions of roles for all kinds, verbs and namespaces."""

import itertools

import pytest

from serving.core.model.grants import Grant, Role
from serving.home.apiserver.roles import FULL_GRANT, Access, access_review, may, refusal_text, rules_review
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import KINDS

TEAM = frozenset({"team"})
KSVC = "serving.knative.dev:services"
READS = ("get", "list", "watch")
WRITES = ("create", "update", "patch", "delete", "deletecollection")
ALL_ACCESSES = [
    Access(verb=verb, group=kind.group, resource=kind.plural, subresource=part, namespace=namespace, name="x")
    for kind, verb, part in itertools.product(KINDS, (*READS, *WRITES), ("", "status", "scale", "log", "exec"))
    for namespace in ((None, "team", "other", system_namespace()) if kind.namespaced else ("",))
]


def grant(role: str, namespaces: frozenset[str] | None = TEAM) -> Grant:
    return Grant(user="ann", role=Role(role), namespaces=namespaces)


def can(role: str, verb: str, resource: str, namespace: str | None = "team", *, everywhere: bool = False) -> bool:
    group, _, rest = resource.rpartition(":")
    plural, _, part = rest.partition("/")
    access = Access(verb=verb, group=group, resource=plural, subresource=part, namespace=namespace)
    return may(grant(role, None if everywhere else TEAM), access)


@pytest.mark.parametrize(
    ("role", "verb", "resource", "is_allowed"),
    [
        ("view", "get", KSVC, True),
        ("view", "watch", "pods", True),
        ("view", "get", "pods/log", True),
        ("view", "list", "configmaps", True),
        ("view", "get", "secrets", False),
        ("view", "list", "secrets", False),
        ("view", "watch", "secrets", False),
        ("view", "create", "pods/exec", False),
        ("view", "create", "pods/portforward", False),
        ("view", "patch", f"{KSVC}", False),
        ("deploy", "create", KSVC, True),
        ("deploy", "get", "secrets", True),
        ("deploy", "create", "secrets", True),
        ("deploy", "create", "pods/exec", True),
        ("deploy", "create", "pods/attach", True),
        ("deploy", "create", "pods/portforward", True),
        ("deploy", "create", "pods/eviction", True),
        ("deploy", "patch", "apps:deployments/scale", True),
        ("deploy", "patch", f"{KSVC}/status", False),
        ("deploy", "patch", "discovery.k8s.io:endpointslices", False),
        ("deploy", "create", "resourcequotas", False),
        ("deploy", "create", "rbac.authorization.k8s.io:roles", False),
        ("admin", "create", "resourcequotas", True),
        ("admin", "patch", f"{KSVC}/status", True),
    ],
)
def test_role_permissions_in_its_namespace(role: str, verb: str, resource: str, is_allowed: bool) -> None:
    assert can(role, verb, resource) is is_allowed


def test_namespaced_roles_have_no_access_to_other_namespaces() -> None:
    for role in Role:
        outside = [access for access in ALL_ACCESSES if access.namespace in {None, "other", system_namespace()}]
        assert [access for access in outside if may(grant(role), access)] == []


def test_view_role_reads_everything_but_secrets() -> None:
    allowed = [access for access in ALL_ACCESSES if may(grant("view", None), access)]
    assert {access.verb for access in allowed} == set(READS)
    assert not [access for access in allowed if access.resource == "secrets"]


def test_only_full_grant_writes_system_and_cluster_scoped_objects() -> None:
    for role in (Role.VIEW, Role.DEPLOY):
        allowed = [access for access in ALL_ACCESSES if may(grant(role, None), access)]
        system = [access for access in allowed if access.namespace in {system_namespace(), None}]
        assert system
        assert not [access for access in system if access.verb in WRITES or access.resource == "secrets"]
        assert not [access for access in allowed if access.namespace == "" and access.verb in WRITES]
    named = grant("admin", frozenset({system_namespace()}))
    assert not [
        access
        for access in ALL_ACCESSES
        if may(named, access) and (access.verb in WRITES or access.resource == "secrets")
    ]
    assert all(may(FULL_GRANT, access) for access in ALL_ACCESSES)


def test_namespaced_user_reads_only_its_namespace_object() -> None:
    def namespace(name: str) -> Access:
        return Access(verb="get", resource="namespaces", name=name)

    assert may(grant("view"), namespace("team"))
    assert not may(grant("view"), namespace("other"))
    assert may(grant("view", None), namespace("other"))


@pytest.mark.parametrize(
    ("verb", "path", "is_allowed"),
    [
        ("get", "/version", True),
        ("get", "/apis/apps/v1", True),
        ("get", "/openapi/v3", True),
        ("post", "/backup", False),
        ("get", "/apisecret", False),
        ("delete", "/api/v1", False),
    ],
)
def test_non_resource_path_permissions(verb: str, path: str, is_allowed: bool) -> None:
    assert may(grant("admin"), Access(verb=verb, path=path)) is is_allowed
    assert may(FULL_GRANT, Access(verb=verb, path=path))


def test_refusal_text_equals_kube_apiservers() -> None:
    access = Access(verb="get", group="apps", resource="deployments", subresource="scale", namespace="n", name="d")
    assert refusal_text(grant("view"), access) == (
        'deployments.apps "d" is forbidden: User "ann" cannot get resource "deployments/scale" in API group "apps" in the namespace "n"'
    )
    assert refusal_text(grant("view"), Access(verb="list", resource="nodes")) == (
        'nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    assert refusal_text(grant("view"), Access(verb="post", path="/x")) == 'forbidden: User "ann" cannot post path "/x"'


def test_access_review_agrees_with_authorization() -> None:
    def is_allowed(**attributes: str) -> bool:
        review = access_review(grant("deploy"), {"spec": {"resourceAttributes": attributes}})
        return bool(review["status"]["allowed"])

    assert is_allowed(verb="create", resource="pods", subresource="exec", namespace="team")
    assert not is_allowed(verb="create", resource="pods", subresource="exec", namespace="other")
    # All namespaces.
    assert not is_allowed(verb="list", resource="pods")
    assert not is_allowed(verb="*", resource="*", group="*", namespace="team")
    path = access_review(grant("deploy"), {"spec": {"nonResourceAttributes": {"verb": "get", "path": "/version"}}})
    assert path["status"]["allowed"] is True


@pytest.mark.parametrize(
    ("review", "error"),
    [
        ({}, "missing required field `spec`"),
        ({"spec": {}}, "either resourceAttributes or nonResourceAttributes"),
        ({"spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}}, "either resourceAttributes or"),
        ({"spec": {"resourceAttributes": 1}}, r"got `int` - at `\$.spec.resourceAttributes`"),
        ([], "got `array`"),
        (None, "got `null`"),
    ],
)
def test_malformed_access_review_is_rejected(review: object, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        access_review(grant("view"), review)


def test_rules_review_lists_exactly_the_effective_rules() -> None:
    for role in Role:
        rules = rules_review(grant(role), {"spec": {"namespace": "team"}})["status"]["resourceRules"]
        for access in ALL_ACCESSES:
            if access.namespace in {"team", ""}:
                matching = [rule for rule in rules if rule.covers(access)]
                if access.namespace == "" and role is Role.ADMIN:
                    # Its "*" in the namespace does not apply to cluster-scoped kinds.
                    continue
                assert bool(matching) == may(grant(role), access), access
    assert rules_review(grant("view"), {"spec": {"namespace": "other"}})["status"]["resourceRules"]
    with pytest.raises(ValueError, match="no namespace"):
        rules_review(grant("view"), {"spec": {}})
