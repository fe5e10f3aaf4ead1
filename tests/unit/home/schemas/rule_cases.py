"""A table of objects, most of which break a rule of their definition.

An object is a small change to one that keeps all rules. ``rule_answers.json`` holds what a kube-apiserver answers to each;
the unit tests ask admission for the same, and the conformance suite asks every server.
"""

from typing import Any

from serving.home.schemas.schema import deep_copy
from serving.net.cluster.kinds import (
    CONFIGURATION,
    DOMAIN_MAPPING,
    REVISION,
    ROUTE,
    SCALING_POLICY,
    SERVING_SERVICE,
    Kind,
)

Json = dict[str, Any]
# Name, kind, the object, and the one before it or None.
Case = tuple[str, Kind, Json, Json | None]

_PORT = {"containerPort": 8080}
_TCP_PORT = {"containerPort": 5432, "name": "tcp-5432"}
_K_REVISION = {"name": "K_REVISION", "value": "x"}
_UP = {"usagePercent": 70}


def service(*, name: str = "hello", template: Json | None = None, pod: Json | None = None, **spec: object) -> Json:
    """A Service with one container; ``pod`` and ``template`` are merged into their places."""
    whole = {"metadata": {}, "spec": {"containers": [container()]} | (pod or {})} | (template or {})
    traffic = [{"latestRevision": True, "percent": 100}]
    return {"metadata": {"name": name}, "spec": {"template": whole, "traffic": traffic} | spec}


def configuration(**template: object) -> Json:
    """A Configuration with one container."""
    whole = {"spec": {"containers": [container()]}} | template
    return {"metadata": {"name": "hello"}, "spec": {"template": whole}}


def revision(**spec: object) -> Json:
    """An active revision with one container."""
    whole = {"containers": [container()], "servingState": "Active", "timeoutSeconds": 300}
    return {"metadata": {"name": "hello-00001"}, "spec": whole | spec}


def route(*targets: Json, name: str = "hello") -> Json:
    """A Route to these targets."""
    return {"metadata": {"name": name}, "spec": {"traffic": list(targets)}}


def policy(**spec: object) -> Json:
    """A ScalingPolicy."""
    return {"metadata": {"name": "hello"}, "spec": {"targetRef": target()} | spec}


def mapping(name: str = "shop.example.com", **ref: str) -> Json:
    """A DomainMapping in the namespace "default"."""
    whole = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"} | ref
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"ref": whole}}


def target(**fields: str) -> Json:
    """The target of a policy."""
    return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"} | fields


def container(**fields: object) -> Json:
    """A minimal container."""
    return {"image": "gcr.io/x/hello", "name": "user-container"} | fields


def _pod_cases(rule: str, *, breaking: list[Json], holding: list[Json]) -> list[Case]:
    """The same pods in a Service and in a Revision."""
    cases: list[Case] = []
    for pods, said in ((breaking, "breaks"), (holding, "holds")):
        for index, pod in enumerate(pods):
            name = f"{rule}: {said} {index}"
            cases.append((f"{name} in a service", SERVING_SERVICE, service(pod=pod), None))
            cases.append((f"{name} in a revision", REVISION, revision(**pod), None))
    return cases


def _containers_cases(rule: str, *, breaking: list[Json], holding: list[Json]) -> list[Case]:
    """One container each with these fields."""

    def pods(fields: list[Json]) -> list[Json]:
        return [{"containers": [container(**one)]} for one in fields]

    return _pod_cases(rule, breaking=pods(breaking), holding=pods(holding))


def _two(first: Json, second: Json) -> Json:
    return {"containers": [container(**{"name": "a", **first}), container(**{"name": "b", **second})]}


def _mount(*paths: str, name: str = "v") -> Json:
    return {"volumeMounts": [{"name": name, "mountPath": path} for path in paths]}


def _mounted(*paths: str) -> Json:
    return {"containers": [container(**_mount(*paths))], "volumes": [{"name": "v", "emptyDir": {}}]}


def _changed(old: Json, **spec: object) -> Json:
    new: Json = deep_copy(old)
    new["spec"] |= spec
    return new


_NAMED = service(template={"metadata": {"name": "hello-a"}})
_OTHER_POD = {"spec": {"containers": [container(image="other")]}}

_POD_CASES: list[Case] = [
    *_pod_cases("has-containers", breaking=[{"containers": []}], holding=[{}]),
    *_pod_cases(
        "one-container-serves",
        breaking=[_two({}, {}), _two({"ports": [_PORT]}, {"ports": [_PORT]}), _two({"ports": []}, {})],
        holding=[_two({"ports": [_PORT]}, {}), {"containers": [container(ports=[_PORT])]}],
    ),
    *_pod_cases(
        "container-names-differ",
        breaking=[_two({"name": "a", "ports": [_PORT]}, {"name": "a"})],
        holding=[
            _two({"name": "a", "ports": [_PORT]}, {"name": "b"}),
            _two({"name": "", "ports": [_PORT]}, {"name": ""}),
        ],
    ),
    *_containers_cases("has-image", breaking=[{"image": ""}], holding=[{"image": "x"}]),
    ("has-containers: no spec", SERVING_SERVICE, {"metadata": {"name": "a"}}, None),
    (
        "has-containers: no pod",
        CONFIGURATION,
        {"metadata": {"name": "a"}, "spec": {"template": {}}},
        None,
    ),
    ("has-containers: no list", REVISION, {"metadata": {"name": "a"}, "spec": {}}, None),
    ("has-image: none at all", REVISION, revision(containers=[{"name": "a"}]), None),
    *_containers_cases("one-port", breaking=[{"ports": [_PORT, _PORT]}], holding=[{"ports": []}, {"ports": [_PORT]}]),
    *_containers_cases(
        "tcp-ports",
        breaking=[
            {"ports": [_TCP_PORT]},
            {"ports": [_PORT, _TCP_PORT, _PORT]},
            {"ports": [_PORT, {**_TCP_PORT, "name": "tcp-a-long-name-x"}]},
            {"ports": [_PORT, {**_TCP_PORT, "name": "tcp-"}]},
        ],
        holding=[{"ports": [_PORT, _TCP_PORT, {"containerPort": 1883, "name": "tcp-mqtt"}]}],
    ),
    *_containers_cases(
        "port-is-usable",
        breaking=[
            {"ports": [{"containerPort": -1}]},
            {"ports": [{"containerPort": 65536}]},
            {"ports": [{"containerPort": 8012}]},
            {"ports": [{"containerPort": 9091}]},
            {"ports": [{"containerPort": 80, "name": "web"}]},
            {"ports": [{"containerPort": 80, "protocol": "UDP"}]},
        ],
        holding=[
            {"ports": [{}]},
            {"ports": [{"containerPort": 0}]},
            {"ports": [{"containerPort": 65535, "name": "h2c", "protocol": "TCP"}]},
            {"ports": [{"containerPort": 1, "name": ""}]},
        ],
    ),
    *_containers_cases(
        "variable-is-free",
        breaking=[
            {"env": [{"name": "PORT"}]},
            {"env": [{"name": "PORT"}], "ports": [_PORT]},
            {"env": [{"name": "K_SERVICE", "value": "x"}]},
            {"env": [{"value": "x"}]},
            {"env": [{"name": "", "value": "x"}]},
        ],
        holding=[{"env": [{"name": "A", "value": "b"}]}, {"env": []}, {"env": [{"name": "PORTS"}]}],
    ),
    *_pod_cases(
        "variable-of-a-sidecar",
        breaking=[
            _two({"ports": [_PORT], "env": [{"name": "PORT"}]}, {}),
            _two({"ports": [_PORT]}, {"env": [_K_REVISION]}),
        ],
        holding=[_two({"ports": [_PORT]}, {"env": [{"name": "PORT", "value": "9000"}]})],
    ),
    *_containers_cases(
        "container-name-is-a-label",
        breaking=[{"name": "&x"}, {"name": "A"}, {"name": "a.b"}, {"name": "a" * 64}, {"name": "-a"}],
        holding=[{"name": "a-1"}, {"name": "1a"}, {"name": "a" * 63}],
    ),
    *_containers_cases(
        "user-is-a-number",
        breaking=[
            {"securityContext": {"runAsUser": -10}},
            {"securityContext": {"runAsUser": 2147483648}},
            {"securityContext": {"runAsGroup": -1}},
        ],
        holding=[{"securityContext": {"runAsUser": 0, "runAsGroup": 2147483647, "runAsNonRoot": False}}],
    ),
    *_pod_cases(
        "user-of-the-pod-is-a-number",
        breaking=[{"securityContext": {"runAsUser": -10}}, {"securityContext": {"fsGroup": -1, "runAsGroup": -2}}],
        holding=[{"securityContext": {"runAsUser": 1000, "fsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}}],
    ),
    *_pod_cases(
        "account-is-a-name",
        breaking=[{"serviceAccountName": "foo@bar.baz"}, {"serviceAccountName": "a..b"}, {"serviceAccountName": "A"}],
        holding=[
            {"serviceAccountName": "foo.bar-baz"},
            {"serviceAccountName": ""},
            {"serviceAccountName": "shop@project.iam.gserviceaccount.com"},
        ],
    ),
    *_containers_cases(
        "one-handler",
        breaking=[
            {"readinessProbe": {"httpGet": {}, "tcpSocket": {}}},
            {"livenessProbe": {"exec": {}, "grpc": {}}},
            {"startupProbe": {"httpGet": {}, "exec": {}, "tcpSocket": {}}},
        ],
        holding=[{"readinessProbe": {"httpGet": {}}, "livenessProbe": {"tcpSocket": {}}}, {"startupProbe": {}}],
    ),
    *_pod_cases(
        "mounts-differ",
        breaking=[_mounted("/a", "/a"), _mounted("a"), _mounted("/"), _mounted("/var/log")],
        holding=[_mounted("/a", "/b"), _mounted("/var/log/x")],
    ),
    *_pod_cases(
        "volumes-belong",
        breaking=[
            {"containers": [container(**_mount("/a"))]},
            {"containers": [container(**_mount("/a", name="w"))], "volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"containers": [container(**_mount("/a"))], "volumes": [{"name": "v", "emptyDir": {}}] * 2},
            {"volumes": [{"name": "v", "emptyDir": {}}], "initContainers": []},
        ],
        holding=[
            _mounted("/a"),
            {"volumes": []},
            {"volumes": [{"name": "v", "emptyDir": {}}], "initContainers": [{"name": "i"}]},
        ],
    ),
    *_pod_cases(
        "one-source",
        breaking=[
            {"containers": [container(**_mount("/a"))], "volumes": [{"name": "v"}]},
            {"containers": [container(**_mount("/a"))], "volumes": [{"name": "v", "secret": {}, "configMap": {}}]},
        ],
        holding=[{"containers": [container(**_mount("/a"))], "volumes": [{"name": "v", "secret": {}}]}],
    ),
    *_pod_cases(
        "host-is-left-alone",
        breaking=[{"hostNetwork": True}, {"hostIPC": True}, {"hostPID": True}],
        holding=[{"hostNetwork": False}],
    ),
    *_pod_cases(
        "limits-hold",
        breaking=[
            {"containerConcurrency": 1001},
            {"containerConcurrency": -1},
            {"timeoutSeconds": 3601},
            {"timeoutSeconds": -1},
            {"timeoutSeconds": 10, "responseStartTimeoutSeconds": 11},
            {"timeoutSeconds": 10, "idleTimeoutSeconds": 11},
            {"idleTimeoutSeconds": 301},
            {"timeoutSeconds": 0, "idleTimeoutSeconds": 301},
            {"responseStartTimeoutSeconds": -1},
        ],
        holding=[
            {"containerConcurrency": 1000, "timeoutSeconds": 3600, "idleTimeoutSeconds": 3600},
            {"timeoutSeconds": 0, "responseStartTimeoutSeconds": 0},
            {"timeoutSeconds": 0, "responseStartTimeoutSeconds": 300, "idleTimeoutSeconds": 300},
        ],
    ),
]

_TRAFFIC_CASES: list[Case] = [
    ("all to the latest", SERVING_SERVICE, service(), None),
    ("no list means all to the latest", SERVING_SERVICE, service(traffic=[]), None),
    ("a route without a list", ROUTE, route(), None),
    ("90 percent", SERVING_SERVICE, service(traffic=[{"percent": 90}]), None),
    ("no traffic", ROUTE, {"metadata": {"name": "r"}, "spec": {}}, None),
    (
        "a split",
        ROUTE,
        route(
            {"revisionName": "a", "percent": 90, "tag": "x"},
            {"revisionName": "b", "percent": 10},
            {"revisionName": "c"},
        ),
        None,
    ),
    (
        "a tag twice",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "tag": "a"}, {"revisionName": "x", "tag": "a"}]),
        None,
    ),
    (
        "no tag twice",
        SERVING_SERVICE,
        service(traffic=[{"percent": 50, "tag": ""}, {"percent": 50, "tag": ""}]),
        None,
    ),
    (
        "above all",
        SERVING_SERVICE,
        service(traffic=[{"percent": 101}, {"percent": -1}]),
        None,
    ),
    (
        "latest and named",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "latestRevision": True, "revisionName": "a"}]),
        None,
    ),
    (
        "neither latest nor named",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "latestRevision": False}]),
        None,
    ),
    (
        "named, and said so",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "latestRevision": False, "revisionName": "a"}]),
        None,
    ),
    (
        "a configuration in a service",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "configurationName": "a"}]),
        None,
    ),
    ("a configuration in a route", ROUTE, route({"percent": 100, "configurationName": "a"}), None),
    ("no target in a route", ROUTE, route({"percent": 100}), None),
    (
        "two targets in one",
        ROUTE,
        route({"percent": 100, "configurationName": "a", "revisionName": "b"}),
        None,
    ),
    ("a tag in capitals", SERVING_SERVICE, service(traffic=[{"percent": 100, "tag": "A"}]), None),
    ("a tag too long", SERVING_SERVICE, service(traffic=[{"percent": 100, "tag": "a" * 64}]), None),
    ("a url", SERVING_SERVICE, service(traffic=[{"percent": 100, "url": "http://x"}]), None),
]

_NAME_CASES: list[Case] = [
    ("a name with a dot", SERVING_SERVICE, service(name="a.b"), None),
    (
        "a name that begins with a digit",
        ROUTE,
        route({"revisionName": "a", "percent": 100}, name="1a"),
        None,
    ),
    ("a name too long", SERVING_SERVICE, service(name="a" * 64), None),
    ("the longest name", SERVING_SERVICE, service(name="a" * 63), None),
    ("its own revision name", SERVING_SERVICE, _NAMED, None),
    (
        "another's revision name",
        CONFIGURATION,
        configuration(metadata={"name": "other-a"}),
        None,
    ),
    (
        "a revision name in capitals",
        CONFIGURATION,
        configuration(metadata={"name": "hello-A"}),
        None,
    ),
]

_CHANGE_CASES: list[Case] = [
    (
        "a named template, changed",
        SERVING_SERVICE,
        service(template={"metadata": {"name": "hello-a"}} | _OTHER_POD),
        _NAMED,
    ),
    (
        "a named template, changed with its name",
        SERVING_SERVICE,
        service(template={"metadata": {"name": "hello-b"}} | _OTHER_POD),
        _NAMED,
    ),
    ("a named template, unchanged", SERVING_SERVICE, _NAMED, _NAMED),
    ("an unnamed template, changed", SERVING_SERVICE, service(template=_OTHER_POD), service()),
    ("a template named later", SERVING_SERVICE, _NAMED, service(template=_OTHER_POD)),
    ("a revision's state", REVISION, _changed(revision(), servingState="Reserve"), revision()),
    ("a revision's timeout", REVISION, revision(timeoutSeconds=9), revision()),
    ("a revision's image", REVISION, revision(containers=[container(image="z")]), revision()),
    ("a field more", REVISION, revision(idleTimeoutSeconds=9), revision()),
    ("a field less", REVISION, revision(), revision(idleTimeoutSeconds=9)),
    (
        "a retired revision that comes back",
        REVISION,
        revision(),
        revision(servingState="Retired"),
    ),
    ("a revision that retires", REVISION, revision(servingState="Retired"), revision()),
]

_POLICY_CASES: list[Case] = [
    ("a policy", SCALING_POLICY, policy(min=1, max=2, up={"triggers": [_UP]}), None),
    ("min above max", SCALING_POLICY, policy(min=3, max=2), None),
    ("min without max", SCALING_POLICY, policy(min=3, max=0), None),
    (
        "a limit below the usage",
        SCALING_POLICY,
        policy(up={"triggers": [{**_UP, "limitPercent": 60}]}),
        None,
    ),
    (
        "a usage above the default limit",
        SCALING_POLICY,
        policy(up={"triggers": [{"usagePercent": 95}]}),
        None,
    ),
    (
        "a limit on the way down",
        SCALING_POLICY,
        policy(down={"triggers": [{"usagePercent": 30, "limitPercent": 90}]}),
        None,
    ),
    ("an unknown trigger", SCALING_POLICY, policy(up={"triggers": [{**_UP, "type": "x"}]}), None),
    ("a field that is not ours", SCALING_POLICY, policy(other=1), None),
    ("a policy for a service", SCALING_POLICY, policy(targetRef=target()), None),
    ("a policy for a revision", SCALING_POLICY, policy(targetRef=target(kind="Revision")), None),
    *(
        (f"a target with {fields}", SCALING_POLICY, policy(targetRef=target(**fields)), None)
        for fields in ({"kind": "Deployment"}, {"kind": ""}, {"apiVersion": "v1"}, {"apiVersion": ""}, {"name": ""})
    ),
]

_DOMAIN_CASES: list[Case] = [
    ("a mapping", DOMAIN_MAPPING, mapping(), None),
    ("a mapping that names its own namespace", DOMAIN_MAPPING, mapping(namespace="default"), None),
    ("a mapping with a group", DOMAIN_MAPPING, mapping(apiVersion="", group="serving.knative.dev"), None),
    *(
        (f"a mapping named {name!r}", DOMAIN_MAPPING, mapping(name), None)
        for name in ("shop", "shop.example.com.", "-shop.example.com", "Shop.example.com", "a..b", "*.example.com")
    ),
    (
        "a mapping below the cluster domain",
        DOMAIN_MAPPING,
        mapping("hello.default.svc.cluster.local"),
        None,
    ),
    ("a mapping to no name", DOMAIN_MAPPING, mapping(name="a.b", kind=""), None),
    ("a mapping without a group", DOMAIN_MAPPING, mapping(apiVersion=""), None),
    (
        "a mapping to another namespace",
        DOMAIN_MAPPING,
        mapping(namespace="other"),
        None,
    ),
]

CASES: list[Case] = [*_NAME_CASES, *_CHANGE_CASES, *_POD_CASES, *_TRAFFIC_CASES, *_POLICY_CASES, *_DOMAIN_CASES]
