"""Pod Security Standards: violations are worded as in Kubernetes."""

from typing import Any

import pytest

from serving.core.model.objects import Object
from serving.home.pods.podstandards import BASELINE, PRIVILEGED, RESTRICTED, violation_text, violations_of

SAFE: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
TWICE: Object = {"containers": [{"name": name, "securityContext": {"privileged": True}} for name in "ab"]}
APPARMOR = "container.apparmor.security.beta.kubernetes.io/a"


def template(context: Object | None = None, pod: Object | None = None, **container: Any) -> Object:  # noqa: ANN401 - JSON
    own = {"name": "a", **({"securityContext": context} if context is not None else {}), **container}
    return {"metadata": {}, "spec": {"containers": [own], **(pod or {})}}


BASELINE_CASES: list[tuple[Object, str]] = [
    (template({"privileged": True}), 'privileged (container "a" must not set securityContext.privileged=true)'),
    (
        {"spec": TWICE},
        'privileged (containers "a", "b" must not set securityContext.privileged=true)',
    ),
    (template(pod={"hostNetwork": True, "hostIPC": True}), "host namespaces (hostNetwork=true, hostIPC=true)"),
    (template(pod={"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), 'hostPath volumes (volume "v")'),
    (template(ports=[{"hostPort": 80}, {"containerPort": 1}]), 'hostPort (container "a" uses hostPort 80)'),
    (
        template(livenessProbe={"httpGet": {"host": "h"}}, lifecycle={"preStop": {"tcpSocket": {"host": "i"}}}),
        'probe or lifecycle host (container "a" uses probe or lifecycle hosts "h", "i")',
    ),
    (
        template({"capabilities": {"add": ["SYS_ADMIN", "DAC_READ_SEARCH", "CHOWN"]}}),
        (
            'non-default capabilities (container "a" must not include "DAC_READ_SEARCH", "SYS_ADMIN" in '
            "securityContext.capabilities.add)"
        ),
    ),
    # Kernel names, names in lower case, and capabilities that a container has no filter for.
    *(
        (
            template({"capabilities": {"add": [name]}}),
            f'non-default capabilities (container "a" must not include "{name}" in securityContext.capabilities.add)',
        )
        for name in ("CAP_SYS_ADMIN", "sys_admin", "ALL", "MKNOD", "NET_RAW")
    ),
    (
        template({"appArmorProfile": {"type": "Unconfined"}}),
        'forbidden AppArmor profile (container "a" must not set AppArmor profile type to "Unconfined")',
    ),
    (
        {**template(), "metadata": {"annotations": {APPARMOR: "unconfined"}}},
        f'forbidden AppArmor profile (annotation must not set AppArmor profile type to "{APPARMOR}="unconfined"")',
    ),
    (
        template({"seLinuxOptions": {"type": "spc_t", "user": "root"}}),
        'seLinuxOptions (container "a" set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set)',
    ),
    (
        template({"procMount": "Unmasked"}),
        'procMount (container "a" must not set securityContext.procMount to "Unmasked")',
    ),
    (
        template({"seccompProfile": {"type": "Unconfined"}}, {"securityContext": {"seccompProfile": {"type": "x"}}}),
        'seccompProfile (pod and container "a" must not set securityContext.seccompProfile.type to "Unconfined", "x")',
    ),
    (
        template(pod={"securityContext": {"sysctls": [{"name": "kernel.core_pattern"}]}}),
        "forbidden sysctls (kernel.core_pattern)",
    ),
    (
        template({"windowsOptions": {"hostProcess": True}}),
        'hostProcess (container "a" must not set securityContext.windowsOptions.hostProcess=true)',
    ),
]


@pytest.mark.parametrize(("pod", "violation"), BASELINE_CASES)
def test_baseline_violations_also_violate_restricted(pod: Object, violation: str) -> None:
    assert violation_text(pod, BASELINE) == f'violates PodSecurity "baseline:latest": {violation}'
    assert violation_text(pod, RESTRICTED)
    assert violation_text(pod, PRIVILEGED) == ""


@pytest.mark.parametrize("field", ["initContainers", "ephemeralContainers"])
def test_containers_of_each_kind_are_checked(field: str) -> None:
    pod = template(pod={field: [{"name": "i", "securityContext": {"privileged": True}}]})
    assert 'container "i"' in violation_text(pod, BASELINE)


def test_plain_pod_meets_baseline_and_violates_restricted() -> None:
    assert violations_of(template(), BASELINE) == []
    assert violation_text(template(), RESTRICTED) == (
        'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "a" must set '
        'securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "a" must set '
        'securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "a" must set '
        'securityContext.runAsNonRoot=true), seccompProfile (pod or container "a" must set '
        'securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
    )


def test_restricted_is_met_by_pod_or_container_security_context() -> None:
    assert violations_of(template(SAFE), RESTRICTED) == []
    of_pod = {key: SAFE[key] for key in ("runAsNonRoot", "seccompProfile")}
    of_container = {key: SAFE[key] for key in ("allowPrivilegeEscalation", "capabilities")}
    assert violations_of(template(of_container, {"securityContext": of_pod}), RESTRICTED) == []


@pytest.mark.parametrize(
    ("context", "pod", "violation"),
    [
        (
            {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}},
            {},
            'unrestricted capabilities (container "a" must not include "CHOWN" in securityContext.capabilities.add)',
        ),
        (
            {"runAsNonRoot": False},
            {},
            'runAsNonRoot != true (container "a" must not set securityContext.runAsNonRoot=false)',
        ),
        (
            {"runAsUser": 0},
            {"securityContext": {"runAsUser": 0}},
            'runAsUser=0 (pod and container "a" must not set runAsUser=0)',
        ),
        (
            {},
            {"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w"}, {"name": "e", "emptyDir": {}}]},
            'restricted volume types (volumes "v", "w" use restricted volume types "hostPath", "unknown")',
        ),
    ],
)
def test_restricted_rejects_capabilities_root_and_volume_types(context: Object, pod: Object, violation: str) -> None:
    assert violation_text(template({**SAFE, **context}, pod), RESTRICTED) == (
        f'violates PodSecurity "restricted:latest": {violation}'
    )


def test_malformed_fields_count_as_absent() -> None:
    broken: list[Object] = [
        {},
        {"spec": None, "metadata": None},
        {"spec": {"containers": 1, "volumes": [1], "securityContext": []}},
        template({"capabilities": {"add": 1, "drop": None}, "seccompProfile": None}, {"volumes": None}),
    ]
    for pod in broken:
        assert violations_of(pod, BASELINE) == []
