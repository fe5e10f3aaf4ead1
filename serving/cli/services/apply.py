"""``serving apply``: creates or updates the objects of manifests, and lists the changes."""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from serving.cli.client.api import ApiCall, ApiClient, api_options, fail_usage, message_of
from serving.cli.client.output import Progress, paint, print_aside
from serving.cli.client.resources import path_of, wait_timeout_option
from serving.cli.services.manifests import Manifest, read_manifests
from serving.cli.services.waiting import until_ready
from serving.cluster.kinds import NAMESPACE, SERVING_SERVICE
from serving.home.schemas.patch import same_json
from serving.model.errors import SettingsError
from serving.model.knative import LAST_APPLIED_ANNOTATION
from serving.model.objects import Object, nested

_SHOWN_LENGTH_MAX = 60
# Fields that the server maintains; they are no part of what the user applied.
_SERVERS_OWN = {"resourceVersion", "generation", "uid", "creationTimestamp", "managedFields", "selfLink"}

# JSON values come as they are.
# ruff: noqa: ANN401

_SHOWN_CHANGES_MAX = 20
_TIMEOUT_S = 300.0
_NOT_FOUND = 404
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white"}


def with_last_applied(body: Object) -> Object:
    """The manifest with a copy of itself in its annotation, as ``kubectl apply`` sends it."""
    # Fields of an export belong to the object from which it was made.
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    annotations = {
        key: text for key, text in (metadata.get("annotations") or {}).items() if key != LAST_APPLIED_ANNOTATION
    }
    plain = {**body, "metadata": {**metadata, "annotations": annotations} if annotations else _without(metadata)}
    plain.pop("status", None)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":")) + "\n"
    return {**plain, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED_ANNOTATION: text}}}


def patch_between(wanted: Object, live: Object) -> Object:
    """The JSON merge patch from ``live`` to ``wanted`` (from ``with_last_applied``); {} without changes."""
    try:
        last = json.loads(((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED_ANNOTATION, "{}"))
    except (ValueError, AttributeError):
        # Not written by an apply, so nothing is known to have been applied.
        last = {}
    patch = _merged(last if isinstance(last, dict) else {}, wanted, live)
    return {key: value for key, value in patch.items() if key not in {"apiVersion", "kind", "status"}}


def changed_fields(before: Object, after: Object) -> list[str]:
    """A line for each field that differs, but for the server's own: "spec.a: 1 → 2"."""
    return [
        f"{path}: {_shown(old)} → {_shown(new)}"
        for path, old, new in _differences(before, after, "")
        if not path.startswith("status") and LAST_APPLIED_ANNOTATION not in path and not _is_servers_own(path)
    ]


def _is_servers_own(path: str) -> bool:
    """Whether the server sets a field: "metadata.managedFields[0].time", "metadata.ownerReferences[0].uid"."""
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
    """The outcome of one manifest: created, changed, unchanged or failed; ``changes`` as text."""

    kind: str
    namespace: str
    name: str
    result: str
    changes: list[str] = []
    message: str = ""
    where: str = ""


@click.command()
@click.option("-f", "--filename", "paths", multiple=True, required=True, metavar="FILE|DIR|-", help="What to apply.")
@click.option("--dry-run", is_flag=True, help="Validate, and show the changes without making them.")
@click.option(
    "--validate",
    type=click.Choice(["strict", "warn", "ignore"]),
    default="strict",
    show_default=True,
    help="Unknown fields: refuse the manifest, warn, or ignore them.",
)
@click.option("--wait/--no-wait", default=False, show_default=True, help="Until the services are ready.")
@wait_timeout_option(_TIMEOUT_S, "--timeout")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def apply(*, api: ApiClient, paths: tuple[str, ...], output: str, **asked: Any) -> None:
    """Create or change the objects of manifests; Knative's and Cloud Run's work unchanged.

    Fields that were applied before and are no longer in the manifest are removed; fields that others have set stay.
    """
    try:
        manifests = read_manifests(paths)
    except SettingsError as error:
        fail_usage(str(error))
    done = []
    with Progress("applying") as progress:
        for one in manifests:
            progress.update(f"applying {one.kind.name.lower()}/{one.name}")
            applied = _apply(api, one, is_dry=asked["dry_run"], validate=asked["validate"].capitalize())
            done.append(applied)
            if output == "text":
                _print(applied, is_dry=asked["dry_run"])
    if output == "json":
        click.echo(json.dumps(msgspec.to_builtins(done), indent=2))
    if any(one.result == "failed" for one in done):
        sys.exit(1)
    if asked["wait"] and not asked["dry_run"]:
        for one in manifests:
            if one.kind == SERVING_SERVICE:
                service = until_ready(_beside(api, one), one.name, timeout_s=asked["wait_s"])
                if output == "text":
                    click.echo(f"service/{one.name} is ready at {nested(service, 'status', 'url')}")


def _beside(api: ApiClient, manifest: Manifest) -> ApiClient:
    return api.within(_namespace(api, manifest))


def _namespace(api: ApiClient, manifest: Manifest) -> str:
    return str(manifest.body["metadata"].get("namespace") or api.namespace)


def _apply(api: ApiClient, manifest: Manifest, *, is_dry: bool, validate: str) -> Applied:
    kind, namespace = manifest.kind, _namespace(api, manifest)
    name = manifest.name
    done = Applied(
        kind=kind.name, namespace=namespace if kind.namespaced else "", name=name, where=manifest.where, result="failed"
    )
    query = {"fieldValidation": validate, "dryRun": "All" if is_dry else "", "fieldManager": "serving"}
    path = path_of(kind, namespace)
    wanted = with_last_applied(manifest.body)
    status, before = api.call("GET", f"{path}/{name}")
    if status == _NOT_FOUND:
        create = ApiCall(method="POST", path=path, query=query, body=wanted)
        status, after = api.send(create)
        if status == _NOT_FOUND and _may_make(api, namespace, is_dry=is_dry):
            status, after = api.send(create)
        if status < 400:
            return msgspec.structs.replace(done, result="created")
    elif status < 400:
        patch = patch_between(wanted, before)
        if not patch:
            return msgspec.structs.replace(done, result="unchanged")
        status, after = api.send(ApiCall(method="PATCH", path=f"{path}/{name}", query=query, body=patch))
        if status < 400:
            changes = changed_fields(before, after)
            return msgspec.structs.replace(done, result="changed" if changes else "unchanged", changes=changes)
    else:
        after = before
    return msgspec.structs.replace(done, message=message_of(after))


def _may_make(api: ApiClient, namespace: str, *, is_dry: bool) -> bool:
    """Create the namespace of a foreign manifest, such as Cloud Run's; on this machine only."""
    if api.state_path is None or is_dry:
        return False
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    status, _ = api.call("POST", path_of(NAMESPACE, None), body)
    if status < 400:
        print_aside(f"namespace/{namespace} created: there was none")
    return status < 400


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
