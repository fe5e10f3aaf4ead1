"""What must hold for Pods and Deployments so that this machine can run them. Pure.

Kubernetes' own kinds are stored as they are sent; a real API server checks far more. These rules keep what cannot run, and
names that would not be names of files, out of the store. The words are Kubernetes' own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.cluster.kinds import DEPLOYMENT, POD, Kind
from serving.cluster.port import Object
from serving.model.errors import Problem
from serving.model.objects import nested

__all__ = ["init_problems", "pod_problems"]

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_NAME_EXPECTED = "a DNS label: lower case letters, digits and '-', at most 63 characters"
_RESTARTS = ("Always", "OnFailure", "Never")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_MINIMA = {
    "initialDelaySeconds": 0,
    "periodSeconds": 0,
    "timeoutSeconds": 0,
    "successThreshold": 0,
    "failureThreshold": 0,
    "terminationGracePeriodSeconds": 1,
}
# What makes sense for containers that go on running.
_NOT_OF_INIT = ("lifecycle", "livenessProbe", "ports", "readinessProbe", "restartPolicy", "startupProbe")


def pod_problems(kind: Kind, whole: Object) -> Iterator[Problem]:
    """Yield what is wrong with a Pod or a Deployment; nothing for other kinds."""
    if kind == POD:
        yield from _spec_problems(whole.get("spec"), "spec")
    elif kind == DEPLOYMENT:
        yield from _deployment_problems(whole)


def _deployment_problems(whole: Object) -> Iterator[Problem]:
    spec = whole.get("spec")
    replicas = nested(whole, "spec", "replicas")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("template"), Mapping):
        yield Problem(where="spec.template", what="Required value", expected="the template of a pod")
        return
    if replicas is not None and (not isinstance(replicas, int) or replicas < 0):
        what = f"Invalid value: {replicas}: must be greater than or equal to 0"
        yield Problem(where="spec.replicas", what=what, expected="a whole number of 0 or more")
    wanted = nested(whole, "spec", "selector", "matchLabels")
    labels = nested(whole, "spec", "template", "metadata", "labels") or {}
    if not isinstance(wanted, Mapping) or not wanted:
        yield Problem(where="spec.selector", what="Required value", expected="matchLabels, labels of the template")
    elif not isinstance(labels, Mapping) or not wanted.items() <= labels.items():
        what = "Invalid value: `selector` does not match template `labels`"
        yield Problem(where="spec.template.metadata.labels", what=what, expected="the labels of the selector")
    yield from _spec_problems(spec["template"].get("spec"), "spec.template.spec")


def _spec_problems(spec: object, where: str) -> Iterator[Problem]:
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(containers, list) or not containers:
        yield Problem(where=f"{where}.containers", what="Required value", expected="a list of containers")
        return
    restarts = spec.get("restartPolicy", _RESTARTS[0])
    if restarts not in _RESTARTS:
        supported = ", ".join(f'"{one}"' for one in _RESTARTS)
        what = f'Unsupported value: "{restarts}": supported values: {supported}'
        yield Problem(where=f"{where}.restartPolicy", what=what, expected=f"one of {supported}")
    yield from _names_problems(containers, f"{where}.containers", set())
    yield from init_problems(spec, where)
    for field in ("initContainers", "containers"):
        listed = spec.get(field)
        for index, container in enumerate(listed if isinstance(listed, list) else ()):
            if isinstance(container, Mapping):
                yield from _probe_problems(container, f"{where}.{field}[{index}]")


def _probe_problems(container: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield numbers of probes that are below their minimum."""
    for probe in _PROBES:
        given = container.get(probe)
        for field, least in _PROBE_MINIMA.items() if isinstance(given, Mapping) else ():
            value = given.get(field)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                what = f"Invalid value: {value}: must be greater than or equal to {least}"
                yield Problem(
                    where=f"{where}.{probe}.{field}", what=what, expected=f"a whole number of {least} or more"
                )


def init_problems(spec: Mapping[str, Any], where: str) -> Iterator[Problem]:
    """Yield what is wrong with the containers of a pod's spec that run before the others."""
    first, others = spec.get("initContainers") or (), spec.get("containers") or ()
    place = f"{where}.initContainers"
    if not isinstance(first, Sequence) or isinstance(first, str):
        yield Problem(where=place, what="Invalid value: not a list", expected="a list of containers")
        return
    yield from _names_problems(
        first, place, {one["name"] for one in others if isinstance(one, Mapping) and "name" in one}
    )
    mounted = {one.get("name") for one in spec.get("volumes") or () if isinstance(one, Mapping)}
    for index, container in enumerate(first):
        if not isinstance(container, Mapping):
            continue
        at = f"{place}[{index}]"
        if not container.get("image"):
            yield Problem(where=f"{at}.image", what="Required value", expected="the name of an image")
        for field in _NOT_OF_INIT:
            if container.get(field):
                what = "Forbidden: field not allowed in an init container"
                yield Problem(
                    where=f"{at}.{field}", what=what, expected="a container that ends before the others begin"
                )
        for number, mount in enumerate(container.get("volumeMounts") or ()):
            if isinstance(mount, Mapping) and mount.get("name") not in mounted:
                what = f'Not found: "{mount.get("name")}"'
                yield Problem(where=f"{at}.volumeMounts[{number}].name", what=what, expected="the name of a volume")


def _names_problems(containers: Sequence[object], where: str, seen: set[str]) -> Iterator[Problem]:
    """Yield names that are no names, or were ``seen`` before."""
    for index, container in enumerate(containers):
        place = f"{where}[{index}]"
        if not isinstance(container, Mapping):
            yield Problem(where=place, what="Invalid value: not an object", expected="a container")
            continue
        # A revision's containers may have none.
        name = container.get("name", "")
        if name and not (isinstance(name, str) and _NAME.match(name)):
            what = f'Invalid value: "{name}": must be {_NAME_EXPECTED}'
            yield Problem(where=f"{place}.name", what=what, expected=_NAME_EXPECTED)
        elif name in seen:
            yield Problem(where=f"{place}.name", what=f'Duplicate value: "{name}"', expected="a name of its own")
        seen.add(str(name))
