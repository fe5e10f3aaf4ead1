"""``serving apply``: makes or changes what manifests describe, and says what has changed."""

import json
import sys
from typing import Any

import click
import msgspec

from serving.cli.client.api import ApiCall, ApiClient, api_options, fail_usage, message_of
from serving.cli.client.params import wait_timeout_option
from serving.cli.client.progress import Progress, paint, say_aside
from serving.cli.client.resources import path_of
from serving.cli.services.changes import changed_fields, patch_between, with_last_applied
from serving.cli.services.manifests import Manifest, read_manifests
from serving.cli.services.waiting import until_ready
from serving.cluster.kinds import NAMESPACE, SERVING_SERVICE
from serving.model.errors import SettingsError
from serving.model.objects import nested

_SHOWN_CHANGES_MAX = 20
_TIMEOUT_S = 300.0
_NOT_FOUND = 404
_COLORS = {"created": "green", "changed": "yellow", "unchanged": "white"}


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one manifest: created, changed, unchanged or failed; ``changes`` in words."""

    kind: str
    namespace: str
    name: str
    result: str
    changes: list[str] = []
    message: str = ""
    where: str = ""


@click.command()
@click.option("-f", "--filename", "paths", multiple=True, required=True, metavar="FILE|DIR|-", help="What to apply.")
@click.option("--dry-run", is_flag=True, help="Have it checked and say what would change; change nothing.")
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
def apply(*, api: ApiClient, paths: tuple[str, ...], output: str, **asked: Any) -> None:  # noqa: ANN401 - the options of the command
    """Make or change what manifests describe; Knative's and Cloud Run's as they are.

    What was applied before and is no longer in the manifest is taken away; what others have set stays.
    """
    try:
        manifests = read_manifests(paths)
    except SettingsError as error:
        fail_usage(str(error))
    done = []
    with Progress("applying") as progress:
        for one in manifests:
            progress.tell(f"applying {one.kind.name.lower()}/{one.name}")
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
    """The API, looking at the namespace of a manifest."""
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
        status, after = api.ask(create)
        if status == _NOT_FOUND and _may_make(api, namespace, is_dry=is_dry):
            status, after = api.ask(create)
        if status < 400:
            return msgspec.structs.replace(done, result="created")
    elif status < 400:
        patch = patch_between(wanted, before)
        if not patch:
            return msgspec.structs.replace(done, result="unchanged")
        status, after = api.ask(ApiCall(method="PATCH", path=f"{path}/{name}", query=query, body=patch))
        if status < 400:
            changes = changed_fields(before, after)
            return msgspec.structs.replace(done, result="changed" if changes else "unchanged", changes=changes)
    else:
        after = before
    return msgspec.structs.replace(done, message=message_of(after))


def _may_make(api: ApiClient, namespace: str, *, is_dry: bool) -> bool:
    """Make the namespace of a manifest that came from elsewhere, as Cloud Run's have; on this machine only."""
    if api.state_path is None or is_dry:
        return False
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    status, _ = api.call("POST", path_of(NAMESPACE, None), body)
    if status < 400:
        say_aside(f"namespace/{namespace} created: there was none")
    return status < 400


def _print(applied: Applied, *, is_dry: bool) -> None:
    Progress.hide()
    name = f"{applied.kind.lower()}/{applied.name}"
    if applied.result == "failed":
        say_aside(f"{applied.where}: {name}: {applied.message}")
        return
    word = paint(applied.result, _COLORS[applied.result])
    click.echo(f"{name} {word}{' (dry run)' if is_dry else ''}")
    for line in applied.changes[:_SHOWN_CHANGES_MAX]:
        click.echo(f"  {line}")
    more = len(applied.changes) - _SHOWN_CHANGES_MAX
    if more > 0:
        click.echo(f"  and {more} more")
