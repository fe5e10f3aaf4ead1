"""Warns about fields, annotations and settings without effect on a single machine.

Each such field has one sentence, for ``Warning`` headers, the CLI and Events. Every other field has its effect or is
rejected; none is ignored silently.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

from serving.controller.keda.conversion import names_route
from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.event import EventText, about, digest, new_event
from serving.core.model.knative import COMMAND_ANNOTATION, TCP_ANNOTATION
from serving.core.model.objects import Object, name_of, namespace_of, nested
from serving.core.model.quantity import parse_quantity
from serving.core.model.routepolicy import read_tcp_ports
from serving.core.settings.daemons import DAEMONS, NODEGROUP
from serving.core.settings.live import config_map_of
from serving.core.settings.load import load
from serving.home.pods.podplan import runs_images
from serving.net.aio.clock import stamp
from serving.net.cluster.events import EventRecorder
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import (
    CONFIG_MAP,
    CONFIGURATION,
    DEPLOYMENT,
    KEDA_SCALED_OBJECT,
    POD,
    REVISION,
    SERVING_SERVICE,
    Kind,
)
from serving.net.cluster.port import Cluster
from serving.nodes.nodegroup.groups import groups_of_text

_PART = re.compile(r"([^.\[\]]+)|\[\*\]")

_ONE_NODE = "pods run on this machine"
_NO_SUCH_RULE = "this machine's scheduler reads nodeSelector, required nodeAffinity, taints and requests"
_ONE_USER = "the server chooses the user of a process"
_NO_IMAGES = "no image is pulled; the command is run"
_NO_VOLUME = "only configMap, secret, projected, emptyDir and persistentVolumeClaim volumes exist here"
_NO_ROUTE = "a ScaledObject acts for a route of KEDA's HTTP add-on only, and no trigger names one"

_POD_FIELDS = {
    "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution": _NO_SUCH_RULE,
    "affinity.podAffinity": _NO_SUCH_RULE,
    "affinity.podAntiAffinity": _NO_SUCH_RULE,
    "automountServiceAccountToken": "a token is only mounted by a projected volume",
    "dnsConfig": "names are resolved as on this machine",
    "dnsPolicy": "names are resolved as on this machine",
    "enableServiceLinks": "no variables are made for services",
    "hostAliases": "names are resolved as on this machine",
    "imagePullSecrets": _NO_IMAGES,
    "priorityClassName": _ONE_NODE,
    "runtimeClassName": "pods are processes",
    "schedulerName": _ONE_NODE,
    "securityContext": _ONE_USER,
    "shareProcessNamespace": "pods are processes",
    "topologySpreadConstraints": _NO_SUCH_RULE,
    "containers[*].imagePullPolicy": _NO_IMAGES,
    "containers[*].securityContext": _ONE_USER,
    "containers[*].resources.claims": "there are no devices to claim",
    "containers[*].terminationMessagePath": "the message is the end of the log",
    "containers[*].terminationMessagePolicy": "the message is the end of the log",
    "volumes[*].csi": _NO_VOLUME,
    "volumes[*].ephemeral": _NO_VOLUME,
    "volumes[*].hostPath": _NO_VOLUME,
    "volumes[*].nfs": _NO_VOLUME,
}
# Fields with an effect in containers only, not in processes.
_OF_CONTAINERS = frozenset(
    {"imagePullSecrets", "securityContext", "containers[*].securityContext", "containers[*].imagePullPolicy"}
)
# Fields without effect in containers, for another reason.
_IN_CONTAINERS = {
    "dnsConfig": "containers ask the name server of this machine",
    "dnsPolicy": "containers ask the name server of this machine",
    "runtimeClassName": "one runtime runs all containers of this machine",
    "shareProcessNamespace": "each container has a separate process namespace",
}
_POD_SPECS = {SERVING_SERVICE: "spec.template.spec", CONFIGURATION: "spec.template.spec", REVISION: "spec"}
_ANNOTATED = ("metadata.annotations", "spec.template.metadata.annotations")
# The path of the pod template by kind; "" if the object is the pod.
_TEMPLATES = {SERVING_SERVICE: "spec.template", CONFIGURATION: "spec.template", DEPLOYMENT: "spec.template", POD: ""}
# Annotation groups of other platforms.
_FOREIGN = ("run.googleapis.com/", "cloud.googleapis.com/")
_GROUPS_KEY = "nodegroups_config.yaml"
_COMPONENT = "serving-api"
_REASON = "AcceptedWithoutEffect"


def located(value: object, at: str) -> list[tuple[str, Any]]:
    """The existing fields at a path and their values. ``[*]`` means every item of a list."""
    places: list[tuple[str, Any]] = [("", value)]
    for key in _steps(at):
        if key is None:
            places = [
                (f"{path}[{index}]", item)
                for path, items in places
                if isinstance(items, list)
                for index, item in enumerate(items)
            ]
        else:
            places = [
                (f"{path}.{key}" if path else key, parent[key])
                for path, parent in places
                if isinstance(parent, dict) and parent.get(key) is not None
            ]
    return places


@functools.cache
def _steps(at: str) -> tuple[str | None, ...]:
    """The keys of a path. None stands for every item of a list."""
    return tuple(match.group(1) for match in _PART.finditer(at))


def effectless(kind: Kind, body: Object, *, runs_images: bool = False) -> list[str]:
    """A sentence for each field or annotation without effect. ``runs_images``: images run as containers here."""
    if kind == KEDA_SCALED_OBJECT:
        return [] if names_route(body) else [f"spec.triggers: accepted without effect: {_NO_ROUTE}"]
    if kind not in _POD_SPECS:
        return []
    fields = _POD_FIELDS
    if runs_images:
        fields = {field: _IN_CONTAINERS.get(field, why) for field, why in fields.items() if field not in _OF_CONTAINERS}
    root = _POD_SPECS[kind]
    fractions = _fractional_bytes(root, body)
    return [*_fields(root, body, fields), *_annotations(body), *_unreached_ports(kind, body), *fractions]


def unrunnable(kind: Kind, body: Object) -> list[str]:
    """A warning if pods of a template need a container runtime, which this machine lacks; else an empty list."""
    if kind not in _TEMPLATES:
        return []
    root = _TEMPLATES[kind]
    template = nested(body, *root.split(".")) if root else body
    if not isinstance(template, dict) or not runs_images(template):
        return []
    path = f"{root}.spec.containers".lstrip(".")
    instead = f"install crun or runc, or annotate the template with {COMMAND_ANNOTATION}"
    return [f"{path}: no container runtime runs images here, so that no pod will start; {instead}"]


def _fields(root: str, body: Object, fields: Mapping[str, str]) -> Iterator[str]:
    for field, reason in fields.items():
        for path, value in located(body, f"{root}.{field}"):
            # Empty and false values are defaults, common in exported manifests.
            if value not in (None, False, "", {}, []):
                yield f"{path}: accepted without effect: {reason}"


def _annotations(body: Object) -> Iterator[str]:
    for place in _ANNOTATED:
        for path, annotations in located(body, place):
            for name in annotations if isinstance(annotations, dict) else ():
                if name.startswith(_FOREIGN):
                    yield f"{path}[{name}]: accepted without effect: it is for another platform"


def _fractional_bytes(root: str, body: Object) -> Iterator[str]:
    """Warn about an amount of memory that is no whole number of bytes, such as ``128m`` instead of ``128Mi``."""
    for side in ("limits", "requests"):
        for path, text in located(body, f"{root}.containers[*].resources.{side}.memory"):
            amount = _amount(text)
            if amount.denominator != 1:
                yield f"{path}: {text} is {float(amount):g} bytes; expected whole bytes, as {text.rstrip('num')}Mi"


def _amount(text: object) -> Fraction:
    """The amount of a quantity; 0 if it is unreadable, which validation reports."""
    try:
        return parse_quantity(text) if isinstance(text, str) else Fraction()
    except InvalidValue:
        return Fraction()


def _unreached_ports(kind: Kind, body: Object) -> Iterator[str]:
    """Yield warnings about container TCP ports at which no activator listens."""
    if kind != SERVING_SERVICE:
        return
    annotations = [text for _, text in located(body, "metadata.annotations") if isinstance(text, dict)]
    text = annotations[0].get(TCP_ANNOTATION) if annotations else ""
    ports = read_tcp_ports(text if isinstance(text, str) else "")
    named = set() if isinstance(ports, Problem) else {port.number for port in ports}
    for path, port in located(body, "spec.template.spec.containers[*].ports[*]"):
        number = port.get("containerPort") if isinstance(port, dict) else None
        if not path.endswith("[0]") and isinstance(number, int) and number not in named:
            yield f"{path}: accepted without effect: no connection reaches it; name {number} in the annotation {TCP_ANNOTATION}"


def remark_event(kind: Kind, of: Object, text: str, *, now: str) -> Object:
    """The Event for one warning about an object. Its name is derived from object and warning."""
    spoken_of = about({**of, "apiVersion": kind.api_version, "kind": kind.name})
    words = EventText(reason=_REASON, message=text, is_warning=True)
    return new_event(spoken_of, words, suffix=digest(spoken_of.uid, text), component=_COMPONENT, now=now)


async def record_remarks(cluster: Cluster, kind: Kind, of: Object, *, texts: Iterable[str]) -> None:
    """Record warnings about an object as Events. A failure is only logged, because the object was already written."""
    events = EventRecorder(cluster)
    for text in texts:
        await events.record(remark_event(kind, of, text, now=stamp()))


def settings_warnings(kind: Kind, stored: Object) -> list[str]:
    """A sentence for each unknown key and invalid value in settings and node groups, without repetitions."""
    if kind != CONFIG_MAP or namespace_of(stored) != system_namespace():
        return []
    config_map = config_map_of(name_of(stored), stored.get("data") or {})
    texts: list[str] = []
    for daemon in DAEMONS:
        try:
            texts += map(str, load(daemon, registry=DAEMONS, config_maps=[config_map]).ignored)
        except SettingsError as error:
            texts += [str(problem) for problem in error.problems]
    if name_of(stored) == NODEGROUP.config_map:
        text = (stored.get("data") or {}).get(_GROUPS_KEY, "")
        groups = groups_of_text(text, where=f"{NODEGROUP.config_map}: {_GROUPS_KEY}")
        texts += [str(problem) for problem in (*groups.problems, *groups.ignored)]
    return list(dict.fromkeys(texts))
