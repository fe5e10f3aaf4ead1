"""Objects made for a cluster pass a server's rules between fields, and the rules can fail."""

import copy
from typing import Any

import pytest

from serving.controller.revisions.deployment import desired_deployment, desired_private_service
from serving.controller.revisions.hpa import hpa_writes
from serving.controller.revisions.public import PublicService, public_writes
from serving.controller.revisions.sidecar import Sidecar
from serving.core.model.event import About, EventText, new_event
from serving.core.model.objects import Object
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.sidecar import SidecarSettings
from serving.net.cluster.port import Create
from serving.tools.cli.client.tree import InstallOptions, objects_of, tree_folder
from tests.unit.config.server_rules import objections
from tests.unit.controller.builders import a_revision

SIDECAR = Sidecar(
    settings=SidecarSettings(stats_audience="serving-stats"),
    image="registry.example/serving:1",
    stats_url="ws://autoscaler:6081/stats",
    secret_of=lambda namespace, uid: f"{namespace}/{uid}",
    token_of=lambda namespace, name: f"{namespace}/{name}",
)
HPA = {"autoscaling.knative.dev/class": "hpa.autoscaling.knative.dev", "autoscaling.knative.dev/window": "1h"}
NAMES = ("a", "hello", "n" * 63)
UID = "11111111-2222-4333-8444-555555555555"
TIME = "2026-11-21T04:30:00Z"

POD = "spec template spec"
SLICE: Object = {
    "kind": "EndpointSlice",
    "metadata": {"name": "s"},
    "addressType": "IPv4",
    "endpoints": [{"addresses": ["10.0.0.1"]}],
    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
}
LEASE: Object = {"kind": "Lease", "metadata": {"name": "l"}, "spec": {"renewTime": "2026-11-21T04:30:00.123456Z"}}
SERVICE: Object = {"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"name": "http", "port": 80}]}}
SCALER: Object = {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": {"maxReplicas": 3}}
RUNNING: Object = {
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "one", "image": "i"}]},
    "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [{"name": "one"}]},
}


def revision(name: str = "hello", **template: Any) -> Object:  # noqa: ANN401 - JSON
    made = a_revision(name, **template)
    return {**made, "metadata": {**made["metadata"], "uid": UID}}


def deployment(name: str = "hello") -> Object:
    return desired_deployment(revision(name), replica_count=1, progress_deadline_s=600, sidecar=SIDECAR)


def event() -> Object:
    of = About(api_version="v1", kind="Pod", namespace="default", name="p")
    return new_event(of, EventText(reason="Told", message="it"), suffix="a", component="test", now=TIME)


@pytest.mark.parametrize(
    "one", objects_of(tree_folder(), InstallOptions()), ids=lambda one: f"{one['kind']}-{len(one)}"
)
def test_what_config_installs_passes(one: Object) -> None:
    assert objections(one) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_beneath_a_revision_passes_whatever_its_name(name: str) -> None:
    public = public_writes(revision(name), PublicService(service=None, slices=(), activators={}))
    scaled = hpa_writes(revision(name, metadata={"annotations": HPA}), None, AutoscalerSettings())
    made = [write.body for write in (*public, *scaled) if isinstance(write, Create)]
    assert {one["kind"] for one in made} == {"Service", "HorizontalPodAutoscaler"}
    for one in (deployment(name), desired_private_service(revision(name)), *made):
        assert objections(dict(one)) == []


def test_a_reported_value_passes() -> None:
    assert objections(event()) == []


def changed(one: Object, path: str, value: object) -> Object:
    made = copy.deepcopy(one)
    place: Any = made
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(" ")]
    for step in steps:
        place = place[step]
    place[last] = value
    return made


BROKEN = {
    "a name": (SERVICE, "metadata name", "Upper", "metadata.name"),
    "a Service's name": (SERVICE, "metadata name", "with.dot", "metadata.name"),
    "a label": (SERVICE, "metadata labels", {"a": "x" * 64}, "metadata.labels.a"),
    "a label's key": (SERVICE, "metadata labels", {"a/b/c": ""}, "metadata.labels"),
    "annotations": (SERVICE, "metadata annotations", {"a": "x" * 2**18}, "annotations: too long"),
    "an owner": (SERVICE, "metadata ownerReferences", [{"kind": "Pod"}], "ownerReferences[0]"),
    "two controllers": (
        SERVICE,
        "metadata ownerReferences",
        [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}] * 2,
        "two controllers",
    ),
    "a selector": (deployment(), "spec selector", {"matchLabels": {"no": "such"}}, "spec.selector"),
    "replicas": (deployment(), "spec replicas", -1, "spec.replicas"),
    "a deadline": (deployment(), "spec progressDeadlineSeconds", 0, "spec.progressDeadlineSeconds"),
    "a rollout": (
        deployment(),
        "spec strategy rollingUpdate",
        {"maxUnavailable": 0, "maxSurge": 0},
        "both are 0",
    ),
    "no containers": (deployment(), f"{POD} containers", [], "containers: none"),
    "a grace": (deployment(), f"{POD} terminationGracePeriodSeconds", -1, "negative"),
    "an image": (deployment(), f"{POD} containers 1 image", "", "image: missing"),
    "a container": (deployment(), f"{POD} containers 1 name", "a.b", "not a DNS label"),
    "two of a name": (deployment(), f"{POD} containers 1 name", "queue-proxy", "twice"),
    "a variable": (deployment(), f"{POD} containers 1 env 0 name", "", "env"),
    "a port": (deployment(), f"{POD} containers 1 ports 0 containerPort", 0, "ports"),
    "a port's name": (deployment(), f"{POD} containers 1 ports 0 name", "longer-than-fifteen", "ports"),
    "a mount": (deployment(), f"{POD} containers 0 volumeMounts 0 name", "none", "volumeMounts"),
    "a volume": (deployment(), f"{POD} volumes 0 emptyDir", {}, "exactly one source"),
    "a volume's name": (deployment(), f"{POD} volumes 0 name", "a.b", "not a DNS label"),
    "a token": (
        deployment(),
        f"{POD} volumes 0 projected sources 0 serviceAccountToken expirationSeconds",
        60,
        "expirationSeconds",
    ),
    "a readiness probe": (
        deployment(),
        f"{POD} containers 0 readinessProbe terminationGracePeriodSeconds",
        5,
        "not for readiness",
    ),
    "a liveness probe": (
        deployment(),
        f"{POD} containers 1 livenessProbe",
        {"httpGet": {"port": 80}, "successThreshold": 2},
        "must be 1",
    ),
    "a probe's period": (deployment(), f"{POD} containers 0 readinessProbe periodSeconds", -1, "negative"),
    "a probe of nothing": (deployment(), f"{POD} containers 1 startupProbe", {}, "not exactly one handler"),
    "a probe's port": (deployment(), f"{POD} containers 1 startupProbe", {"tcpSocket": {}}, "tcpSocket.port"),
    "a request": (
        deployment(),
        f"{POD} containers 1 resources",
        {"requests": {"cpu": "2"}, "limits": {"cpu": "500m"}},
        "above the limit",
    ),
    "no ports": (SERVICE, "spec ports", [], "spec.ports: none"),
    "ports without names": (SERVICE, "spec ports", [{"port": 1}, {"port": 2}], "without names"),
    "a Service's port": (SERVICE, "spec ports 0 port", 0, "spec.ports"),
    "a protocol": (SERVICE, "spec ports 0 protocol", "HTTP", "spec.ports"),
    "a port of a Service": (SERVICE, "spec ports 0 name", "a.b", "spec.ports"),
    "an application's protocol": (SERVICE, "spec ports 0 appProtocol", "a b", "appProtocol"),
    "headless": (SERVICE, "spec", {"clusterIP": "None", "type": "NodePort"}, "of another type"),
    "a family": (SLICE, "addressType", "IP", "addressType"),
    "an address": (SLICE, "endpoints 0 addresses", ["fd00::1"], "endpoints: fd00::1"),
    "no address": (SLICE, "endpoints 0 addresses", [], "0 addresses"),
    "a host": (SLICE, "endpoints 0 addresses", ["host"], "endpoints: host"),
    "endpoints": (SLICE, "endpoints", [{"addresses": ["10.0.0.1"]}] * 1001, "endpoints: 1001"),
    "a slice's port": (SLICE, "ports", [{"name": "http", "port": 80}], "without a protocol"),
    "a namespace": (event(), "involvedObject namespace", "other", "involvedObject.namespace"),
    "a time": (event(), "lastTimestamp", "now", "lastTimestamp"),
    "a new Event's": (event(), "eventTime", TIME, "eventTime"),
    "a MicroTime": (LEASE, "spec renewTime", TIME, "no MicroTime"),
    "a duration": (LEASE, "spec leaseDurationSeconds", 0, "spec: "),
    "a holder": (LEASE, "spec preferredHolder", "me", "needs a strategy"),
    "a scaler": (SCALER, "spec minReplicas", 0, "0 to 3"),
    "a window": (SCALER, "spec behavior", {"scaleUp": {"stabilizationWindowSeconds": 3601}}, "scaleUp"),
    "a pod's address": (RUNNING, "status podIPs 0 ip", "nowhere", "status.podIPs"),
    "a pod's first address": (RUNNING, "status podIP", "10.0.0.2", "not the first"),
    "a status of nobody": (RUNNING, "status containerStatuses 0 name", "two", "containerStatuses"),
}


@pytest.mark.parametrize(("one", "path", "value", "said"), BROKEN.values(), ids=BROKEN)
def test_what_a_server_would_refuse_is_seen(one: Object, path: str, value: object, said: str) -> None:
    assert objections(one) == []
    assert [fault for fault in objections(changed(one, path, value)) if said in fault]
