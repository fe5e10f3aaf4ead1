"""``serving convert``: Knative manifests from a compose file, or from KEDA's HTTP add-on."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.model.knative import AUTOSCALING_GROUP, SERVING_API_VERSION
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of, nested
from serving.core.model.quantity import parse_duration_s
from serving.core.model.routepolicy import route_policy
from serving.home.images.store import ImageStore, ImageUnavailable, build_image
from serving.home.processes.mounts import can_mount
from serving.home.state import StateFolder, default_state_path
from serving.net.aio.inputfile import read_input_text
from serving.net.cluster.kinds import DOMAIN_MAPPING, SCALING_POLICY
from serving.tools.cli.client.api import fail, fail_usage, state_option
from serving.tools.cli.client.output import Progress, print_aside
from serving.tools.cli.client.shortnames import UNRESOLVED, privileged_problem, short_url
from serving.tools.cli.services.compose import Converted, from_compose, is_compose, pairs_with_values
from serving.tools.cli.services.containeroptions import read_compose_env_file
from serving.tools.cli.services.interpolation import Interpolation
from serving.tools.cli.services.manifests import ManifestLoader, check_depth
from serving.tools.cli.services.unread import Fields, unread

ROUTE_KINDS = frozenset({"HTTPScaledObject", "InterceptorRoute"})
_POD_FIELDS = ("volumes", "serviceAccountName", "imagePullSecrets")
_CONTAINER_FIELDS = frozenset(
    {"name", "image", "command", "args", "env", "envFrom", "resources", "volumeMounts", "workingDir", "securityContext"}
    | {"imagePullPolicy", "readinessProbe", "livenessProbe", "startupProbe", "ports"}
)
# The fields that are read, or that say what is so here: what is not in these tables is a note.
_HEAD: Fields = dict.fromkeys(("apiVersion", "kind", "status"))
_METADATA: Fields = dict.fromkeys(
    ("annotations", "creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion", "uid")
)
_METRIC: Fields = {
    "concurrency": {"targetValue": None},
    "requestRate": {"targetValue": None, "window": None},
}
_REPLICAS: Fields = dict.fromkeys(("max", "min"))
_TARGET: Fields = dict.fromkeys(("apiVersion", "kind", "name", "port", "service"))
_ROUTE: Fields = {
    **_HEAD,
    "metadata": _METADATA,
    "spec": {
        "hosts": None,
        "replicas": _REPLICAS,
        "rules": {"headers": None, "hosts": None, "paths": None},
        "pathPrefixes": None,
        "scaleTargetRef": _TARGET,
        "scaledownPeriod": None,
        "scalingMetric": _METRIC,
        "target": _TARGET,
        "targetPendingRequests": None,
        "timeouts": {"responseHeader": None},
    },
}
_SCALED: Fields = {
    **_HEAD,
    "metadata": _METADATA,
    "spec": dict.fromkeys(("cooldownPeriod", "maxReplicaCount", "minReplicaCount", "scaleTargetRef", "triggers")),
}
_DEPLOYMENT: Fields = {
    **_HEAD,
    "metadata": _METADATA,
    "spec": {"selector": None, "template": {"metadata": {"annotations": None}, "spec": None}},
}
_READ_TRIGGERS = frozenset({"cron", "external-push"})
# Required fields of a KEDA cron trigger.
_CRON_FIELDS = ("timezone", "start", "end", "desiredReplicas")
_PORT_NAMES = frozenset({"http1", "h2c"})
_STDIN = "-"


def from_keda(documents: Sequence[Object]) -> Converted:
    """A Service and DomainMappings for each route. Raises ``InvalidValue`` if a Deployment is missing."""
    converted = Converted()
    read: list[Object] = []
    for route in (document for document in documents if document.get("kind") in ROUTE_KINDS):
        scaled = _scaled_object(documents, route)
        target = _target(route, scaled)
        deployment = next(
            (
                document
                for document in documents
                if document.get("kind") == "Deployment" and name_of(document) == target
            ),
            None,
        )
        if deployment is None:
            expected = (
                f"a Deployment in the same files, which {route['kind']} {name_of(route)} scales: give its file too"
            )
            raise InvalidValue(text=target, expected=expected)
        converted.manifests.append(_scaled_service(route, scaled, deployment, notes=converted.notes))
        converted.manifests += [_domain_mapping(host, deployment) for host in _hosts(route, converted.notes)]
        read += [route, scaled, deployment]
        for document, fields in ((route, _ROUTE), (scaled, _SCALED), (deployment, _DEPLOYMENT)):
            converted.notes += [
                f"{_title(document)}: {field} is not converted" for field in sorted(set(unread(document, fields)))
            ]
        converted.notes += _trigger_notes(documents, target)
        schedules = _schedules(documents, target)
        if schedules:
            converted.manifests.append(_policy(schedules, deployment))
    converted.notes += [
        f"{_title(document)} is not converted: apply it beside the output"
        for document in documents
        if document not in read and document.get("kind") != "ScaledObject"
    ]
    return converted


def _title(document: Object) -> str:
    return f"{document.get('kind', '')} {name_of(document)}"


def _trigger_notes(documents: Iterable[Object], target: str) -> Iterator[str]:
    """The triggers of a Deployment that have no equivalent: requests and schedules have."""
    for document in documents:
        if document.get("kind") == "ScaledObject" and nested(document, "spec", "scaleTargetRef", "name") == target:
            for trigger in nested(document, "spec", "triggers") or ():
                if trigger.get("type") not in _READ_TRIGGERS:
                    what = "a ScalingPolicy has triggers on occupancy, cpu and memory"
                    yield f"{_title(document)}: its trigger {trigger.get('type')} is not converted: {what}"


def _scaled_object(documents: Iterable[Object], route: Object) -> Object:
    """The ScaledObject of an InterceptorRoute; {} if there is none."""
    for document in documents:
        triggers = nested(document, "spec", "triggers") or ()
        if document.get("kind") == "ScaledObject" and any(
            nested(trigger, "metadata", "interceptorRoute") == name_of(route) for trigger in triggers
        ):
            return document
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
    containers = [_container(container, notes) for container in pod.get("containers") or ()]
    notes.extend(
        f"{name_of(deployment)}: {field} of its pods is left out"
        for field in sorted(set(pod) - {"containers", "restartPolicy", *_POD_FIELDS})
    )
    spec = {"containers": containers, **{field: pod[field] for field in _POD_FIELDS if field in pod}}
    timeout_s = _duration_s(nested(route, "spec", "timeouts", "responseHeader"))
    if timeout_s:
        spec["responseStartTimeoutSeconds"] = timeout_s
    annotations = {**annotations_of(template), **annotations}
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": _metadata(name_of(deployment), deployment),
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


def _scaling(route: Object, scaled: Object, notes: list[str]) -> dict[str, str]:
    spec = route.get("spec") or {}
    metric: Mapping[str, Any] = spec.get("scalingMetric") or {}
    scaling: dict[str, object] = {
        "min-scale": nested(spec, "replicas", "min") or nested(scaled, "spec", "minReplicaCount"),
        "max-scale": nested(spec, "replicas", "max") or nested(scaled, "spec", "maxReplicaCount"),
        "scale-to-zero-pod-retention-period": _seconds(spec.get("scaledownPeriod"))
        or _seconds(nested(scaled, "spec", "cooldownPeriod")),
    }
    rate, concurrency = metric.get("requestRate") or {}, metric.get("concurrency") or {}
    if rate:
        scaling |= {"metric": "rps", "target": rate.get("targetValue"), "window": rate.get("window")}
        if concurrency:
            notes.append(f"{name_of(route)}: scaled by requestRate; concurrency is left out: a revision has one metric")
    elif concurrency or spec.get("targetPendingRequests"):
        scaling |= {
            "metric": "concurrency",
            "target": concurrency.get("targetValue") or spec.get("targetPendingRequests"),
        }
    return {f"{AUTOSCALING_GROUP}/{key}": str(value) for key, value in scaling.items() if value is not None}


def _seconds(number: object) -> str | None:
    return None if number is None else f"{number}s"


def _duration_s(text: object) -> int:
    """Whole seconds of a duration as "8s", at least 1; 0 for none. Raises ``InvalidValue``."""
    return 0 if text is None else max(1, round(parse_duration_s(str(text))))


def _container(container: Object, notes: list[str]) -> Object:
    converted = {key: value for key, value in container.items() if key in _CONTAINER_FIELDS}
    notes.extend(
        f"container {container.get('name')}: {key} is left out" for key in sorted(set(container) - set(converted))
    )
    ports = converted.pop("ports", None) or ()
    if ports:
        name = {"name": ports[0]["name"]} if ports[0].get("name") in _PORT_NAMES else {}
        converted["ports"] = [{**name, "containerPort": ports[0]["containerPort"]}]
    for kind in ("readinessProbe", "livenessProbe", "startupProbe"):
        for action in ("httpGet", "tcpSocket", "grpc"):
            # Names of ports are gone, and the port that serves is the default.
            if nested(converted, kind, action, "port") is not None:
                rest = {key: value for key, value in converted[kind][action].items() if key != "port"}
                converted[kind] = {**converted[kind], action: rest}
    return converted


def _hosts(route: Object, notes: list[str]) -> list[str]:
    spec = route.get("spec") or {}
    rules = spec.get("rules") or ()
    prefixes = [prefix for prefix in spec.get("pathPrefixes") or () if prefix != "/"]
    if prefixes or any(rule.get("paths") or rule.get("headers") for rule in rules):
        notes.append(f"{name_of(route)}: rules on paths and headers are left out: a host goes to one service")
    hosts = [
        str(host)
        for host in (*(spec.get("hosts") or ()), *(host for rule in rules for host in rule.get("hosts") or ()))
    ]
    notes.extend(
        f"{name_of(route)}: host {host} is left out: a DomainMapping has one host, so write one for each"
        for host in hosts
        if "*" in host
    )
    return [host for host in hosts if "*" not in host]


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
    schedules: list[Object] = []
    for document in documents:
        if document.get("kind") != "ScaledObject" or nested(document, "spec", "scaleTargetRef", "name") != target:
            continue
        crons = (trigger for trigger in nested(document, "spec", "triggers") or () if trigger.get("type") == "cron")
        schedules += [_schedule(cron.get("metadata") or {}, name_of(document)) for cron in crons]
    return schedules


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
@click.option(
    "--build/--no-build",
    "is_building",
    default=True,
    show_default=True,
    help="Build the images that compose files ask for, with buildah, podman or docker, and keep them on this machine.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    envvar="COMPOSE_PROFILES",
    metavar="NAME",
    help="Convert the services of this profile of compose files too; '*' is all.",
)
@state_option
def convert(*, files: tuple[str, ...], is_building: bool, profiles: tuple[str, ...], state_path: Path | None) -> None:
    """Print Knative manifests for compose files, and for HTTPScaledObjects or InterceptorRoutes with their Deployments.

    Notes about parts without an equivalent go to standard error. `serving convert compose.yaml | serving apply -f -` applies
    them.
    """
    try:
        chosen = {name for profile in profiles for name in profile.split(",")}
        converted = _converted([(file, document) for file in files for document in _documents(file)], chosen)
    except (InvalidValue, SettingsError) as error:
        fail_usage(str(error))
    if not converted.manifests:
        fail_usage(
            "nothing to convert: expected a compose file with services, an HTTPScaledObject or an InterceptorRoute"
        )
    for note in (*converted.notes, *_name_notes(converted.manifests)):
        print_aside(f"note: {note}")
    if is_building:
        _build(converted, ImageStore(StateFolder((state_path or default_state_path()).absolute()).images))
    else:
        for build, _ in converted.builds:
            print_aside(
                f"note: {build.name}: build is not converted; `serving deploy {build.name} FOLDER` deploys a folder"
            )
    click.echo(yaml.safe_dump_all(converted.manifests, sort_keys=False, default_flow_style=False), nl=False)


def _name_notes(manifests: Iterable[Object]) -> Iterator[str]:
    """Reasons that pods on this machine cannot resolve short names of services."""
    named = [manifest for manifest in manifests if short_url(manifest)]
    if named and not can_mount():
        yield f"{UNRESOLVED}; this concerns {', '.join(map(short_url, named))}"
        return
    for service in named:
        problem = privileged_problem(route_policy(annotations_of(service)).named_port)
        if problem:
            yield f"{short_url(service)}: {problem}"


def _build(converted: Converted, store: ImageStore) -> None:
    """Build the images, and name them in the manifests. An image stays until it is removed: manifests may be kept."""
    for build, container in converted.builds:
        try:
            with Progress(f"building {build.name}"):
                container["image"] = build_image(build, store, is_kept=True)
        except InvalidValue as error:
            fail_usage(f"services.{build.name}.build: {error}")
        except ImageUnavailable as error:
            fail(f"{error}; with --no-build nothing is built")
        except OSError as error:
            fail(f"{error.filename or store.folder}: {error.strerror}")


def _converted(documents: Sequence[tuple[str, Any]], profiles: Collection[str]) -> Converted:
    converted = Converted()
    for file, document in documents:
        if is_compose(document):
            _add(converted, _converted_compose(file, document, profiles))
    if any(document.get("kind") in ROUTE_KINDS for _, document in documents):
        _add(converted, from_keda([document for _, document in documents if not is_compose(document)]))
    return converted


def _converted_compose(file: str, document: Mapping[str, Any], profiles: Collection[str]) -> Converted:
    """Convert a compose file, with variables of the environment and of .env beside it."""
    folder = Path() if file == _STDIN else Path(file).parent
    interpolation = Interpolation(os.environ)
    # A folder of this name is a virtual environment.
    if (folder / ".env").is_file():
        read_compose_env_file(folder / ".env", interpolation)
    services = interpolation.services(document["services"], f"{file}: services")
    for name, service in services.items():
        if isinstance(service, dict) and service.get("env_file"):
            services[name] = _with_env_files(service, folder, interpolation, where=f"{file}: services.{name}")
    converted = from_compose(
        {**document, "services": services},
        folder=folder.absolute(),
        environment=interpolation.variables,
        profiles=profiles,
    )
    unset = sorted(interpolation.unset)
    if unset:
        hint = f"$${unset[0]} leaves ${unset[0]} to the container"
        converted.notes.append(f"{file}: without a value, so empty: {', '.join(unset)}; {hint}")
    return converted


def _with_env_files(service: Object, folder: Path, interpolation: Interpolation, *, where: str) -> Object:
    """The service with the variables of its files, which those of ``environment`` override."""
    environment = pairs_with_values(service.get("environment") or {}, "variables", interpolation.variables)
    values: dict[str, str] = {}
    env_files = service["env_file"]
    for env_file in env_files if isinstance(env_files, list) else [env_files]:
        entry = env_file if isinstance(env_file, dict) else {"path": env_file}
        if entry.get("format"):
            raise InvalidValue(text=str(entry["format"]), expected=f"a format of {where}.env_file: leave it out")
        path = folder / str(entry.get("path"))
        if not path.exists() and not entry.get("required", True):
            continue
        # Its variables are not those of the compose file.
        own = Interpolation({**environment, **interpolation.variables})
        try:
            values |= read_compose_env_file(path, own)
        except OSError as error:
            fail_usage(f"{where}.env_file: {path}: {error.strerror}")
        interpolation.unset |= own.unset
    rest = {key: value for key, value in service.items() if key != "env_file"}
    return {**rest, "environment": {**values, **environment}}


def _add(converted: Converted, part: Converted) -> None:
    converted.manifests += part.manifests
    converted.notes += part.notes
    converted.builds += part.builds


def _documents(file: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if file == _STDIN else read_input_text(Path(file))
        check_depth(text)
        documents = list(yaml.load_all(text, Loader=ManifestLoader))
    except (OSError, UnicodeDecodeError) as error:
        # Standard input is read as text.
        fail_usage(f"{file}: {error.strerror if isinstance(error, OSError) else 'not a text file'}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fail_usage(f"{file}{line}: not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        fail_usage(f"{file}: not YAML: {' '.join(str(error).split())}")
    return [document for document in documents if isinstance(document, dict)]
