"""One table of objects for both halves of each rule: which rules an object breaks, by name.

An object is a small change to one that holds all rules. ``test_rules.py`` asks Python and CEL the same.
"""

from typing import Any

from serving.cluster.kinds import CONFIGURATION, DOMAIN_MAPPING, REVISION, ROUTE, SCALING_POLICY, SERVING_SERVICE, Kind
from serving.cluster.schema import deep_copy

__all__ = ["CASES", "Case", "revision", "service"]

Json = dict[str, Any]
# Name, kind, the object, the one before it or None, and the rules it breaks.
Case = tuple[str, Kind, Json, Json | None, set[str]]


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
    return {"metadata": {"name": "hello"}, "spec": spec}


def mapping(name: str = "shop.example.com", **ref: str) -> Json:
    """A DomainMapping in the namespace "default"."""
    whole = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"} | ref
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"ref": whole}}


def target(**fields: str) -> Json:
    """What a policy is for."""
    return {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello"} | fields


def container(**fields: object) -> Json:
    """A container that needs nothing else."""
    return {"image": "gcr.io/x/hello", "name": "user-container"} | fields


def _pod_cases(rule: str, *, breaking: list[Json], holding: list[Json]) -> list[Case]:
    """The same pods in a Service and in a Revision."""
    cases: list[Case] = []
    for pods, broken in ((breaking, {rule}), (holding, set())):
        for index, pod in enumerate(pods):
            name = f"{rule}: {'breaks' if broken else 'holds'} {index}"
            cases.append((f"{name} in a service", SERVING_SERVICE, service(pod=pod), None, broken))
            cases.append((f"{name} in a revision", REVISION, revision(**pod), None, broken))
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


_PORT = {"containerPort": 8080}
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
    ("has-containers: no spec", SERVING_SERVICE, {"metadata": {"name": "a"}}, None, {"has-containers"}),
    (
        "has-containers: no pod",
        CONFIGURATION,
        {"metadata": {"name": "a"}, "spec": {"template": {}}},
        None,
        {"has-containers"},
    ),
    ("has-containers: no list", REVISION, {"metadata": {"name": "a"}, "spec": {}}, None, {"has-containers"}),
    ("has-image: none at all", REVISION, revision(containers=[{"name": "a"}]), None, {"has-image"}),
    *_containers_cases("one-port", breaking=[{"ports": [_PORT, _PORT]}], holding=[{"ports": []}, {"ports": [_PORT]}]),
    *_containers_cases(
        "port-is-usable",
        breaking=[
            {"ports": [{"containerPort": 0}]},
            {"ports": [{"containerPort": 65536}]},
            {"ports": [{"containerPort": 8012}]},
            {"ports": [{"containerPort": 9091}]},
            {"ports": [{"containerPort": 80, "name": "web"}]},
            {"ports": [{"containerPort": 80, "protocol": "UDP"}]},
        ],
        holding=[
            {"ports": [{}]},
            {"ports": [{"containerPort": 65535, "name": "h2c", "protocol": "TCP"}]},
            {"ports": [{"containerPort": 1, "name": ""}]},
        ],
    ),
    *_containers_cases(
        "variable-is-free",
        breaking=[
            {"env": [{"name": "PORT"}]},
            {"env": [{"name": "K_SERVICE", "value": "x"}]},
            {"env": [{"value": "x"}]},
        ],
        holding=[{"env": [{"name": "A", "value": "b"}]}, {"env": []}, {"env": [{"name": "PORTS"}]}],
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
        ],
        holding=[
            {"containerConcurrency": 1000, "timeoutSeconds": 3600, "idleTimeoutSeconds": 3600},
            {"timeoutSeconds": 0, "responseStartTimeoutSeconds": 0},
        ],
    ),
]

_TRAFFIC_CASES: list[Case] = [
    ("all to the latest", SERVING_SERVICE, service(), None, set()),
    ("90 percent", SERVING_SERVICE, service(traffic=[{"percent": 90}]), None, {"traffic-sums-to-100"}),
    ("no traffic", ROUTE, {"metadata": {"name": "r"}, "spec": {}}, None, {"traffic-sums-to-100"}),
    (
        "a split",
        ROUTE,
        route(
            {"revisionName": "a", "percent": 90, "tag": "x"},
            {"revisionName": "b", "percent": 10},
            {"revisionName": "c"},
        ),
        None,
        set(),
    ),
    (
        "a tag twice",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "tag": "a"}, {"revisionName": "x", "tag": "a"}]),
        None,
        {"tags-differ"},
    ),
    (
        "no tag twice",
        SERVING_SERVICE,
        service(traffic=[{"percent": 50, "tag": ""}, {"percent": 50, "tag": ""}]),
        None,
        set(),
    ),
    (
        "above all",
        SERVING_SERVICE,
        service(traffic=[{"percent": 101}, {"percent": -1}]),
        None,
        {"percent-is-a-share"},
    ),
    (
        "latest and named",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "latestRevision": True, "revisionName": "a"}]),
        None,
        {"latest-agrees"},
    ),
    (
        "neither latest nor named",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "latestRevision": False}]),
        None,
        {"latest-agrees"},
    ),
    (
        "named, and said so",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "latestRevision": False, "revisionName": "a"}]),
        None,
        set(),
    ),
    (
        "a configuration in a service",
        SERVING_SERVICE,
        service(traffic=[{"percent": 100, "configurationName": "a"}]),
        None,
        {"no-configuration"},
    ),
    ("a configuration in a route", ROUTE, route({"percent": 100, "configurationName": "a"}), None, set()),
    ("no target in a route", ROUTE, route({"percent": 100}), None, {"one-target"}),
    (
        "two targets in one",
        ROUTE,
        route({"percent": 100, "configurationName": "a", "revisionName": "b"}),
        None,
        {"one-target"},
    ),
    ("a tag in capitals", SERVING_SERVICE, service(traffic=[{"percent": 100, "tag": "A"}]), None, {"tag-is-a-label"}),
    ("a tag too long", SERVING_SERVICE, service(traffic=[{"percent": 100, "tag": "a" * 64}]), None, {"tag-is-a-label"}),
    ("a url", SERVING_SERVICE, service(traffic=[{"percent": 100, "url": "http://x"}]), None, {"no-url"}),
]

_NAME_CASES: list[Case] = [
    ("a name with a dot", SERVING_SERVICE, service(name="a.b"), None, {"name-is-a-label"}),
    (
        "a name that begins with a digit",
        ROUTE,
        route({"revisionName": "a", "percent": 100}, name="1a"),
        None,
        {"name-is-a-label"},
    ),
    ("a name too long", SERVING_SERVICE, service(name="a" * 64), None, {"name-is-a-label"}),
    ("the longest name", SERVING_SERVICE, service(name="a" * 63), None, set()),
    ("its own revision name", SERVING_SERVICE, _NAMED, None, set()),
    (
        "another's revision name",
        CONFIGURATION,
        configuration(metadata={"name": "other-a"}),
        None,
        {"own-revision-name"},
    ),
    (
        "a revision name in capitals",
        CONFIGURATION,
        configuration(metadata={"name": "hello-A"}),
        None,
        {"own-revision-name"},
    ),
]

_CHANGE_CASES: list[Case] = [
    (
        "a named template, changed",
        SERVING_SERVICE,
        service(template={"metadata": {"name": "hello-a"}} | _OTHER_POD),
        _NAMED,
        {"own-revision-name-changes"},
    ),
    (
        "a named template, changed with its name",
        SERVING_SERVICE,
        service(template={"metadata": {"name": "hello-b"}} | _OTHER_POD),
        _NAMED,
        set(),
    ),
    ("a named template, unchanged", SERVING_SERVICE, _NAMED, _NAMED, set()),
    ("an unnamed template, changed", SERVING_SERVICE, service(template=_OTHER_POD), service(), set()),
    ("a template named later", SERVING_SERVICE, _NAMED, service(template=_OTHER_POD), set()),
    ("a revision's state", REVISION, _changed(revision(), servingState="Reserve"), revision(), set()),
    ("a revision's timeout", REVISION, revision(timeoutSeconds=9), revision(), {"revision-spec-stays"}),
    ("a revision's image", REVISION, revision(containers=[container(image="z")]), revision(), {"revision-spec-stays"}),
    ("a field more", REVISION, revision(idleTimeoutSeconds=9), revision(), {"revision-spec-stays"}),
    ("a field less", REVISION, revision(), revision(idleTimeoutSeconds=9), {"revision-spec-stays"}),
    (
        "a retired revision that comes back",
        REVISION,
        revision(),
        revision(servingState="Retired"),
        {"retired-stays"},
    ),
    ("a revision that retires", REVISION, revision(servingState="Retired"), revision(), set()),
]

_UP = {"usagePercent": 70}
_TARGET_RULES = {"target-can-be-scaled", "policy-is-usable"}
_POLICY_CASES: list[Case] = [
    ("a policy", SCALING_POLICY, policy(min=1, max=2, up={"triggers": [_UP]}), None, set()),
    ("min above max", SCALING_POLICY, policy(min=3, max=2), None, {"min-below-max", "policy-is-usable"}),
    ("min without max", SCALING_POLICY, policy(min=3, max=0), None, set()),
    (
        "a limit below the usage",
        SCALING_POLICY,
        policy(up={"triggers": [{**_UP, "limitPercent": 60}]}),
        None,
        {"up-limit-above-usage", "policy-is-usable"},
    ),
    (
        "a usage above the default limit",
        SCALING_POLICY,
        policy(up={"triggers": [{"usagePercent": 95}]}),
        None,
        {"up-limit-above-usage", "policy-is-usable"},
    ),
    (
        "a limit on the way down",
        SCALING_POLICY,
        policy(down={"triggers": [{"usagePercent": 30, "limitPercent": 90}]}),
        None,
        {"down-has-no-limit", "policy-is-usable"},
    ),
    ("an unknown trigger", SCALING_POLICY, policy(up={"triggers": [{**_UP, "type": "x"}]}), None, {"policy-is-usable"}),
    ("a field that is not ours", SCALING_POLICY, policy(other=1), None, {"policy-is-usable"}),
    ("a policy for a service", SCALING_POLICY, policy(targetRef=target()), None, set()),
    ("a policy for a revision", SCALING_POLICY, policy(targetRef=target(kind="Revision")), None, set()),
    *(
        (f"a target with {fields}", SCALING_POLICY, policy(targetRef=target(**fields)), None, _TARGET_RULES)
        for fields in ({"kind": "Deployment"}, {"kind": ""}, {"apiVersion": "v1"}, {"apiVersion": ""}, {"name": ""})
    ),
]

_DOMAIN_CASES: list[Case] = [
    ("a mapping", DOMAIN_MAPPING, mapping(), None, set()),
    ("a mapping that names its own namespace", DOMAIN_MAPPING, mapping(namespace="default"), None, set()),
    ("a mapping with a group", DOMAIN_MAPPING, mapping(apiVersion="", group="serving.knative.dev"), None, set()),
    *(
        (f"a mapping named {name!r}", DOMAIN_MAPPING, mapping(name), None, {"name-is-a-host"})
        for name in ("shop", "shop.example.com.", "-shop.example.com", "Shop.example.com", "a..b", "*.example.com")
    ),
    (
        "a mapping below the cluster domain",
        DOMAIN_MAPPING,
        mapping("hello.default.svc.cluster.local"),
        None,
        {"name-is-not-local"},
    ),
    ("a mapping to no name", DOMAIN_MAPPING, mapping(name="a.b", kind=""), None, {"ref-names-an-object"}),
    ("a mapping without a group", DOMAIN_MAPPING, mapping(apiVersion=""), None, {"ref-names-a-group"}),
    (
        "a mapping to another namespace",
        DOMAIN_MAPPING,
        mapping(namespace="other"),
        None,
        {"ref-stays-in-its-namespace"},
    ),
]

CASES: list[Case] = [*_NAME_CASES, *_CHANGE_CASES, *_POD_CASES, *_TRAFFIC_CASES, *_POLICY_CASES, *_DOMAIN_CASES]
