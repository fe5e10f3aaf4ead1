"""``serving convert``: Knative manifests from a compose file, or from KEDA's HTTP add-on."""

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from serving.cli.client.api import fail_usage
from serving.cli.client.output import print_aside
from serving.cluster.kinds import DOMAIN_MAPPING, SCALING_POLICY
from serving.model.errors import InvalidValue
from serving.model.knative import AUTOSCALING_GROUP, SERVING_API_VERSION
from serving.model.objects import Object, name_of, namespace_of, nested

# Keys that are the default here, or that do not affect what runs.
_SILENT = frozenset(
    {"restart", "container_name", "networks", "init", "stdin_open", "tty", "expose", "depends_on", "labels"}
)
_KNOWN = frozenset({"image", "build", "command", "entrypoint", "environment", "ports", "working_dir", "deploy"})
ROUTE_KINDS = frozenset({"HTTPScaledObject", "InterceptorRoute"})
_POD_FIELDS = ("volumes", "serviceAccountName", "imagePullSecrets")
_CONTAINER_FIELDS = frozenset(
    {"name", "image", "command", "args", "env", "envFrom", "resources", "volumeMounts", "workingDir", "securityContext"}
    | {"imagePullPolicy", "readinessProbe", "livenessProbe", "startupProbe", "ports"}
)
# Required fields of a KEDA cron trigger.
_CRON_FIELDS = ("timezone", "start", "end", "desiredReplicas")
_PORT_NAMES = frozenset({"http1", "h2c"})
_STDIN = "-"


class Converted(msgspec.Struct, kw_only=True):
    """The manifests, and a note for each part without an equivalent."""

    manifests: list[Object] = []
    notes: list[str] = []


def is_compose(document: object) -> bool:
    """Whether a document is a compose file: it has services and no kind."""
    return isinstance(document, dict) and "kind" not in document and isinstance(document.get("services"), dict)


def from_compose(document: Mapping[str, Any]) -> Converted:
    """A Knative Service for each service. Raises ``InvalidValue`` if one is no mapping."""
    found = Converted()
    for name, service in document["services"].items():
        if not isinstance(service, dict):
            raise InvalidValue(text=f"services.{name}", expected="a mapping, as the Compose Specification has it")
        found.manifests.append(_service(str(name).replace("_", "-").lower(), service, found.notes))
    for section in ("volumes", "secrets", "configs"):
        if document.get(section):
            found.notes.append(f"{section}: not converted; mount ConfigMaps, Secrets or emptyDir volumes instead")
    return found


def _service(name: str, service: Mapping[str, Any], notes: list[str]) -> Object:
    container: Object = {"image": service.get("image") or name}
    if "build" in service:
        notes.append(f"{name}: build is not converted; `serving deploy {name} FOLDER` deploys a folder")
    for field, key in (("entrypoint", "command"), ("command", "args")):
        if service.get(field):
            container[key] = _words(service[field])
    if service.get("working_dir"):
        container["workingDir"] = service["working_dir"]
    environment = _environment(service.get("environment") or {}, name, notes)
    if environment:
        container["env"] = environment
    ports = [_port(one) for one in service.get("ports") or ()]
    if ports:
        container["ports"] = [{"containerPort": ports[0]}]
        notes.extend(f"{name}: port {port} is left out: a service has one" for port in ports[1:])
    elif not service.get("expose"):
        notes.append(f"{name}: it publishes no port; a service must listen on $PORT for HTTP requests")
    limits = _limits(nested(service, "deploy", "resources", "limits") or {})
    if limits:
        container["resources"] = {"limits": limits}
    notes.extend(f"{name}: {field} is not converted" for field in sorted(set(service) - _KNOWN - _SILENT))
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def _words(command: object) -> list[str]:
    return [str(one) for one in command] if isinstance(command, list) else shlex.split(str(command))


def _environment(given: Mapping[str, object] | Sequence[str], name: str, notes: list[str]) -> list[Object]:
    pairs = (
        given.items()
        if isinstance(given, Mapping)
        else ((key, value) for key, _, value in (one.partition("=") for one in given))
    )
    found: list[Object] = []
    for key, value in pairs:
        if key == "PORT":
            notes.append(f"{name}: PORT is left out: each pod gets its own")
        else:
            text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
            found.append({"name": key, "value": text})
    return found


def _port(port: object) -> int:
    """The container's port of "8080:80/tcp", "127.0.0.1:8080:80", 80 or {target: 80}."""
    text = str(port["target"]) if isinstance(port, dict) and "target" in port else str(port)
    number = text.rpartition(":")[2].partition("/")[0]
    if not number.isdecimal():
        raise InvalidValue(text=text, expected="one port, as 80, 8080:80 or target: 80")
    return int(number)


def _limits(limits: Mapping[str, object]) -> dict[str, str]:
    """Convert compose's limits to Kubernetes quantities: cpus "0.5", memory "512M", "1g" or "64kb", in powers of 1024."""
    found = {}
    if limits.get("cpus"):
        found["cpu"] = str(limits["cpus"])
    if limits.get("memory"):
        text = str(limits["memory"]).lower().removesuffix("b")
        found["memory"] = f"{text[:-1]}{text[-1].upper()}i" if text[-1:] in {"k", "m", "g"} else text
    return found


def from_keda(documents: Sequence[Object]) -> Converted:
    """A Service and DomainMappings for each route. Raises ``InvalidValue`` if a Deployment is missing."""
    found = Converted()
    for route in (one for one in documents if one.get("kind") in ROUTE_KINDS):
        scaled = _scaled_object(documents, route)
        target = _target(route, scaled)
        deployment = next(
            (one for one in documents if one.get("kind") == "Deployment" and name_of(one) == target), None
        )
        if deployment is None:
            expected = (
                f"a Deployment in the same files, which {route['kind']} {name_of(route)} scales: give its file too"
            )
            raise InvalidValue(text=target, expected=expected)
        found.manifests.append(_scaled_service(route, scaled, deployment, notes=found.notes))
        found.manifests += [_domain_mapping(host, deployment) for host in _hosts(route, found.notes)]
        schedules = _schedules(documents, target)
        if schedules:
            found.manifests.append(_policy(schedules, deployment))
    return found


def _scaled_object(documents: Iterable[Object], route: Object) -> Object:
    """The ScaledObject of an InterceptorRoute; {} if there is none."""
    for one in documents:
        triggers = nested(one, "spec", "triggers") or ()
        if one.get("kind") == "ScaledObject" and any(
            nested(trigger, "metadata", "interceptorRoute") == name_of(route) for trigger in triggers
        ):
            return one
    return {}


def _target(route: Object, scaled: Object) -> str:
    for owner, path in ((scaled, "scaleTargetRef"), (route, "scaleTargetRef")):
        name = nested(owner, "spec", path, "name")
        if name:
            return str(name)
    return str(nested(route, "spec", "target", "service") or name_of(route))


def _scaled_service(route: Object, scaled: Object, deployment: Object, *, notes: list[str]) -> Object:
    annotations = _scaling(route, scaled, notes)
    template = nested(deployment, "spec", "template") or {}
    pod = template.get("spec") or {}
    containers = [_container(one, notes) for one in pod.get("containers") or ()]
    notes.extend(
        f"{name_of(deployment)}: {field} of its pods is left out"
        for field in sorted(set(pod) - {"containers", "restartPolicy", *_POD_FIELDS})
    )
    spec = {"containers": containers, **{field: pod[field] for field in _POD_FIELDS if field in pod}}
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": _metadata(name_of(deployment), deployment),
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


def _scaling(route: Object, scaled: Object, notes: list[str]) -> dict[str, str]:
    spec = route.get("spec") or {}
    metric: Mapping[str, Any] = spec.get("scalingMetric") or {}
    found: dict[str, object] = {
        "min-scale": nested(spec, "replicas", "min") or nested(scaled, "spec", "minReplicaCount"),
        "max-scale": nested(spec, "replicas", "max") or nested(scaled, "spec", "maxReplicaCount"),
        "scale-to-zero-pod-retention-period": _seconds(spec.get("scaledownPeriod"))
        or _seconds(nested(scaled, "spec", "cooldownPeriod")),
    }
    rate, concurrency = metric.get("requestRate") or {}, metric.get("concurrency") or {}
    if rate:
        found |= {"metric": "rps", "target": rate.get("targetValue"), "window": rate.get("window")}
        if concurrency:
            notes.append(f"{name_of(route)}: scaled by requestRate; concurrency is left out: a revision has one metric")
    elif concurrency:
        found |= {"metric": "concurrency", "target": concurrency.get("targetValue")}
    return {f"{AUTOSCALING_GROUP}/{key}": str(value) for key, value in found.items() if value is not None}


def _seconds(number: object) -> str | None:
    return None if number is None else f"{number}s"


def _container(container: Object, notes: list[str]) -> Object:
    made = {key: value for key, value in container.items() if key in _CONTAINER_FIELDS}
    notes.extend(f"container {container.get('name')}: {key} is left out" for key in sorted(set(container) - set(made)))
    ports = made.pop("ports", None) or ()
    if ports:
        name = {"name": ports[0]["name"]} if ports[0].get("name") in _PORT_NAMES else {}
        made["ports"] = [{**name, "containerPort": ports[0]["containerPort"]}]
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        for action in ("httpGet", "tcpSocket", "grpc"):
            # Names of ports are gone, and the port that serves is the default.
            if nested(made, kind, action, "port") is not None:
                rest = {key: value for key, value in made[kind][action].items() if key != "port"}
                made[kind] = {**made[kind], action: rest}
    return made


def _hosts(route: Object, notes: list[str]) -> list[str]:
    spec = route.get("spec") or {}
    rules = spec.get("rules") or ()
    if spec.get("pathPrefixes") or any(rule.get("paths") or rule.get("headers") for rule in rules):
        notes.append(f"{name_of(route)}: rules on paths and headers are left out: a host goes to one service")
    return [
        str(one) for one in (*(spec.get("hosts") or ()), *(host for rule in rules for host in rule.get("hosts") or ()))
    ]


def _domain_mapping(host: str, deployment: Object) -> Object:
    reference = {"apiVersion": SERVING_API_VERSION, "kind": "Service", "name": name_of(deployment)}
    return {
        "apiVersion": DOMAIN_MAPPING.api_version,
        "kind": "DomainMapping",
        "metadata": _metadata(host, deployment),
        "spec": {"ref": reference},
    }


def _schedules(documents: Iterable[Object], target: str) -> list[Object]:
    """The cron triggers of all ScaledObjects of a Deployment. Raises ``InvalidValue`` for incomplete ones."""
    found: list[Object] = []
    for one in documents:
        if one.get("kind") != "ScaledObject" or nested(one, "spec", "scaleTargetRef", "name") != target:
            continue
        crons = (trigger for trigger in nested(one, "spec", "triggers") or () if trigger.get("type") == "cron")
        found += [_schedule(cron.get("metadata") or {}, name_of(one)) for cron in crons]
    return found


def _schedule(cron: Mapping[str, Any], owner: str) -> Object:
    missing = [key for key in _CRON_FIELDS if cron.get(key) in (None, "")]
    if missing:
        expected = f"a cron trigger of ScaledObject {owner} with {', '.join(_CRON_FIELDS)}"
        raise InvalidValue(text=f"no {', '.join(missing)}", expected=expected)
    count = str(cron["desiredReplicas"])
    if not count.isdecimal() or int(count) < 1:
        raise InvalidValue(text=count, expected=f"desiredReplicas of a cron trigger of ScaledObject {owner} from 1 on")
    return {
        "timeZone": str(cron["timezone"]),
        "start": str(cron["start"]),
        "end": str(cron["end"]),
        "min": int(count),
    }


def _policy(schedules: list[Object], deployment: Object) -> Object:
    return {
        "apiVersion": SCALING_POLICY.api_version,
        "kind": SCALING_POLICY.name,
        "metadata": _metadata(name_of(deployment), deployment),
        "spec": {"targetRef": {"kind": "Service", "name": name_of(deployment)}, "schedules": schedules},
    }


def _metadata(name: str, deployment: Object) -> Object:
    namespace = namespace_of(deployment)
    return {"name": name, **({"namespace": namespace} if namespace else {})}


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def convert(*, files: tuple[str, ...]) -> None:
    """Print Knative manifests for compose files, and for HTTPScaledObjects or InterceptorRoutes with their Deployments.

    Notes about parts without an equivalent go to standard error. `serving convert compose.yaml | serving apply -f -` applies
    them.
    """
    documents = [document for file in files for document in _documents(file)]
    try:
        found = _converted(documents)
    except InvalidValue as error:
        fail_usage(str(error))
    if not found.manifests:
        fail_usage(
            "nothing to convert: expected a compose file with services, an HTTPScaledObject or an InterceptorRoute"
        )
    for note in found.notes:
        print_aside(f"note: {note}")
    click.echo(yaml.safe_dump_all(found.manifests, sort_keys=False, default_flow_style=False), nl=False)


def _converted(documents: Sequence[Any]) -> Converted:
    found = Converted()
    parts = [from_compose(one) for one in documents if is_compose(one)]
    if any(one.get("kind") in ROUTE_KINDS for one in documents):
        parts.append(from_keda(documents))
    for part in parts:
        found.manifests += part.manifests
        found.notes += part.notes
    return found


def _documents(file: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
        found = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        fail_usage(f"{file}: {error.strerror if isinstance(error, OSError) else 'not a text file'}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fail_usage(f"{file}{line}: not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        fail_usage(f"{file}: not YAML: {' '.join(str(error).split())}")
    return [one for one in found if isinstance(one, dict)]
