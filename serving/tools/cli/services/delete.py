"""``serving delete``: deletes objects with their dependents."""

import json
from typing import Any

import click

from serving.net.cluster.kinds import SERVING_SERVICE, Kind
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail_usage, message_of
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import absence_of
from serving.tools.cli.client.output import output_option, print_aside
from serving.tools.cli.client.resources import kind_named, path_of, wait_timeout_option
from serving.tools.cli.services.manifests import read_manifests
from serving.tools.cli.services.waiting import until_gone

_TIMEOUT_S = 60.0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME|KIND/NAME]...", shell_complete=complete_service)
@click.option(
    "-f",
    "--filename",
    "paths",
    multiple=True,
    metavar="FILE|DIR|-",
    help="File or folder that contains the resources to delete.",
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until services and their pods are deleted."
)
@wait_timeout_option(_TIMEOUT_S, "--timeout")
@click.option("--ignore-not-found", is_flag=True, help="Ignore objects that do not exist.")
@output_option()
@api_options
@click.pass_context
def delete(
    ctx: click.Context,
    /,
    *,
    api: ApiClient,
    names: tuple[str, ...],
    paths: tuple[str, ...],
    **options: Any,  # noqa: ANN401 - the options of the command
) -> None:
    """Delete services with their revisions and pods, or any other object by KIND/NAME."""
    targets = [*map(_target, names), *_in_manifests(paths)]
    if not targets:
        fail_usage("nothing to delete: name services, or use -f FILE")
    results, going = [], []
    # Send all deletions first, then wait: the services end concurrently.
    for kind, name, namespace in targets:
        here = api.within(namespace or api.namespace)
        status, response = here.send(ApiCall(method="DELETE", path=path_of(kind, here.namespace, name)))
        word = f"{kind.name.lower()}/{name}"
        if status == 404 and options["ignore_not_found"]:
            continue
        if status >= 400:
            print_aside(absence_of(here, kind, name) if status == 404 else f"{word}: {message_of(response)}")
        else:
            going.append((here, kind, name))
        results.append({"kind": kind.name, "name": name, "result": "deleted" if status < 400 else "failed"})
    for here, kind, name in going:
        if kind == SERVING_SERVICE and options["wait"]:
            until_gone(here, name, timeout_s=options["wait_s"])
        if options["output"] == "text":
            click.echo(f"{kind.name.lower()}/{name} deleted")
    if options["output"] == "json":
        click.echo(json.dumps(results, indent=2))
    if any(result["result"] == "failed" for result in results):
        ctx.exit(1)


def _target(text: str) -> tuple[Kind, str, str]:
    word, slash, name = text.partition("/")
    if not slash:
        return SERVING_SERVICE, text, ""
    return kind_named(word), name, ""


def _in_manifests(paths: tuple[str, ...]) -> list[tuple[Kind, str, str]]:
    files = read_manifests(paths)
    for problem in files.foreign:
        print_aside(f"{problem.where}: {problem.what}: there is none to delete")
    # Delete dependencies last.
    manifests = reversed(files.manifests)
    return [
        (manifest.kind, manifest.name, str(manifest.body["metadata"].get("namespace") or "")) for manifest in manifests
    ]
