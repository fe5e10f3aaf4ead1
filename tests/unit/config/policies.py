"""Evaluate the admission policies of ``config/admission`` as a kube-apiserver does, with serving's CEL library.

``CASES`` are objects with the start of the expected message; serving's admission rejects the same objects with the
same messages.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from serving.core.model.objects import Object
from serving.home.schemas.validations import _extension
from serving.tools.cli.client.tree import tree_folder

# CEL functions of Kubernetes that the library does not have.
_FUNCTIONS = {
    "trim": str.strip,
    "join": lambda values, separator: separator.join(values),
    "lowerAscii": str.lower,
    "replace": str.replace,
}
_AUTOSCALING = "autoscaling.knative.dev"
_OWN = "autoscaling.serving.dev"
_VISIBILITY = "networking.knative.dev/visibility"


class _Variables(dict[str, Any]):
    """Policy variables; each may refer only to previous variables."""


@functools.cache
def policies(file: str) -> tuple[Object, ...]:
    """The validating policies of a file."""
    text = (tree_folder() / "admission" / f"{file}.yaml").read_text(encoding="utf-8")
    return tuple(resource for resource in yaml.safe_load_all(text) if resource["kind"] == "ValidatingAdmissionPolicy")


def refusals(
    file: str, new: Object, old: Object | None = None, *, params: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The messages with which the policies of a file reject an object."""
    plural = f"{new['kind'].lower()}s"
    for policy in policies(file):
        (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
        operation = "CREATE" if old is None else "UPDATE"
        if plural in rule["resources"] and operation in rule["operations"]:
            yield from _refusals(policy["spec"], new, old, dict(params or {}))


def _refusals(spec: Object, new: Object, old: Object | None, data: dict[str, str]) -> Iterator[str]:
    values: dict[str, Any] = {
        "object": new,
        "oldObject": old,
        "request": {"kind": {"kind": new["kind"]}},
        "params": {"data": data} if data else {},
        "variables": _Variables(),
    }
    if not all(evaluated(match_condition["expression"], values) for match_condition in spec["matchConditions"]):
        return
    for entry in spec["variables"]:
        values["variables"][entry["name"]] = evaluated(entry["expression"], values)
    for entry in spec["validations"]:
        if not evaluated(entry["expression"], values):
            yield str(evaluated(entry["messageExpression"], values))


def evaluated(expression: str, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """The value of an expression."""
    return _program(expression).execute(_extension().Context(dict(values), _FUNCTIONS))


@functools.cache
def _program(expression: str) -> Any:  # noqa: ANN401 - a foreign type
    return _extension().compile(expression)


def service(
    annotations: Mapping[str, str] | None = None, own: Mapping[str, str] | None = None, **pod: object
) -> Object:
    """A Service with annotations of its template, and ``own`` annotations."""
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "admitted", "generation": 1, "annotations": dict(own or {})},
        "spec": {
            "template": {
                "metadata": {"annotations": dict(annotations or {})},
                "spec": {"containers": [{"image": "x"}]} | pod,
            }
        },
    }


def _scaled(**annotations: str) -> Object:
    return service({f"{_AUTOSCALING}/{name.replace('_', '-')}": text for name, text in annotations.items()})


def _labelled(**labels: str) -> Object:
    body = service()
    return {**body, "metadata": {**body["metadata"], "labels": labels}}


CASES: dict[str, tuple[Object, str]] = {
    "nothing": (service(), ""),
    "valid annotations": (_scaled(window="1m", min_scale="1", max_scale="3", target="0.5", metric="rps"), ""),
    "camel case": (service({f"{_AUTOSCALING}/minScale": "2"}), ""),
    "a window below its range": (_scaled(window="5s"), "annotation autoscaling.knative.dev/window: '5s' is not right"),
    "a window of part of a second": (_scaled(window="6.5s"), "annotation autoscaling.knative.dev/window: '6.5s'"),
    "a window that is no duration": (
        _scaled(window="6"),
        "annotation autoscaling.knative.dev/window: '6' is not right",
    ),
    "a negative count": (_scaled(min_scale="-1"), "annotation autoscaling.knative.dev/min-scale: '-1' is not right"),
    "a count that is none": (_scaled(max_scale="many"), "annotation autoscaling.knative.dev/max-scale: 'many'"),
    "a number outside": (_scaled(target="0"), "annotation autoscaling.knative.dev/target: '0' is not right"),
    "unlimited": (_scaled(target_burst_capacity="-1"), ""),
    "a percentage outside": (
        _scaled(target_utilization_percentage="101"),
        "annotation autoscaling.knative.dev/target-ut",
    ),
    "no such choice": (service({f"{_OWN}/target": "best"}), "annotation autoscaling.serving.dev/target: 'best'"),
    "a policy of a file": (
        service({f"{_OWN}/policy": "a.py:B"}),
        "annotation autoscaling.serving.dev/policy: 'a.py:B'",
    ),
    "two spellings": (
        service({f"{_AUTOSCALING}/min-scale": "1", f"{_AUTOSCALING}/minScale": "2"}),
        "",
    ),
    "two problems": (
        _scaled(window="1s", target="0"),
        "[annotation autoscaling.knative.dev/window: '1s' is not right;",
    ),
    "least above most": (
        _scaled(min_scale="5", max_scale="3"),
        "annotation autoscaling.knative.dev/min-scale: 5 is above",
    ),
    "activation outside": (
        _scaled(activation_scale="9", max_scale="3"),
        "annotation autoscaling.knative.dev/activation-scale: 9 is outside min-scale and max-scale; expected from 2 to 3",
    ),
    "initial zero": (
        _scaled(initial_scale="0"),
        "annotation autoscaling.knative.dev/initial-scale: 0 while allow-zero",
    ),
    "a class of Knative's that is none": (
        service({f"{_AUTOSCALING}/class": "x.knative.dev"}),
        "annotation autoscaling.knative.dev/class: 'x.knative.dev' is not an autoscaler of Knative",
    ),
    "a class of others": (service({f"{_AUTOSCALING}/class": "x.example.com"}), ""),
    "no such metric": (_scaled(metric="heat"), "annotation autoscaling.knative.dev/metric: 'heat' is not right"),
    "any metric of an hpa": (
        service({f"{_AUTOSCALING}/class": "hpa.autoscaling.knative.dev", f"{_AUTOSCALING}/metric": "heat"}),
        "",
    ),
    "a gauge without a target": (
        _scaled(metric="gauge:jobs"),
        "annotation autoscaling.knative.dev/metric: gauge:jobs has no",
    ),
    "metrics that are none": (
        service({f"{_OWN}/metric": "heat=5"}),
        "annotation autoscaling.serving.dev/metric: 'heat=5'",
    ),
    "metrics beside a metric": (
        service({f"{_OWN}/metric": "rps=5", f"{_AUTOSCALING}/metric": "rps"}),
        "annotation autoscaling.serving.dev/metric: autoscaling.knative.dev/metric stands beside it",
    ),
    "a goal": (service({f"{_OWN}/slo": "p95 < 300ms"}), ""),
    "no goal": (service({f"{_OWN}/slo": "p40<1s"}), "annotation autoscaling.serving.dev/slo: 'p40<1s' is not right"),
    "a goal beside a learnt target": (
        service({f"{_OWN}/slo": "p95<300ms", f"{_OWN}/target": "use"}),
        "annotation autoscaling.serving.dev/slo: autoscaling.serving.dev/target: use stands beside it",
    ),
    "a goal of another class": (
        service({f"{_OWN}/slo": "p95<300ms", f"{_AUTOSCALING}/class": "hpa.autoscaling.knative.dev"}),
        "annotation autoscaling.serving.dev/slo: only the class kpa",
    ),
    "dormant": (service({"serving.dev/dormant": "only,after=10s"}), ""),
    "not dormant": (service({"serving.dev/dormant": "soon"}), "annotation serving.dev/dormant: 'soon' is not right"),
    "calls": (service({"serving.dev/dormant-call": "POST /sleep?level=1, POST /wake_up"}), ""),
    "one call": (
        service({"serving.dev/dormant-call": "POST /sleep"}),
        "annotation serving.dev/dormant-call: 'POST /sleep'",
    ),
    "no cpu": (service({"serving.dev/start-cpu": "fast"}), "annotation serving.dev/start-cpu: 'fast' is not right"),
    "a place of the queue-proxy": (
        service({"serving.dev/queue-proxy": "inside"}),
        "annotation serving.dev/queue-proxy: 'inside' is not valid; expected beside or in-process",
    ),
    "a rollout": (service(own={"serving.knative.dev/rolloutDuration": "380s"}), ""),
    "a rollout without a unit": (
        service(own={"serving.knative.dev/rollout-duration": "10"}),
        "annotation serving.knative.dev/rollout-duration: '10' is not right; expected a duration of at least 0s",
    ),
    "a checked rollout": (
        service(own={"serving.knative.dev/rollout-duration": "10s", "serving.dev/rollout-check": "errors<1%, p99<1s"}),
        "",
    ),
    "a check without a limit": (
        service(own={"serving.knative.dev/rollout-duration": "10s", "serving.dev/rollout-check": "errors"}),
        "annotation serving.dev/rollout-check: 'errors' is not right; expected up to 8 conditions",
    ),
    "a check without a rollout": (
        service(own={"serving.dev/rollout-check": "errors<1%"}),
        "annotation serving.dev/rollout-check: only a rollout in steps is checked; expected serving.knative.dev/",
    ),
    "visibility": (_labelled(**{_VISIBILITY: "cluster-local"}), ""),
    "a visibility that is none": (
        _labelled(**{_VISIBILITY: "cluster_local"}),
        f"invalid value: cluster_local: metadata.labels.{_VISIBILITY}: expected cluster-local, or no such label",
    ),
    "visibility as an annotation": (
        service(own={_VISIBILITY: "cluster-local"}),
        f'invalid key name "{_VISIBILITY}": metadata.annotations: it must be put under "metadata.labels"',
    ),
    "visibility of the template": (
        service({_VISIBILITY: "cluster-local"}),
        f'invalid key name "{_VISIBILITY}": spec.template.metadata.annotations: it must be put under "metadata.labels"',
    ),
    "scaling of the service itself": (
        service(own={f"{_AUTOSCALING}/min-scale": "1"}),
        f'invalid key name "{_AUTOSCALING}/min-scale": metadata.annotations: autoscaling annotations must be put',
    ),
    "scaling as a label": (
        _labelled(**{f"{_AUTOSCALING}/maxScale": "1"}),
        f'invalid key name "{_AUTOSCALING}/maxScale": metadata.labels: it must be put under "spec.template.metadata.an',
    ),
    "access of the template": (
        service({"serving.dev/access": "private"}),
        'invalid key name "serving.dev/access": spec.template.metadata.annotations: it must be put under "metadata.ann',
    ),
    "a key with other separators": (
        service({f"{_AUTOSCALING}/min_scale": "1"}),
        f'invalid key name "{_AUTOSCALING}/min_scale": spec.template.metadata.annotations: did you mean {_AUTOSCALING}/min-scale?',
    ),
    "a key in capitals": (
        _labelled(**{"networking.knative.dev/Visibility": "cluster-local"}),
        f'invalid key name "networking.knative.dev/Visibility": metadata.labels: did you mean {_VISIBILITY}?',
    ),
    "keys of a real Knative": (
        service({"client.knative.dev/user-image": "x"}, {"networking.knative.dev/http-protocol": "Redirected"}),
        "",
    ),
    "keys that daemons write": (
        service(own={"serving.knative.dev/creator": "a", "serving.dev/claimed-tags": "{}"}),
        "",
    ),
    "a privileged container": (
        service(
            containers=[{"image": "x", "ports": [{}]}, {"image": "other", "securityContext": {"privileged": True}}]
        ),
        "spec.template.spec.containers[1].securityContext.privileged: must not set the field(s)",
    ),
    "an init container with rights": (
        service(initContainers=[{"image": "other", "securityContext": {"procMount": "Unmasked"}}]),
        "spec.template.spec.initContainers[0].securityContext.procMount: must not set the field(s)",
    ),
    "added capabilities": (
        service(containers=[{"image": "x", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]),
        "spec.template.spec.containers[0].securityContext.capabilities.add: must not set the field(s)",
    ),
    "a low port": (
        service(containers=[{"image": "x", "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}]),
        "",
    ),
    "a folder of the node": (
        service(
            containers=[{"image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            volumes=[{"name": "v", "hostPath": {"path": "/"}}],
        ),
        "spec.template.spec.volumes[0].hostPath: HostPath volume support is disabled, but found HostPath volume v",
    ),
}
