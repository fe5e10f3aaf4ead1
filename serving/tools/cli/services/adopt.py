"""``serving adopt`` and ``serving release``: start and stop scaling an existing workload by its requests.

``adopt`` writes a ScaledWorkload with the present replicas in an annotation. ``release`` deletes it and restores the
workload.
"""

import json
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from serving.controller.workloads.status import scalers_of
from serving.core.model.errors import SettingsError
from serving.core.model.knative import IN_PLACE_ANNOTATION, REPLICAS_BEFORE_ANNOTATION, SCALED_WORKLOADS_LABEL
from serving.core.model.objects import Object, annotations_of, labels_of, name_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec, WorkloadScaling, WorkloadService, WorkloadTarget
from serving.home.state import StateFolder
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    HORIZONTAL_POD_AUTOSCALER,
    NAMESPACE,
    REPLICA_SET,
    SCALED_WORKLOAD,
    SERVICE,
    STATEFUL_SET,
    TARGET_KINDS,
    Kind,
    target_kind,
)
from serving.net.cluster.kubeclient import listed_kind
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail, fail_usage, message_of
from serving.tools.cli.client.objects import absence_of, items_of
from serving.tools.cli.client.output import counted, output_option, print_aside
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.takeover import (
    delete_twin,
    make_twin,
    restore_selector,
    route_to_activators,
    short_hosts,
    twin_name,
)
from serving.tools.cli.services.waiting import until, until_workload_ready

_TIMEOUT_S = 120.0
_POLL_S = 0.2
_PUBLIC_PORT = 80
_LOOPBACK = "127.0.0.1"


_SHORT_NAMES = {"deploy": DEPLOYMENT, "sts": STATEFUL_SET, "rs": REPLICA_SET}
_KINDS = _SHORT_NAMES | {word: kind for kind in TARGET_KINDS for word in (kind.plural, kind.name.lower())}
_FORM = "expected KIND/NAME, as deploy/shop, sts/shop or rollouts.argoproj.io/shop"
# Ports that serve requests, the likeliest first, where a Service has several.
_PORT_NAMES = ("http", "web", "http-web")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An object with a scale subresource, and its desired number of pods."""

    kind: Kind
    name: str
    body: Object
    replicas: int

    @property
    def shown(self) -> str:
        """The target as text: "deployment/shop"."""
        return f"{self.kind.name.lower()}/{self.name}"


def target_of(api: ApiClient, text: str) -> Target:
    """The object that a text such as "deploy/shop" names. Exits if it does not exist or has no scale."""
    word, _, name = text.partition("/")
    if not name or "/" in name:
        fail_usage(f"{text!r} is not a workload; {_FORM}")
    plural, _, group = word.lower().partition(".")
    kind = _KINDS.get(word.lower()) or (_listed(api, _version_of(api, group), plural) if group else None)
    if kind is None:
        fail_usage(f"{word!r} is no kind of workload; {_FORM}")
    return _read(api, kind, name)


def target_in(api: ApiClient, target: WorkloadTarget) -> Target:
    """The object that a ScaledWorkload names. Exits if it does not exist or has no scale."""
    kind = target_kind(target.api_version, target.kind) or _listed(api, target.api_version, target.kind.lower())
    if kind is None:
        fail(f"{target.kind} of {target.api_version} has no scale subresource here")
    return _read(api, kind, target.name)


def _read(api: ApiClient, kind: Kind, name: str) -> Target:
    status, body = api.call("GET", path_of(kind, api.namespace, name))
    if status >= 400:
        fail(
            absence_of(api, kind, name)
            if status == HTTPStatus.NOT_FOUND
            else f"{kind.name.lower()}/{name}: {message_of(body)}"
        )
    scale = api.done("GET", path_of(kind, api.namespace, name, subresource="scale"))
    # JSON leaves out 0.
    return Target(kind=kind, name=name, body=body, replicas=int(nested(scale, "spec", "replicas") or 0))


def _version_of(api: ApiClient, group: str) -> str:
    return str(nested(api.peek(f"/apis/{group}"), "preferredVersion", "groupVersion") or group)


def _listed(api: ApiClient, api_version: str, word: str) -> Kind | None:
    """The kind with this name or plural in lower case, if the server has it with a scale subresource; else None."""
    resources = api.peek(f"/apis/{api_version}").get("resources") or ()
    names = {str(resource["kind"]) for resource in resources if word in {resource["name"], resource["kind"].lower()}}
    kind = listed_kind(api_version, next(iter(names)), resources) if names else None
    return kind if kind is not None and kind.has_scale else None


def service_before(api: ApiClient, target: Target, *, named: str | None) -> Object:
    """The Service ``named``, else the only Service that selects the workload's pods. Exits if there is none."""
    services = items_of(api, SERVICE)
    if named is not None:
        chosen = next((service for service in services if name_of(service) == named), None)
        if chosen is None:
            fail(f"no service {named} in namespace {api.namespace}")
        return chosen
    labels = labels_of(nested(target.body, "spec", "template"))
    matching = [service for service in services if _selects(service, labels)]
    if len(matching) != 1:
        if not matching:
            fail(f"no Service selects the pods of {target.shown}; create one, such as by `kubectl expose`")
        known = ", ".join(map(name_of, matching))
        fail(f"{len(matching)} Services select the pods of {target.shown}: {known}; choose one with --service")
    return matching[0]


def _selects(service: Object, labels: dict[str, str]) -> bool:
    selector = nested(service, "spec", "selector") or {}
    return bool(selector) and selector.items() <= labels.items()


def port_of(service: Object, wanted: str | None) -> Any:  # noqa: ANN401 - a number or a name
    """The port of a Service: the port ``wanted`` (number or name), else the port named for HTTP, else the only port.

    Exits if the port is ambiguous.
    """
    ports: list[Object] = nested(service, "spec", "ports") or []
    by_word = {word: port["port"] for port in ports for word in (str(port["port"]), port.get("name")) if word}
    if wanted is not None:
        if wanted not in by_word:
            fail(f"service {name_of(service)} has no port {wanted}; it has {', '.join(by_word) or 'none'}")
        return int(wanted) if wanted.isdecimal() else wanted
    likely = [by_word[name] for name in _PORT_NAMES if name in by_word]
    if len(ports) != 1 and not likely:
        fail(f"service {name_of(service)} has {len(ports)} ports; choose one with --port: {', '.join(by_word)}")
    return likely[0] if likely else ports[0]["port"]


def workload_for(workloads: Iterable[Object], target: Target) -> Object | None:
    """The ScaledWorkload that scales a target; None if there is none."""
    for workload in workloads:
        if (nested(workload, "spec", "target", "kind"), nested(workload, "spec", "target", "name")) == (
            target.kind.name,
            target.name,
        ):
            return workload
    return None


def workload_named(api: ApiClient, text: str) -> Object:
    """The ScaledWorkload with this name, or with this target ("deploy/shop"). Exits if it does not exist."""
    workloads = items_of(api, SCALED_WORKLOAD)
    if "/" not in text:
        chosen = next((workload for workload in workloads if name_of(workload) == text), None)
    else:
        chosen = workload_for(workloads, target_of(api, text))
    if chosen is None:
        known = ", ".join(map(name_of, workloads))
        fail(
            f"no scaledworkload for {text} in namespace {api.namespace}; there {f'are {known}' if known else 'is none'}"
        )
    return chosen


@click.command()
@click.argument("target", metavar="KIND/NAME")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Host of the workload's requests, such as shop.example.com or *.example.com; repeatable.",
)
@click.option(
    "--path", "paths", multiple=True, metavar="PREFIX", help="Serve only requests below this path; repeatable."
)
@click.option(
    "--service", metavar="NAME", help="Service of the workload. Required if several Services select its pods."
)
@click.option("--port", metavar="PORT", help="Port of the Service, by number or name.")
@click.option("--min", "min_count", type=click.IntRange(0), help="Minimum number of pods; 0 allows scale to zero.")
@click.option("--max", "max_count", type=click.IntRange(0), help="Maximum number of pods; 0 is no limit.")
@click.option("--metric", type=click.Choice(["concurrency", "rps"]), help="Metric that determines the number of pods.")
@click.option(
    "--value", "--target", "value", type=click.FloatRange(0, min_open=True), help="Target value of the metric per pod."
)
@click.option("--window", metavar="TIME", help="Time over which load is averaged, such as 60s.")
@click.option(
    "--in-place",
    is_flag=True,
    help="Take over the workload's Service: its name and address then lead to the activators.",
)
@click.option("--dry-run", is_flag=True, help="Print the ScaledWorkload without writing it.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until requests are served.")
@wait_timeout_option(_TIMEOUT_S)
@output_option()
@api_options
def adopt(*, api: ApiClient, target: str, output: str, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Scale an existing workload, such as deploy/shop or sts/shop, by its requests, including to zero.

    The pods stay unchanged. `serving release` reverts the command.
    """
    adopted = target_of(api, target)
    workload, existing = _wanted(api, adopted, options)
    if options["in_place"] and existing is not None:
        fail(
            f"{adopted.shown} is adopted already: release it first, because --in-place needs a Service that leads to pods"
        )
    if options["dry_run"]:
        click.echo(yaml.safe_dump(workload, sort_keys=False), nl=False)
        return
    if options["in_place"]:
        make_twin(api, annotations_of(workload)[IN_PLACE_ANNOTATION], wait_s=options["wait_s"])
    _permit(api)
    path = path_of(SCALED_WORKLOAD, api.namespace, name_of(existing) if existing else None)
    written = api.done("PATCH" if existing else "POST", path, workload)
    if options["wait"] or options["in_place"]:
        written = until_workload_ready(api, name_of(written), timeout_s=options["wait_s"])
    if options["in_place"]:
        route_to_activators(api, annotations_of(workload)[IN_PLACE_ANNOTATION], timeout_s=options["wait_s"])
    if output == "json":
        click.echo(json.dumps(written, indent=2))
        return
    _print_outcome(api, adopted, written)


def _permit(api: ApiClient) -> None:
    """Label the namespace of a cluster for ScaledWorkloads if the user may; else a condition names the label."""
    path = path_of(NAMESPACE, None, str(api.namespace))
    if api.state_path is None and SCALED_WORKLOADS_LABEL not in labels_of(api.peek(path)):
        status, _ = api.call("PATCH", path, {"metadata": {"labels": {SCALED_WORKLOADS_LABEL: "enabled"}}})
        if status < 400:
            print_aside(f"note: namespace {api.namespace} has the label {SCALED_WORKLOADS_LABEL}=enabled now")


def _wanted(api: ApiClient, target: Target, options: dict[str, Any]) -> tuple[Object, Object | None]:
    """The ScaledWorkload to write, and the existing one, if any."""
    scaled = WorkloadTarget(name=target.name, kind=target.kind.name, api_version=target.kind.api_version)
    if scalers := scalers_of(scaled, items_of(api, HORIZONTAL_POD_AUTOSCALER)):
        fail(f"horizontalpodautoscaler/{scalers[0]} scales {target.shown}: delete it first, both would write replicas")
    existing = workload_for(items_of(api, SCALED_WORKLOAD), target)
    if existing is not None and nested(existing, "metadata", "ownerReferences"):
        fail(f"{target.shown} is scaled by {_owner_text(existing)}: change that instead")
    service = service_before(api, target, named=options["service"])
    before = annotations_of(existing).get(REPLICAS_BEFORE_ANNOTATION, str(target.replicas))
    annotations, hosts, service_name = {REPLICAS_BEFORE_ANNOTATION: before}, options["hosts"], name_of(service)
    if options["in_place"]:
        annotations[IN_PLACE_ANNOTATION] = service_name
        hosts, service_name = (*hosts, *short_hosts(api, service)), twin_name(service_name)
    spec = ScaledWorkloadSpec(
        target=scaled,
        service=WorkloadService(name=service_name, port=port_of(service, options["port"])),
        hosts=hosts,
        paths=options["paths"],
        scaling=WorkloadScaling(
            min_count=options["min_count"],
            max_count=options["max_count"],
            metric=options["metric"],
            target=options["value"],
            window=options["window"],
        ),
    )
    problems = list(spec.problems())
    if problems:
        fail_usage(str(SettingsError(problems)))
    # In place, the cluster-local name is the Service's name.
    name = name_of(existing) if existing else annotations.get(IN_PLACE_ANNOTATION, target.name)
    workload = spec.to_object(name=name, namespace=api.namespace)
    workload["metadata"]["annotations"] = annotations
    return workload, existing


def _owner_text(workload: Object) -> str:
    owner = nested(workload, "metadata", "ownerReferences", 0)
    return f"{str(owner['kind']).lower()}/{owner['name']}"


def _print_outcome(api: ApiClient, target: Target, workload: Object) -> None:
    spec = ScaledWorkloadSpec.from_object(workload)
    low, high = spec.scaling.min_count or 0, spec.scaling.max_count
    before, taken = (annotations_of(workload).get(key) for key in (REPLICAS_BEFORE_ANNOTATION, IN_PLACE_ANNOTATION))
    hosts = ", ".join(spec.hosts) or nested(workload, "status", "url")
    click.echo(f"{target.shown} is scaled by its requests as scaledworkload/{name_of(workload)}")
    click.echo(f"  requests  {hosts} → service/{spec.service.name}:{spec.service.port}")
    click.echo(f"  pods      at least {low}, {f'at most {high}' if high else 'no limit'}; {target.replicas} now")
    click.echo(f"  undo      serving release {name_of(workload)}: replicas {before}, as before")
    public = _public_hosts(spec)
    if taken:
        click.echo(f"  send      to service/{taken}, as before")
    elif not public:
        click.echo(f"  send      to {nested(workload, 'status', 'url')} from other pods")
    elif api.state_path is not None:
        ports = StateFolder(Path(str(api.state_path))).read_ports()
        shown = public[0].replace("*", "any", 1)
        click.echo(f"  send      curl -H 'Host: {shown}' http://{_LOOPBACK}:{ports['public']}/")
    else:
        _print_route(api, workload, spec)


def _public_hosts(spec: ScaledWorkloadSpec) -> list[str]:
    """The hosts with a domain. Short names of Services, such as "shop", are left out."""
    return [host for host in spec.hosts if "." in host]


def _print_route(api: ApiClient, workload: Object, spec: ScaledWorkloadSpec) -> None:
    """Print the object that routes a host to the activators: an HTTPRoute with a Gateway, else an Ingress."""
    listed = api.peek("/apis/gateway.networking.k8s.io/v1/gateways").get("items")
    click.echo("  send      apply this, or let your load balancer lead the host to service/activator:")
    route = http_route(name_of(workload), spec, listed[0]) if listed else ingress(name_of(workload), spec)
    click.echo("---\n" + yaml.safe_dump(route, sort_keys=False), nl=False)


def ingress(name: str, spec: ScaledWorkloadSpec) -> Object:
    """An Ingress in the activators' namespace that routes a workload's hosts and paths to the activators."""
    backend = {"service": {"name": "activator", "port": {"number": _PUBLIC_PORT}}}
    paths = [{"path": path, "pathType": "Prefix", "backend": backend} for path in spec.paths or ("/",)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": name, "namespace": system_namespace()},
        "spec": {"rules": [{"host": host, "http": {"paths": paths}} for host in _public_hosts(spec)]},
    }


def http_route(name: str, spec: ScaledWorkloadSpec, gateway: Object) -> Object:
    """An HTTPRoute of a Gateway with the same rules as ``ingress``."""
    parent = {"name": name_of(gateway), "namespace": nested(gateway, "metadata", "namespace")}
    matches = [{"path": {"type": "PathPrefix", "value": path}} for path in spec.paths or ("/",)]
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": system_namespace()},
        "spec": {
            "parentRefs": [parent],
            "hostnames": _public_hosts(spec),
            "rules": [{"matches": matches, "backendRefs": [{"name": "activator", "port": _PUBLIC_PORT}]}],
        },
    }


@click.command()
@click.argument("name", metavar="NAME|KIND/NAME")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the restored replicas are ready.")
@wait_timeout_option(_TIMEOUT_S)
@output_option()
@api_options
def release(*, api: ApiClient, name: str, wait: bool, wait_s: float, output: str) -> None:
    """Stop scaling a workload: restore its earlier number of replicas, and delete its ScaledWorkload.

    First route its requests to its own Service: the activators stop serving its hosts.
    """
    workload = workload_named(api, name)
    if nested(workload, "metadata", "ownerReferences"):
        fail(f"scaledworkload/{name_of(workload)} is of {_owner_text(workload)}: delete that instead")
    spec = ScaledWorkloadSpec.from_object(workload)
    target = target_in(api, spec.target)
    before = annotations_of(workload).get(REPLICAS_BEFORE_ANNOTATION, str(target.replicas))
    count = int(before) if before.isdecimal() else target.replicas
    if count and wait:
        _raise_to(api, workload, spec, target=target, count=count, timeout_s=wait_s)
    taken = annotations_of(workload).get(IN_PLACE_ANNOTATION)
    if taken:
        restore_selector(api, taken, has_pods=count > 0 and wait, timeout_s=wait_s)
    api.done("DELETE", path_of(SCALED_WORKLOAD, api.namespace, name_of(workload)))
    if taken:
        delete_twin(api, taken)
    _set_scale(api, target, count)
    if output == "json":
        click.echo(json.dumps({"target": target.shown, "replicas": count}))
        return
    click.echo(f"{target.shown} has {counted(count, 'replica')} again, and nothing scales it")
    if spec.hosts:
        print_aside(f"note: nothing serves {', '.join(spec.hosts)} here any more")


def _set_scale(api: ApiClient, target: Target, count: int) -> None:
    scale = path_of(target.kind, api.namespace, target.name, subresource="scale")
    api.must(ApiCall(method="PATCH", path=scale, body={"spec": {"replicas": count}}))


def _raise_to(
    api: ApiClient, workload: Object, spec: ScaledWorkloadSpec, *, target: Target, count: int, timeout_s: float
) -> None:
    """Start the original number of pods, and wait until they are ready, while the activators still queue requests."""
    high = spec.scaling.max_count
    scaling = {"min": count, "max": max(high, count) if high else high}
    path = path_of(SCALED_WORKLOAD, api.namespace, name_of(workload))
    api.done("PATCH", path, {"spec": {"scaling": {key: value for key, value in scaling.items() if value is not None}}})
    if target.replicas < count:
        # Where another controller scales the target, too, the autoscaler writes nothing.
        _set_scale(api, target, count)

    def pending() -> str | None:
        ready_count = nested(api.done("GET", path), "status", "readyReplicas") or 0
        return None if ready_count >= count else f"{ready_count} of {count} pods are ready"

    def late(state: str) -> str:
        return f"{state} after {timeout_s:g} s; `serving release --no-wait` does not wait for them"

    until(pending, f"waiting for {counted(count, 'pod')}", late=late, timeout_s=timeout_s, poll_s=_POLL_S)
