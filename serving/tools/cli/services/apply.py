"""``serving apply``: creates or updates the objects of manifests, and lists the changes."""

import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click
import msgspec

from serving.core.model.errors import Problem
from serving.core.model.knative import CREATOR_ANNOTATION, LAST_APPLIED_ANNOTATION, LAST_MODIFIER_ANNOTATION
from serving.core.model.objects import Object, name_of, nested
from serving.core.model.scaledworkload import ScaledWorkloadSpec
from serving.home.controllers.ingressrules import Routing, routing_of
from serving.home.schemas.patch import same_json
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    HTTP_ROUTE,
    INGRESS,
    NAMESPACE,
    SCALED_WORKLOAD,
    SERVICE,
    SERVING_SERVICE,
    Kind,
)
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, message_of
from serving.tools.cli.client.objects import items_of
from serving.tools.cli.client.output import Progress, output_option, paint, print_aside
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.cloudrun import without_cloud_run
from serving.tools.cli.services.manifests import Manifest, read_manifests
from serving.tools.cli.services.waiting import until_ready

_SHOWN_LENGTH_MAX = 60
# Fields that the server maintains, and that the user did not apply.
_SERVERS_OWN = {"resourceVersion", "generation", "uid", "creationTimestamp", "managedFields", "selfLink"}
_SERVERS_ANNOTATIONS = {LAST_APPLIED_ANNOTATION, CREATOR_ANNOTATION, LAST_MODIFIER_ANNOTATION}

# JSON values have no static types.
# ruff: noqa: ANN401

_SHOWN_CHANGES_MAX = 20
_TIMEOUT_S = 300.0
_NOT_FOUND, _CONFLICT = 404, 409
# Every server has this namespace.
_DEFAULT_NAMESPACE = "default"
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white"}


def with_last_applied(body: Object) -> Object:
    """The manifest with a copy of itself in an annotation, in the format of ``kubectl apply``."""
    # Fields of an export belong to the exported object.
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    annotations = {
        key: text for key, text in (metadata.get("annotations") or {}).items() if key not in _SERVERS_ANNOTATIONS
    }
    plain = {**body, "metadata": {**metadata, "annotations": annotations} if annotations else _without(metadata)}
    plain.pop("status", None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")) + "\n"
    return {**plain, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED_ANNOTATION: text}}}


def patch_between(wanted: Object, live: Object) -> Object:
    """The JSON merge patch from ``live`` to ``wanted`` (made by ``with_last_applied``); {} without changes."""
    try:
        last = json.loads(((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED_ANNOTATION, "{}"))
    except (ValueError, AttributeError):
        # Another tool wrote the object, so the applied fields are unknown.
        last = {}
    patch = _merged(last if isinstance(last, dict) else {}, wanted, live)
    return {key: value for key, value in patch.items() if key not in {"apiVersion", "kind", "status"}}


def changed_fields(before: Object, after: Object) -> list[str]:
    """A line for each field that differs, except the server's fields: "spec.a: 1 → 2"."""
    return [
        f"{path}: {_shown(old)} → {_shown(new)}"
        for path, old, new in _differences(before, after, "")
        if not path.startswith("status") and LAST_APPLIED_ANNOTATION not in path and not _is_servers_own(path)
    ]


def _is_servers_own(path: str) -> bool:
    """Whether the server sets the field, such as "metadata.managedFields[0].time"."""
    parts = re.split(r"[.\[]", path)
    return parts[-1] in _SERVERS_OWN or (parts[0] == "metadata" and not _SERVERS_OWN.isdisjoint(parts[1:2]))


def _without(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key != "annotations"}


def _merged(last: dict[str, Any], wanted: dict[str, Any], live: dict[str, Any]) -> Object:
    patch: Object = {key: None for key in last if key not in wanted and key in live}
    for key, value in wanted.items():
        there = live.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            before = last.get(key)
            inner = _merged(before if isinstance(before, dict) else {}, value, there)
            if inner:
                patch[key] = inner
        elif value is not None and not same_json(value, there):
            patch[key] = value
    return patch


def _differences(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            inner = f"[{key}]" if "/" in key or "." in key else f".{key}"
            yield from _differences(before.get(key), after.get(key), (path + inner).removeprefix("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(old, new, f"{path}[{number}]")
    elif not same_json(before, after):
        yield path, before, after


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[: _SHOWN_LENGTH_MAX - 3]}..."


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one manifest. ``result`` is created, changed, unchanged or failed.

    ``changes`` are lines of text, ``message`` is the error. ``where`` is the position of the manifest in its file.
    """

    kind: str
    namespace: str
    name: str
    result: str
    changes: list[str] = []
    message: str = ""
    where: str = ""


@click.command()
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="File or folder that contains the resources to apply.",
)
@click.option("--dry-run", is_flag=True, help="Validate and print the changes without applying them.")
@click.option(
    "--validate",
    type=click.Choice(["strict", "warn", "ignore"]),
    default="strict",
    show_default=True,
    help="Validation of unknown fields: strict rejects the manifest, warn, or ignore.",
)
@click.option("--wait/--no-wait", default=False, show_default=True, help="Wait until the services are ready.")
@wait_timeout_option(_TIMEOUT_S, "--timeout")
@output_option()
@api_options
def apply(*, api: ApiClient, paths: tuple[str, ...], output: str, **options: Any) -> None:
    """Create or update objects from manifests. Manifests of Knative and Cloud Run work unchanged.

    Fields that an earlier apply set and that the manifest no longer has are removed; fields set by others are kept.
    """
    files = read_manifests(paths)
    done = []
    namespaces = Namespaces(api, is_dry=options["dry_run"])
    with Progress("applying") as progress:
        for manifest in files.manifests:
            progress.update(f"applying {manifest.kind.name.lower()}/{manifest.name}")
            applied = _apply(api, _portable(manifest), namespaces, validate=options["validate"].capitalize())
            done.append(applied)
            if output == "text":
                _print(applied, is_dry=options["dry_run"])
    foreign = [_not_served(problem) for problem in files.foreign]
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins([*done, *foreign]), indent=2))
    else:
        for applied in foreign:
            print_aside(f"{applied.where}: {applied.message}")
    if any(applied.result == "failed" for applied in done):
        sys.exit(1)
    if output == "text" and not options["dry_run"]:
        _print_routing(api, files.manifests)
    if options["wait"] and not options["dry_run"]:
        _wait(api, files.manifests, timeout_s=options["wait_s"], is_text=output == "text")
    if foreign:
        sys.exit(1)


def _wait(api: ApiClient, manifests: Iterable[Manifest], *, timeout_s: float, is_text: bool) -> None:
    for manifest in manifests:
        if manifest.kind == SERVING_SERVICE:
            service = until_ready(api.within(_namespace(api, manifest)), manifest.name, timeout_s=timeout_s).service
            if is_text:
                click.echo(f"service/{manifest.name} is ready at {nested(service, 'status', 'url')}")


def _print_routing(api: ApiClient, manifests: Iterable[Manifest]) -> None:
    """On this machine, print the Deployments that receive requests by Ingresses and HTTPRoutes, and ignored parts."""
    routes: dict[str, list[tuple[str, str]]] = {}
    for manifest in manifests:
        if manifest.kind in (INGRESS, HTTP_ROUTE) and api.state_path is not None:
            routes.setdefault(_namespace(api, manifest), []).append((manifest.kind.name, manifest.name))
    for namespace, own in routes.items():
        for line in routing_lines(api.within(namespace), own):
            print_aside(f"note: {line}")


def _namespace(api: ApiClient, manifest: Manifest) -> str:
    return str(manifest.body["metadata"].get("namespace") or api.namespace)


def _portable(manifest: Manifest) -> Manifest:
    """The manifest without the parts that Cloud Run adds to an export; prints a note with the removed parts."""
    if manifest.kind != SERVING_SERVICE:
        return manifest
    portable = without_cloud_run(manifest.body)
    if portable.left_out:
        Progress.hide()
        print_aside(f"note: {manifest.where}: an export of Cloud Run; left out: {', '.join(portable.left_out)}")
    return msgspec.structs.replace(manifest, body=portable.body)


def _not_served(problem: Problem) -> Applied:
    return Applied(
        kind="",
        namespace="",
        name="",
        result="failed",
        message=f"{problem.what}; expected {problem.expected}",
        where=problem.where,
    )


class Namespaces:
    """The namespaces of manifests. On this machine, missing namespaces are created (or planned, in a dry run)."""

    def __init__(self, api: ApiClient, *, is_dry: bool) -> None:
        self._api = api
        self.is_dry = is_dry
        # Namespaces that a real run would create before their objects.
        self._planned: set[str] = set()

    def plan(self, name: str) -> None:
        """Record a namespace that a manifest creates, before the objects in it are checked."""
        if self.is_dry:
            self._planned.add(name)

    def checked_namespace(self, namespace: str) -> str:
        """The namespace for the server's check of an object; "default" if a dry run only plans the namespace."""
        return _DEFAULT_NAMESPACE if namespace in self._planned else namespace

    def create(self, name: str) -> bool:
        """Create the missing namespace of a manifest, on this machine only; return whether it exists now."""
        if name in self._planned:
            return True
        if self._api.state_path is None:
            return False
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        query = {"dryRun": "All"} if self.is_dry else {}
        status, _ = self._api.send(ApiCall(method="POST", path=path_of(NAMESPACE, None), query=query, body=body))
        if status < 400:
            self.plan(name)
            Progress.hide()
            print_aside(f"namespace/{name} created{' (dry run)' if self.is_dry else ''}: there was none")
        return status < 400


def _apply(api: ApiClient, manifest: Manifest, namespaces: Namespaces, *, validate: str) -> Applied:
    kind, namespace = manifest.kind, _namespace(api, manifest)
    name, is_dry = manifest.name, namespaces.is_dry
    done = Applied(
        kind=kind.name, namespace=namespace if kind.namespaced else "", name=name, where=manifest.where, result="failed"
    )
    query = {"fieldValidation": validate, "dryRun": "All" if is_dry else "", "fieldManager": "serving"}
    wanted = with_last_applied(manifest.body)
    status, before = api.call("GET", path_of(kind, namespace, name))
    if status == _NOT_FOUND:
        status, after = _create(api, kind, namespace, body=wanted, query=query)
        if status == _NOT_FOUND and kind.namespaced and namespaces.create(namespace):
            status, after = _create(api, kind, namespaces.checked_namespace(namespace), body=wanted, query=query)
            if is_dry and status == _CONFLICT:
                # The namespace of the check has an object with that name.
                status = 201
        if status < 400:
            if kind == NAMESPACE:
                namespaces.plan(name)
            return msgspec.structs.replace(done, result="created")
    elif status < 400:
        patch = patch_between(wanted, before)
        if not patch:
            return msgspec.structs.replace(done, result="unchanged")
        path = path_of(kind, namespace, name)
        status, after = api.send(ApiCall(method="PATCH", path=path, query=query, body=patch))
        if status < 400:
            changes = changed_fields(before, after)
            return msgspec.structs.replace(done, result="changed" if changes else "unchanged", changes=changes)
    else:
        after = before
    return msgspec.structs.replace(done, message=message_of(after))


def _create(api: ApiClient, kind: Kind, namespace: str, *, body: Object, query: Mapping[str, str]) -> tuple[int, Any]:
    if kind.namespaced and (body.get("metadata") or {}).get("namespace"):
        body = {**body, "metadata": {**body["metadata"], "namespace": namespace}}
    return api.send(ApiCall(method="POST", path=path_of(kind, namespace), query=query, body=body))


def _print(applied: Applied, *, is_dry: bool) -> None:
    Progress.hide()
    name = f"{applied.kind.lower()}/{applied.name}"
    if applied.result == "failed":
        print_aside(f"{applied.where}: {name}: {applied.message}")
        return
    word = paint(applied.result, _COLORS[applied.result])
    click.echo(f"{name} {word}{' (dry run)' if is_dry else ''}")
    for line in applied.changes[:_SHOWN_CHANGES_MAX]:
        click.echo(f"  {line}")
    more = len(applied.changes) - _SHOWN_CHANGES_MAX
    if more > 0:
        click.echo(f"  and {more} more")


# The controller follows within milliseconds.
_WITHIN_S, _PAUSE_S = 3.0, 0.05
_ROUTES = (INGRESS, HTTP_ROUTE)


def routing_lines(api: ApiClient, routes: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A line for each Deployment that receives requests by the ``routes`` (kind, name), and for each ignored part."""
    chosen = set(routes)
    present = [route for kind in _ROUTES for route in items_of(api, kind)]
    # The domain is in the objects that the controller writes.
    routing = routing_of(present, items_of(api, SERVICE), items_of(api, DEPLOYMENT), domain="localhost")
    workloads = _written(api, routing)
    for name, routed in routing.deployments.items():
        own = [route for route in routed.routes if _key(route) in chosen]
        if own and name in workloads:
            yield f"{_word(own[0])}: {_described(workloads[name])}"
    for note in routing.notes:
        if _key(note.route) in chosen:
            yield f"{_word(note.route)}: {note.text}"


def _written(api: ApiClient, routing: Routing) -> dict[str, Object]:
    """Wait for the ScaledWorkloads of a routing until a timeout; return those that exist, by their target's name."""
    deadline_s = time.monotonic() + _WITHIN_S
    while True:
        workloads = {
            nested(workload, "spec", "target", "name"): workload for workload in items_of(api, SCALED_WORKLOAD)
        }
        if routing.deployments.keys() <= workloads.keys() or time.monotonic() > deadline_s:
            return workloads
        time.sleep(_PAUSE_S)


def _described(workload: Object) -> str:
    spec = ScaledWorkloadSpec.from_object(workload)
    hosts = dict.fromkeys(host for rule in spec.routing for host in rule.hosts)
    served = f"requests for {', '.join(hosts)} go to deployment/{spec.target.name}"
    return f"{served}, which goes to zero without them (scaledworkload/{name_of(workload)})"


def _key(route: Object) -> tuple[str, str]:
    return str(route["kind"]), name_of(route)


def _word(route: Object) -> str:
    return f"{str(route['kind']).lower()}/{name_of(route)}"
