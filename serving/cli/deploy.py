"""``serving deploy``: a command in a folder becomes a service, or a new revision of one."""

import json
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.cli.api import Api, api_options, fail, fail_usage, message_of
from serving.cli.completion import complete_service
from serving.cli.progress import Progress
from serving.cli.resources import path_of
from serving.cli.url import print_url
from serving.cli.waiting import until_ready
from serving.cluster.kinds import SERVING_SERVICE
from serving.cluster.port import Object
from serving.model.knative import COMMAND_ANNOTATION, FOLDER_ANNOTATION, SERVING_API_VERSION
from serving.settings.annotations import GROUP

__all__ = ["Deployment", "deploy", "manifest_of"]

_TIMEOUT_S = 300.0
# A controller may write between our reading and our writing.
_TRIES_MAX = 10
_CREATED, _NOT_FOUND, _CONFLICT = 201, 404, 409
# What Knative takes where a manifest names no port.
_PORT = 8080
# Annotations that people write without their group.
_SCALING = ("min_scale", "max_scale", "initial_scale", "window", "target", "metric", "scale_down_delay")


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """What ``serving deploy`` was asked for; None and () where nothing was said."""

    name: str
    folder: Path
    command: str
    image: str | None = None
    pairs: tuple[str, ...] = ()
    annotate: tuple[str, ...] = ()
    concurrency: int | None = None
    timeout: int | None = None
    port: int | None = None
    h2c: bool = False
    scaling: dict[str, str] = {}


def manifest_of(asked: Deployment) -> Object:
    """The Knative Service of ``serving deploy``: a command in a folder, in the place of an image."""
    annotations = {
        COMMAND_ANNOTATION: asked.command,
        FOLDER_ANNOTATION: str(asked.folder.absolute()),
        **{f"{GROUP}{key.replace('_', '-')}": text for key, text in asked.scaling.items()},
        **_pairs(asked.annotate, "--annotate"),
    }
    environment = [{"name": key, "value": value} for key, value in _pairs(asked.pairs, "--env").items()]
    container: Object = {"image": asked.image or asked.name, "env": environment}
    if asked.h2c:
        container["ports"] = [{"name": "h2c", "containerPort": asked.port or _PORT}]
    elif asked.port is not None:
        container["ports"] = [{"containerPort": asked.port}]
    spec: Object = {"containers": [container]}
    if asked.concurrency is not None:
        spec["containerConcurrency"] = asked.concurrency
    if asked.timeout is not None:
        spec["timeoutSeconds"] = asked.timeout
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": {"name": asked.name},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--command", required=True, help='What to run there, as in "python app.py"; PORT says where to listen.')
@click.option("-e", "--env", "pairs", multiple=True, metavar="NAME=VALUE", help="A variable of the environment.")
@click.option("--concurrency", type=click.IntRange(0), help="Requests at once per pod; 0 is no limit.")
@click.option("--min-scale", type=click.IntRange(0), help="Fewest pods.")
@click.option("--max-scale", type=click.IntRange(0), help="Most pods; 0 is no limit.")
@click.option("--initial-scale", type=click.IntRange(0), help="Pods that must be ready once; 0 starts none.")
@click.option("--window", metavar="TIME", help="Time over which load is averaged, as 60s.")
@click.option("--target", type=click.FloatRange(0, min_open=True), help="Requests at once to aim at per pod.")
@click.option("--timeout", type=click.IntRange(1), help="Longest time of a request, in seconds.")
@click.option("--port", type=click.IntRange(1, 65535), help="The port that the manifest says; the app gets $PORT.")
@click.option("--h2c", is_flag=True, help="The app speaks HTTP/2 with prior knowledge, as gRPC does.")
@click.option("--image", help="The image that the manifest names, for a cluster.")
@click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="An annotation of the template.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Until it is ready.")
@click.option("--wait-timeout", "wait_s", default=_TIMEOUT_S, show_default=True, help="How long, in seconds.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def deploy(*, api: Api, wait: bool, wait_s: float, output: str, **asked: Any) -> None:  # noqa: ANN401 - the options of the command
    """Run a command as a service: make it, or a new revision of it.

    A service that exists keeps its traffic; all else becomes what is said here.
    """
    given = {key: asked.pop(key, None) for key in _SCALING}
    scaling = {
        key: f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in given.items()
        if value is not None
    }
    manifest = manifest_of(Deployment(**asked, scaling=scaling))
    name = asked["name"]
    with Progress(f"deploying {name}"):
        is_new, service = _write(api, manifest)
        if wait:
            service = until_ready(api, name, timeout_s=wait_s)
    if output == "json":
        click.echo(json.dumps(service, indent=2))
    elif wait:
        print_url(api, service)
    else:
        click.echo(
            f"service/{name} {'created' if is_new else 'changed'}; `serving wait {name}` waits until it is ready"
        )


def _write(api: Api, manifest: Object) -> tuple[bool, Object]:
    """Make the service or change it; whether it is new, and what it is now. Others may write it at the same time."""
    path, name = path_of(SERVING_SERVICE, api.namespace), manifest["metadata"]["name"]
    tries = 0
    while True:
        tries += 1
        status, before = api.call("GET", f"{path}/{name}")
        if status == _NOT_FOUND:
            status, after = api.call("POST", path, manifest)
        elif status < 400:
            spec = {key: value for key, value in before["spec"].items() if key == "traffic"} | manifest["spec"]
            body = {**manifest, "metadata": before["metadata"], "spec": spec}
            status, after = api.call("PUT", f"{path}/{name}", body)
        else:
            after = before
        if status < 400:
            return status == _CREATED, after
        if status != _CONFLICT or tries == _TRIES_MAX:
            fail(message_of(after))


def _pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    for text in texts:
        name, found, _ = text.partition("=")
        if not found or not name:
            fail_usage(f"{option}: {text!r} is not right; expected {'NAME' if option == '--env' else 'KEY'}=VALUE")
    return dict(text.split("=", 1) for text in texts)
