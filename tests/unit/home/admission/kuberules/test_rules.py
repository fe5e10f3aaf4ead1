"""Selected validation rules; ``tests/conformance/data/manifests.jsonl`` compares all rules with a real API server."""

import base64
from typing import Any

import pytest

from serving.core.model.errors import Invalid
from serving.home.admission.admission import admit
from serving.home.admission.kuberules.decoding import undecodable
from serving.home.admission.kuberules.rules import kube_problems
from serving.home.store.requester import acting_as
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    INGRESS,
    LEASE,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE,
    SERVING_SERVICE,
    Kind,
)

CONTAINER = {"name": "a", "image": "i"}
PROBE = {"tcpSocket": {"port": 80}}
DOUBLED = [{"name": "A0", "value": "x"}, *({"name": f"A{n + 1}", "value": f"$(A{n})$(A{n})"} for n in range(26))]

# JSON values have any type.
# ruff: noqa: ANN401


def deployment(**spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "a", "more": "b"}}, "spec": {"containers": [CONTAINER]}}
    return {"spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template, **spec}}


def service(**container: Any) -> dict[str, Any]:
    spec = {"containers": [{"image": "x", **container}]}
    return {"metadata": {"name": "hello"}, "spec": {"template": {"spec": spec}}}


@pytest.mark.parametrize(
    ("kind", "whole"),
    [
        (POD, {"spec": {"containers": [CONTAINER], "restartPolicy": "Never"}}),
        (POD, {"spec": {"containers": [CONTAINER], "initContainers": [{"name": "b", "image": "i"}]}}),
        (POD, {"spec": {"containers": [{**CONTAINER, "livenessProbe": {**PROBE, "periodSeconds": 0}}]}}),
        (POD, {"spec": {"containers": [{**CONTAINER, "startupProbe": None, "resources": None}]}}),
        (POD, {"spec": {"containers": [{**CONTAINER, "resources": {"limits": {"memory": "1e3", "cpu": ".5"}}}]}}),
        (DEPLOYMENT, deployment()),
        (DEPLOYMENT, deployment(replicas=0)),
        (DEPLOYMENT, deployment(selector={"matchExpressions": [{"key": "more", "operator": "In", "values": ["b"]}]})),
        (CONFIG_MAP, {"data": {"a": None}}),
        (SECRET, {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}}),
        (NAMESPACE, {"spec": {}}),
        (SERVICE, {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 0}]}}),
        (SERVICE, {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 32767}]}}),
    ],
)
def test_valid_objects_have_no_problems(kind: Kind, whole: dict[str, Any]) -> None:
    assert undecodable(kind, whole) == []
    assert list(kube_problems(kind, whole)) == []


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"containers": [CONTAINER, CONTAINER]}, 'spec.containers[1].name: Duplicate value: "a"'),
        (
            {"containers": [CONTAINER], "initContainers": [CONTAINER]},
            'spec.initContainers[0].name: Duplicate value: "a"',
        ),
        (
            {"containers": [CONTAINER], "terminationGracePeriodSeconds": -5},
            "spec.terminationGracePeriodSeconds: Invalid value: -5: must be greater than or equal to 0",
        ),
        (
            {"containers": [{**CONTAINER, "env": DOUBLED}]},
            "spec.containers[0].env: Invalid value: must be at most 1048576 bytes, with references expanded",
        ),
        *(
            (
                {
                    "containers": [CONTAINER],
                    "volumes": [{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": path}]}}],
                },
                "spec.volumes[0].configMap.items[0].path: Invalid value: ",
            )
            for path in ("../x", "/x", "a/../x", "a\0b", "a" * 256)
        ),
        (
            {"containers": [CONTAINER], "hostUsers": False, "hostPID": True},
            "spec.hostPID: Forbidden: when `hostUsers` is false",
        ),
    ],
)
def test_invalid_pod_spec_has_a_problem(spec: object, message: str) -> None:
    (problem,) = kube_problems(POD, {"spec": spec})
    assert f"{problem.where}: {problem.what}".startswith(message)


def port_of_nodes(**spec: Any) -> dict[str, Any]:
    return {"spec": {"type": "NodePort", "ports": [{"port": 80}], **spec}}


AFFINITY = {"clientIP": {"timeoutSeconds": 86401}}
IN_RANGE = "Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767"
OF_HPA = {"scaleTargetRef": {"kind": "Deployment", "name": "a"}, "maxReplicas": 2}
AT_DOWN = "spec.behavior.scaleDown"


@pytest.mark.parametrize(
    ("kind", "whole", "message"),
    [
        (SERVICE, port_of_nodes(ports=[{"port": 80, "nodePort": 80}]), f"spec.ports[0].nodePort: {IN_RANGE}"),
        (SERVICE, port_of_nodes(healthCheckNodePort=80), f"spec.healthCheckNodePort: {IN_RANGE}"),
        (
            SERVICE,
            port_of_nodes(sessionAffinity="ClientIP", sessionAffinityConfig=AFFINITY),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be 1 to 86400",
        ),
        (
            HORIZONTAL_POD_AUTOSCALER,
            {"spec": {**OF_HPA, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3601}}}},
            f"{AT_DOWN}.stabilizationWindowSeconds: Invalid value: 3601: must be 0 to 3600",
        ),
        (
            HORIZONTAL_POD_AUTOSCALER,
            {"spec": {**OF_HPA, "behavior": {"scaleDown": {"policies": [{"value": 0, "periodSeconds": 60}]}}}},
            f"{AT_DOWN}.policies[0].value: Invalid value: 0: must be greater than or equal to 1",
        ),
        (
            POD,
            {"spec": {"containers": [{**CONTAINER, "lifecycle": {"preStop": {"sleep": {"seconds": -1}}}}]}},
            "spec.containers[0].lifecycle.preStop.sleep.seconds: Invalid value: -1: must be greater than or equal to 0",
        ),
    ],
)
def test_out_of_range_number_is_reported_with_its_range(kind: Kind, whole: dict[str, Any], message: str) -> None:
    assert [f"{problem.where}: {problem.what}" for problem in kube_problems(kind, whole)] == [message]


MIB = 1 << 20
AS_BASE64 = base64.b64encode(b"a" * MIB).decode()


@pytest.mark.parametrize(
    ("kind", "whole", "problems"),
    [
        (CONFIG_MAP, {"data": {"a": "a" * MIB}}, 0),
        (CONFIG_MAP, {"data": {"a": "ä" * (MIB // 2), "b": "a"}}, 1),
        (CONFIG_MAP, {"data": {"a": "a"}, "binaryData": {"b": AS_BASE64}}, 1),
        (SECRET, {"data": {"a": AS_BASE64}}, 0),
        (SECRET, {"data": {"a": AS_BASE64}, "stringData": {"b": "b"}}, 1),
        (SECRET, {"data": {"a": AS_BASE64}, "stringData": {"a": "b"}}, 0),
    ],
)
def test_config_map_and_secret_values_are_limited_to_1_mib(kind: Kind, whole: dict[str, Any], problems: int) -> None:
    assert [problem.where for problem in kube_problems(kind, whole)] == ["data"] * problems


def test_http_route_header_without_name_is_reported() -> None:
    route = {"spec": {"rules": [{"matches": [{"headers": [{"value": "x"}]}]}]}}
    assert [problem.where for problem in kube_problems(HTTP_ROUTE, route)] == [
        "spec.rules[0].matches[0].headers[0].name"
    ]


def test_pod_with_user_namespace_has_no_block_devices() -> None:
    container = {**CONTAINER, "volumeDevices": [{"name": "d", "devicePath": "/d"}]}
    problems = kube_problems(POD, {"spec": {"containers": [container], "hostUsers": False}})
    refused = [problem.what for problem in problems if problem.where == "spec.containers[0].volumeDevices"]
    assert refused == ["Forbidden: when `hostUsers` is false"]


@pytest.mark.parametrize(
    ("kind", "whole", "message"),
    [
        (POD, {"spec": {"containers": "x"}}, 'spec.containers: must be of type array, not a string "x"'),
        (POD, {"spec": {"containers": [{"resources": {"limits": {"cpu": "1Gx"}}}]}}, "cpu: must be a quantity"),
        (POD, {"spec": {"priority": 2**31}}, "spec.priority: must be a whole number of 32 bits, not a number"),
        (CONFIG_MAP, {"data": {"a": 5}}, "data.a: must be of type string, not a number"),
        (SECRET, {"data": {"a": "!"}}, "data.a: must be base64, not a string"),
        (
            LEASE,
            {"spec": {"renewTime": "soon"}},
            'spec.renewTime: must be a time such as 2026-01-02T03:04:05Z, not a string "soon"',
        ),
        (SERVING_SERVICE, {"metadata": {"name": 5}, "spec": 5}, "metadata.name: must be of type string, not a number"),
        (POD, {"spec": {"containers": [None]}}, "spec.containers[0]: must be of type object, not null"),
        (
            DEPLOYMENT,
            deployment(template={"spec": {"containers": [{"args": ["a", None]}]}}),
            "args[1]: must be of type",
        ),
        (POD, {"spec": {"containers": [{"resources": {"limits": {"cpu": None}}}]}}, "cpu: must be a value, not null"),
        (SERVICE, {"spec": {"ports": [None]}}, "spec.ports[0]: must be of type object, not null"),
        (INGRESS, {"spec": {"rules": [None]}}, "spec.rules[0]: must be of type object, not null"),
        (HTTP_ROUTE, {"spec": {"rules": ["x"]}}, 'spec.rules[0]: must be of type object, not a string "x"'),
    ],
)
def test_field_of_wrong_type_is_reported(kind: Kind, whole: dict[str, Any], message: str) -> None:
    (problem,) = undecodable(kind, whole)
    assert message in f"{problem.where}: {problem.what}"


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (
            {"resources": {"limits": {"memory": "-1"}}},
            r"containers\[0\].resources.limits\[memory\]: Invalid value: \"-1\"",
        ),
        ({"securityContext": {"privileged": True}}, "securityContext.privileged: must not set the field"),
        ({"env": [{"name": "A=B"}]}, r"env\[0\].name: Invalid value"),
        ({"livenessProbe": {"exec": {"command": []}}}, "livenessProbe.exec.command: Required value"),
        ({"readinessProbe": {"httpGet": {"scheme": "FTP"}}}, 'httpGet.scheme: Unsupported value: "FTP"'),
        ({"securityContext": {"runAsNonRoot": "yes"}}, "runAsNonRoot: must be of type boolean"),
    ],
)
def test_invalid_pod_template_is_rejected_on_single_machine(container: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        admit(SERVING_SERVICE, service(**container), is_one_machine=True)
    assert admit(SERVING_SERVICE, service(**container))


def test_probes_without_port_are_admitted() -> None:
    probes = {"readinessProbe": {"httpGet": {"path": "/"}}, "livenessProbe": {"tcpSocket": {"port": 0}}}
    assert admit(SERVING_SERVICE, service(**probes), is_one_machine=True)


def test_readiness_probe_scheme_is_case_insensitive() -> None:
    probe = {"httpGet": {"scheme": "http"}}
    assert admit(SERVING_SERVICE, service(readinessProbe=probe), is_one_machine=True)
    with pytest.raises(Invalid, match=r"livenessProbe.httpGet.scheme: Unsupported value"):
        admit(SERVING_SERVICE, service(livenessProbe=probe), is_one_machine=True)


def test_system_writes_are_checked_only_for_pods() -> None:
    bad = {"metadata": {"name": "a"}, "data": {"a b": "c"}}
    assert admit(CONFIG_MAP, bad, is_one_machine=True) == bad
    with acting_as("admin", manager="kubectl"), pytest.raises(Invalid, match=r"data\[a b\]"):
        admit(CONFIG_MAP, bad, is_one_machine=True)
    with pytest.raises(Invalid, match="containers: Required"):
        admit(POD, {"metadata": {"name": "a"}, "spec": {}}, is_one_machine=True)


def test_unchanged_spec_is_not_checked_again() -> None:
    spec: dict[str, Any] = {}
    old = {"metadata": {"name": "a"}, "spec": spec}
    new = {"metadata": {"name": "a", "labels": {"b": "c"}}, "spec": spec}
    assert admit(POD, new, old, is_one_machine=True) == new


AT_PATH = "spec.rules[0].http.paths[0]"


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ({}, []),
        ({"pathType": "prefix"}, [f"{AT_PATH}.pathType: Unsupported value"]),
        ({"path": "api"}, [f"{AT_PATH}.path: Invalid value: must be an absolute path"]),
        ({"backend": {"service": {"name": "api"}}}, [f"{AT_PATH}.backend.service.port: Required value"]),
        ({"backend": {"serviceName": "api", "servicePort": 80}}, [f"{AT_PATH}.backend: Required value"]),
    ],
)
def test_ingress_path_problems_are_reported(path: dict[str, Any], messages: list[str]) -> None:
    backend = {"service": {"name": "api", "port": {"number": 80}}}
    rule = {
        "host": "*.example.com",
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend, **path}]},
    }
    problems = [f"{problem.where}: {problem.what}" for problem in kube_problems(INGRESS, {"spec": {"rules": [rule]}})]
    assert [problem[: len(text)] for problem, text in zip(problems, messages, strict=True)] == messages
