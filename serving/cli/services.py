"""``serving deploy | get | url | delete``: services of a running ``serving up``."""

import json
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.cli.api import Api, fail, state_option

__all__ = ["Deployment", "delete", "deploy", "get", "manifest_of", "url"]

_SERVICES = "/apis/serving.knative.dev/v1/namespaces/{namespace}/services"
_POLL_S = 0.1

_namespace = click.option("-n", "--namespace", default="default", show_default=True)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What ``serving deploy`` was asked for: a command in a folder, its environment, requests at once per pod."""

    name: str
    folder: Path
    command: str
    pairs: tuple[str, ...]
    concurrency: int
    annotate: tuple[str, ...]


def manifest_of(asked: Deployment) -> dict[str, Any]:
    """The Knative Service of ``serving deploy``: a command in a folder, in the place of an image."""
    annotations = {
        "serving.dev/command": asked.command,
        "serving.dev/dir": str(asked.folder.absolute()),
        **_pairs(asked.annotate),
    }
    environment = [{"name": key, "value": value} for key, value in _pairs(asked.pairs).items()]
    spec = {"containerConcurrency": asked.concurrency, "containers": [{"image": asked.name, "env": environment}]}
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": asked.name},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


@click.command()
@click.argument("name")
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--command", required=True, help='What to run there, as in "python app.py"; PORT says where to listen.')
@click.option("--env", "pairs", multiple=True, metavar="NAME=VALUE")
@click.option("--concurrency", default=0, show_default=True, help="Requests at once per pod; 0 is no limit.")
@click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="autoscaling.knative.dev/... on the template.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it is ready.")
@_namespace
@state_option
def deploy(*, wait: bool, namespace: str, state_path: Path | None, **asked: Any) -> None:  # noqa: ANN401 - the options of the command, as click hands them over
    """Run a command as a service: make it, or a new revision of it."""
    api, path, name = Api(state_path), _SERVICES.format(namespace=namespace), asked["name"]
    manifest = manifest_of(Deployment(**asked))
    status, before = api.call("GET", f"{path}/{name}")
    if status == 404:
        service = api.done("POST", path, manifest)
    else:
        version = before["metadata"]["resourceVersion"]
        service = api.done(
            "PUT", f"{path}/{name}", {**manifest, "metadata": {**before["metadata"], "resourceVersion": version}}
        )
    generation = service["metadata"]["generation"]
    while wait and not _is_settled(service, generation):
        time.sleep(_POLL_S)
        service = api.done("GET", f"{path}/{name}")
    _print_url(service)


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@_namespace
@state_option
def get(*, output: str, namespace: str, state_path: Path | None) -> None:
    """All services with their state."""
    items = Api(state_path).done("GET", _SERVICES.format(namespace=namespace))["items"]
    if output == "json":
        click.echo(json.dumps(items, indent=2))
        return
    click.echo(f"{'NAME':<24} {'READY':<8} {'LATEST READY':<28} URL")
    for item in items:
        status = item.get("status", {})
        ready = _condition(item).get("status", "Unknown")
        latest = status.get("latestReadyRevisionName", "")
        click.echo(f"{item['metadata']['name']:<24} {ready:<8} {latest:<28} {status.get('url', '')}")


@click.command()
@click.argument("name")
@_namespace
@state_option
def url(*, name: str, namespace: str, state_path: Path | None) -> None:
    """Where a service answers, also for machines on which *.localhost does not resolve."""
    _print_url(Api(state_path).done("GET", f"{_SERVICES.format(namespace=namespace)}/{name}"))


@click.command()
@click.argument("name")
@_namespace
@state_option
def delete(*, name: str, namespace: str, state_path: Path | None) -> None:
    """Delete a service with its revisions and pods."""
    Api(state_path).done("DELETE", f"{_SERVICES.format(namespace=namespace)}/{name}")
    click.echo(f"service {name} deleted")


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            fail(f"{text!r} is not right; expected NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _condition(service: dict[str, Any]) -> dict[str, str]:
    conditions = service.get("status", {}).get("conditions", ())
    return next((one for one in conditions if one["type"] == "Ready"), {})


def _is_settled(service: dict[str, Any], generation: int) -> bool:
    """Ready, or failed for good, which ends the command with the reason."""
    if service.get("status", {}).get("observedGeneration") != generation:
        return False
    ready = _condition(service)
    if ready.get("status") == "False":
        fail(f"{ready.get('reason', 'Failed')}: {ready.get('message', '')}")
    return ready.get("status") == "True"


def _print_url(service: dict[str, Any]) -> None:
    address = service.get("status", {}).get("url", "")
    if not address:
        fail("the service has no URL yet")
    host, _, port = address.removeprefix("http://").partition(":")
    click.echo(address)
    click.echo(f"curl -H 'Host: {host}' http://127.0.0.1:{port or 80}/")
