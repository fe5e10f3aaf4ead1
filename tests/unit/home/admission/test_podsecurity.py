"""Pod security by kind, field and role, and by namespace labels."""

import re
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import pytest

from serving.core.model.errors import Forbidden, Invalid
from serving.core.model.objects import Object
from serving.core.settings.controller import ControllerSettings
from serving.home.admission.admission import admit
from serving.home.admission.hostprograms import without_host_programs
from serving.home.admission.namespacerules import NamespaceRules
from serving.home.admission.podsecurity import TEMPLATES, PodSecurity
from serving.home.schemas.crds import builtin_schemas, crds
from serving.home.store.memory import Apply, MemoryCluster
from serving.home.store.requester import acting_as
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    CONFIGURATION,
    DEPLOYMENT,
    KINDS,
    NAMESPACE,
    POD,
    REVISION,
    SERVING_SERVICE,
    UNUSED_KINDS,
    Kind,
)
from serving.net.cluster.port import PatchType, Subresource

LABEL = "pod-security.kubernetes.io/enforce"
BASELINE = 'violates PodSecurity "baseline:latest": '
RESTRICTED = 'violates PodSecurity "restricted:latest": '
FEATURES = ControllerSettings(add_capabilities="enabled", host_path_volumes="enabled")

# Fields that a Service does not have, or that Knative's rules reject for every role.
KNATIVE_ONLY = {"privileged", "procMount", "hostNetwork", "hostPID"}
ROLES = {"deploy": False, "admin": True}


class SecuredStore(MemoryCluster):
    """A store with the admission of a single machine."""

    def __init__(self, features: ControllerSettings = FEATURES) -> None:
        super().__init__(admit=self._admitted, rules=self._ruled)
        self._features = features
        self.security = PodSecurity(self.table, lambda: self._features)
        self.namespace_rules = NamespaceRules(self.table, self.security)
        self.namespace_rules.enforce()

    def _admitted(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        whole = admit(kind, new, old, subresource=subresource, features=self._features, is_one_machine=True)
        return without_host_programs(kind, whole, old, has_runtime=True)

    def _ruled(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> Object:
        return self.namespace_rules.admit(kind, new, old, subresource=subresource)


def manifest(kind: Kind, spec: Object, name: str = "x", namespace: str = "default") -> Object:
    """An object of a kind whose pods have this spec."""
    metadata = {"name": name, "namespace": namespace}
    head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}
    if not TEMPLATES[kind]:
        return {**head, "spec": spec}
    template: Object = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    selector = {"selector": {"matchLabels": {"a": "b"}}} if kind == DEPLOYMENT else {}
    return {**head, "spec": {**selector, "template": template}}


def pods(context: Object | None = None, pod: Object | None = None) -> Object:
    return {"containers": [{"name": "c", "image": "x", "securityContext": context or {}}], **(pod or {})}


# A pod spec with the field, and the word in the error: of the Pod Security Standard, of Knative's rules, or of host folders.
FIELDS: dict[str, tuple[Object, str]] = {
    "privileged": (pods({"privileged": True}), "privileged"),
    "capabilities": (pods({"capabilities": {"add": ["SYS_ADMIN", "DAC_READ_SEARCH"]}}), "capabilities"),
    "mknod": (pods({"capabilities": {"add": ["MKNOD"]}}), "capabilities"),
    "seccompProfile": (pods({"seccompProfile": {"type": "Unconfined"}}), "seccompProfile"),
    "seccompProfile of the pod": (
        pods(pod={"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        "seccompProfile",
    ),
    "appArmorProfile": (pods({"appArmorProfile": {"type": "Unconfined"}}), "AppArmor"),
    "seLinuxOptions": (pods({"seLinuxOptions": {"type": "spc_t"}}), "seLinuxOptions"),
    "procMount": (pods({"procMount": "Unmasked"}), "procMount"),
    "sysctls": (pods(pod={"securityContext": {"sysctls": [{"name": "kernel.core_pattern", "value": "x"}]}}), "sysctls"),
    "hostNetwork": (pods(pod={"hostNetwork": True}), "hostNetwork"),
    "hostPID": (pods(pod={"hostPID": True}), "hostPID"),
    "hostPath": (
        {
            "containers": [{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
        },
        "hostPath",
    ),
    "init container": (
        pods(
            pod={
                "initContainers": [
                    {"name": "i", "image": "x", "securityContext": {"seccompProfile": {"type": "Unconfined"}}}
                ]
            }
        ),
        "seccompProfile",
    ),
}


def test_every_writable_kind_with_pod_template_is_checked() -> None:
    schemas = builtin_schemas()
    with_pods = {
        kind
        for kind in KINDS
        if "PodTemplateSpec" in str(schemas.get(f"{kind.group or 'core'}.{kind.version}.{kind.name}Spec", ""))
        or '"containers"' in msgspec.json.encode(crds()[kind].schema if kind in crds() else {}).decode()
    }
    writable = with_pods - set(UNUSED_KINDS) - {kind for kind in KINDS if kind.is_view}
    assert writable - set(TEMPLATES) == set()
    assert {SERVING_SERVICE, CONFIGURATION, REVISION} <= writable


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda kind: kind.name)
async def test_node_privileges_are_for_admins_only_in_every_kind(kind: Kind, field: str, role: str) -> None:
    spec, word = FIELDS[field]
    is_knative = kind not in {POD, DEPLOYMENT}
    is_allowed = ROLES[role] and not (is_knative and field in KNATIVE_ONLY)
    store, body, harmless = SecuredStore(), manifest(kind, spec), manifest(kind, pods(), "y")
    with acting_as("dee", manager="kubectl", runs_programs=ROLES[role]):
        await store.create(kind, harmless)
        merge = {"spec": body["spec"]}
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: store.create(kind, body),
            lambda: store.replace(kind, {**body, "metadata": harmless["metadata"]}),
            lambda: store.patch(kind, "default", "y", patch=merge, patch_type=PatchType.MERGE),
            lambda: store.apply(
                Apply(kind=kind, namespace="default", name="y", config={**body, "metadata": {"name": "y"}}, force=True)
            ),
        ]
        if kind == REVISION:
            # Its spec cannot change.
            writes = writes[:1]
        for write in writes:
            if is_allowed:
                await write()
            else:
                with pytest.raises((Forbidden, Invalid), match=re.compile(word, re.IGNORECASE)):
                    await write()


async def test_violation_message_equals_kubernetes() -> None:
    with acting_as("dee", runs_programs=False), pytest.raises(Forbidden) as raised:
        await SecuredStore().create(POD, manifest(POD, pods({"privileged": True})))
    assert str(raised.value) == (
        f'pods "x" is forbidden: {BASELINE}privileged (container "c" must not set securityContext.privileged=true)'
    )


@pytest.mark.parametrize("kind", TEMPLATES, ids=lambda kind: kind.name)
async def test_enforced_level_applies_to_system_and_admins(kind: Kind) -> None:
    store = SecuredStore()
    await store.create(NAMESPACE, {"metadata": {"name": "safe", "labels": {LABEL: "restricted"}}})
    # Controllers of the system, and an admin.
    for user in ("", "eve"):
        with acting_as(user), pytest.raises(Forbidden, match=f"{RESTRICTED}allowPrivilegeEscalation != false"):
            await store.create(kind, manifest(kind, pods(), namespace="safe"))
    safe = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    await store.create(kind, manifest(kind, pods(safe), namespace="safe"))


async def test_invalid_level_is_rejected_and_a_stored_one_is_restricted() -> None:
    store = SecuredStore()
    with pytest.raises(
        Invalid, match=r'enforce\]: Invalid value: "strict": must be one of privileged, baseline, restricted'
    ):
        await store.create(NAMESPACE, {"metadata": {"name": "n", "labels": {LABEL: "strict"}}})
    with pytest.raises(Invalid, match=r'enforce-version\]: Invalid value: "1\.30": must be "latest"'):
        await store.create(NAMESPACE, {"metadata": {"name": "n", "labels": {f"{LABEL}-version": "1.30"}}})
    old = MemoryCluster()
    await old.create(NAMESPACE, {"metadata": {"name": "n", "labels": {LABEL: "strict"}}})
    with pytest.raises(Forbidden, match="restricted:latest"):
        PodSecurity(old.table).check(POD, manifest(POD, pods(), namespace="n"))


async def test_admins_deployment_can_be_scaled_but_not_changed() -> None:
    store = SecuredStore()
    body = manifest(DEPLOYMENT, pods({"seccompProfile": {"type": "Unconfined"}}))
    await store.create(DEPLOYMENT, body)
    with acting_as("dee", manager="kubectl", runs_programs=False):
        await store.patch(DEPLOYMENT, "default", "x", patch={"spec": {"replicas": 3}}, patch_type=PatchType.MERGE)
        await store.patch(DEPLOYMENT, "default", "x", patch={"spec": {"replicas": 4}}, subresource="scale")
        await store.patch(DEPLOYMENT, "default", "x", patch={"metadata": {"labels": {"c": "d"}}})
        image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "mine"}]
        with pytest.raises(Forbidden, match="seccompProfile"):
            await store.patch(DEPLOYMENT, "default", "x", patch=image, patch_type=PatchType.JSON)


async def test_pods_restored_before_enforcement_are_not_checked() -> None:
    store = MemoryCluster()
    rules = NamespaceRules(store.table)
    await store.create(NAMESPACE, {"metadata": {"name": "safe", "labels": {LABEL: "restricted"}}})
    pod = manifest(POD, pods(), namespace="safe")
    assert rules.admit(POD, pod) is pod
    with acting_as("dee", runs_programs=False), pytest.raises(Forbidden):
        rules.admit(POD, pod)
    rules.enforce()
    with pytest.raises(Forbidden):
        rules.admit(POD, pod)


async def test_secure_pod_defaults_make_services_meet_restricted() -> None:
    for level, is_allowed in (("Enabled", True), ("Disabled", False)):
        store = SecuredStore(ControllerSettings(secure_pod_defaults=level))
        await store.create(NAMESPACE, {"metadata": {"name": "safe", "labels": {LABEL: "restricted"}}})
        body = manifest(SERVING_SERVICE, {"containers": [{"image": "x"}]}, namespace="safe")
        if is_allowed:
            await store.create(SERVING_SERVICE, body)
        else:
            with pytest.raises(Forbidden, match="runAsNonRoot"):
                await store.create(SERVING_SERVICE, body)


def labels(**values: str) -> Mapping[str, str]:
    return {f"pod-security.kubernetes.io/{mode.replace('_', '-')}": text for mode, text in values.items()}


async def test_new_enforce_and_warn_levels_report_violating_pods() -> None:
    store = SecuredStore()
    await store.create(POD, manifest(POD, pods({"privileged": True}), "b"))
    await store.create(POD, manifest(POD, pods({"privileged": True}), "a"))
    value = labels(enforce="baseline", warn="restricted", audit="baseline", enforce_version="v1.30")
    namespace = await store.patch(NAMESPACE, "", "default", patch={"metadata": {"labels": value}})
    assert store.security.warnings(NAMESPACE, namespace) == [
        "metadata.labels[pod-security.kubernetes.io/enforce-version]: accepted without effect: the latest version is checked",
        "metadata.labels[pod-security.kubernetes.io/audit]: accepted without effect: the audit log has no annotations",
        'existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"',
        "a (and 1 other pod): privileged",
    ]
    (warning,) = store.security.warnings(DEPLOYMENT, manifest(DEPLOYMENT, pods()))
    assert warning.startswith('would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false')
    assert store.security.warnings(CONFIG_MAP, {"metadata": {"name": "x", "namespace": "default"}}) == []
