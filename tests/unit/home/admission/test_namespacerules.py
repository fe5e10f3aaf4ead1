"""Checks of pods and other objects against the service accounts, LimitRanges and quotas of their namespace."""

from typing import Any

import pytest

from serving.core.model.errors import Forbidden, Invalid, NotFound
from serving.core.model.objects import Object, name_of
from serving.home.admission.namespacerules import NamespaceRules
from serving.home.store.memory import MemoryCluster
from serving.home.store.requester import acting_as
from serving.net.cluster.kinds import (
    CLUSTER_DOMAIN_CLAIM,
    DOMAIN_MAPPING,
    LIMIT_RANGE,
    POD,
    RESOURCE_QUOTA,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
)
from serving.net.cluster.port import Subresource

NO_QUANTITY = '\'{}\' is not a quantity such as "500m", "2" or "1Gi"'
NEGATIVE = 'Invalid value: "-1": must be greater than or equal to 0'
SUPPORTED = '"Container", "Pod", "PersistentVolumeClaim"'


class Ruled(MemoryCluster):
    """A store that enforces namespace rules."""

    def __init__(self) -> None:
        super().__init__(admit=self._by_rules)
        self.rules = NamespaceRules(self.table)
        self.rules.enforce()

    def _by_rules(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        return self.rules.admit(kind, new, old, subresource=subresource)


def pod(name: str = "p", **spec: Any) -> Object:  # noqa: ANN401 - JSON
    resources = {"requests": {"cpu": "300m"}}
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": resources}], **spec}}


def quota(**hard: object) -> Object:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard}}


async def test_pod_gets_service_account_and_its_pull_secrets() -> None:
    cluster = Ruled()
    secrets = [{"name": "registry"}]
    await cluster.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot"}, "imagePullSecrets": secrets})
    assert (await cluster.create(POD, pod("a")))["spec"]["serviceAccountName"] == "default"
    assert (await cluster.create(POD, pod("b", serviceAccountName="robot")))["spec"]["imagePullSecrets"] == secrets
    own = pod("c", serviceAccount="robot", imagePullSecrets=[{"name": "own"}])
    assert (await cluster.create(POD, own))["spec"]["imagePullSecrets"] == [{"name": "own"}]


async def test_pod_of_missing_service_account_is_forbidden() -> None:
    with pytest.raises(Forbidden) as raised:
        await Ruled().create(POD, pod(serviceAccountName="nope"))
    assert str(raised.value) == (
        'pods "p" is forbidden: error looking up service account default/nope: serviceaccount "nope" not found'
    )


async def test_pod_above_quota_is_forbidden_until_another_is_deleted() -> None:
    cluster = Ruled()
    await cluster.create(RESOURCE_QUOTA, quota(**{"requests.cpu": "500m"}))
    await cluster.create(POD, pod("a"))
    generated = {**pod(), "metadata": {"generateName": "web-"}}
    with pytest.raises(Forbidden) as raised:
        await cluster.create(POD, generated)
    assert str(raised.value) == (
        'pods "web-" is forbidden: exceeded quota: q, requested: requests.cpu=300m, used: requests.cpu=300m, '
        "limited: requests.cpu=500m"
    )
    await cluster.delete(POD, "default", "a")
    await cluster.create(POD, generated)


async def test_limit_range_defaults_count_towards_quotas() -> None:
    cluster = Ruled()
    item = {"type": "Container", "default": {"memory": "1Gi"}, "max": {"cpu": "1"}}
    await cluster.create(LIMIT_RANGE, {"metadata": {"name": "l"}, "spec": {"limits": [item]}})
    await cluster.create(RESOURCE_QUOTA, quota(**{"limits.memory": "1Gi"}))
    stored = await cluster.create(POD, pod("a"))
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    with pytest.raises(Forbidden, match=r"exceeded quota: q, requested: limits\.memory=1Gi, used: limits\.memory=1Gi"):
        await cluster.create(POD, pod("b"))


async def test_all_limit_range_violations_are_reported() -> None:
    cluster = Ruled()
    item = {"type": "Container", "min": {"memory": "1Gi"}, "max": {"cpu": "100m"}}
    await cluster.create(LIMIT_RANGE, {"metadata": {"name": "l"}, "spec": {"limits": [item]}})
    big = pod()
    big["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}, "requests": {"memory": "1Mi"}}
    with pytest.raises(Forbidden) as raised:
        await cluster.create(POD, big)
    assert str(raised.value) == (
        'pods "p" is forbidden: [minimum memory usage per Container is 1Gi, but request is 1Mi, '
        "maximum cpu usage per Container is 100m, but limit is 1]"
    )


async def test_quotas_apply_only_to_creation_in_their_namespace() -> None:
    cluster = Ruled()
    await cluster.create(POD, pod("a"))
    await cluster.create(SECRET, {"metadata": {"name": "a"}})
    await cluster.create(RESOURCE_QUOTA, quota(pods=0, secrets=1))
    await cluster.patch(POD, "default", "a", patch={"metadata": {"labels": {"a": "b"}}})
    await cluster.patch(POD, "default", "a", patch={"status": {"phase": "Running"}}, subresource="status")
    await cluster.create(SECRET, {"metadata": {"name": "b", "namespace": "kube-system"}})
    with pytest.raises(Forbidden, match='secrets "b" is forbidden: exceeded quota'):
        await cluster.create(SECRET, {"metadata": {"name": "b"}})
    with pytest.raises(NotFound):
        await cluster.create(POD, {**pod(), "metadata": {"name": "p", "namespace": "nowhere"}})


async def test_unenforced_rules_admit_any_pod() -> None:
    cluster = Ruled()
    cluster.rules = NamespaceRules(cluster.table)
    await cluster.create(RESOURCE_QUOTA, quota(pods=0))
    new_pod = await cluster.create(POD, pod("a", serviceAccountName="gone"))
    assert new_pod["spec"]["serviceAccountName"] == "gone"


async def test_invalid_quantity_is_rejected_if_a_quota_exists() -> None:
    cluster = Ruled()
    bad = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "much"}}}]}
    await cluster.create(POD, {"metadata": {"name": "before"}, "spec": bad})
    await cluster.create(RESOURCE_QUOTA, quota(pods=5))
    with pytest.raises(Invalid, match="'much' is not a quantity"):
        await cluster.create(POD, {"metadata": {"name": "after"}, "spec": bad})
    await cluster.create(POD, pod())


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (
            RESOURCE_QUOTA,
            {"hard": {"cpu": "abc", "memory": "-1"}},
            f'[spec.hard[cpu]: Invalid value: "abc": {NO_QUANTITY.format("abc")}, spec.hard[memory]: {NEGATIVE}]',
        ),
        (RESOURCE_QUOTA, {"hard": ["cpu"]}, "spec.hard: Invalid value: not a map"),
        (LIMIT_RANGE, {"limits": {"a": "b"}}, "spec.limits: Invalid value: not a list"),
        (
            LIMIT_RANGE,
            {"limits": [{"type": "Pods", "max": {"cpu": "1"}}]},
            f'spec.limits[0].type: Unsupported value: "Pods": supported values: {SUPPORTED}',
        ),
        (
            LIMIT_RANGE,
            {"limits": [{"type": "Pod", "max": {"cpu": "x"}}]},
            f'spec.limits[0].max[cpu]: Invalid value: "x": {NO_QUANTITY.format("x")}',
        ),
    ],
)
async def test_invalid_quota_or_limit_range_is_rejected_with_its_path(kind: Kind, spec: Object, message: str) -> None:
    cluster = Ruled()
    with pytest.raises(Invalid) as raised:
        await cluster.create(kind, {"metadata": {"name": "x"}, "spec": spec})
    assert str(raised.value) == f'{kind.name} "x" is invalid: {message}'
    await cluster.create(kind, {"metadata": {"name": "x"}, "spec": {}})
    with pytest.raises(Invalid):
        await cluster.patch(kind, "default", "x", patch={"spec": spec})


async def test_domain_mapping_requires_claim_of_its_namespace() -> None:
    cluster = Ruled()
    mapping = {"metadata": {"name": "packages.example"}, "spec": {"ref": {"kind": "Service", "name": "s"}}}
    for owner in (None, "other"):
        if owner is not None:
            await cluster.create(
                CLUSTER_DOMAIN_CLAIM, {"metadata": {"name": "packages.example"}, "spec": {"namespace": owner}}
            )
        with (
            acting_as("dee", claims_hosts=False),
            pytest.raises(Forbidden, match=r'"dee" cannot claim hosts; expected'),
        ):
            await cluster.create(DOMAIN_MAPPING, mapping)
    await cluster.patch(CLUSTER_DOMAIN_CLAIM, "", "packages.example", patch={"spec": {"namespace": "default"}})
    with acting_as("dee", claims_hosts=False):
        domain_mapping = await cluster.create(DOMAIN_MAPPING, mapping)
        await cluster.patch(DOMAIN_MAPPING, "default", name_of(domain_mapping), patch={"spec": {"ref": {"name": "t"}}})
    await cluster.create(DOMAIN_MAPPING, {**mapping, "metadata": {"name": "other.example"}})
