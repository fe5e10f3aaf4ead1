"""``serving deploy``: creates a service from a command in a folder or an image, or a new revision of it.

With ``--watch`` it deploys again after each change of the folder.
"""

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.model.imagereference import parse_reference
from serving.core.model.knative import UPDATE_TIMESTAMP_ANNOTATION
from serving.core.model.objects import Object, nested
from serving.home.images.store import ImageBuild, ImageStore, ImageUnavailable, build_image, containerfile_in
from serving.home.pods.podplan import command_words
from serving.home.pods.snapshot import fingerprint, is_application, take_snapshot
from serving.home.state import StateFolder
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient, api_options, fail, fail_usage, until_written
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import condition
from serving.tools.cli.client.output import Progress, print_aside
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.containeroptions import (
    check_secrets,
    check_volumes,
    limits_of,
    pairs_of,
    policy_name,
    service_options,
    taken_policy,
    taken_scaling,
    taken_variables,
    volumes_of,
)
from serving.tools.cli.services.deployment import (
    Deployment,
    asgi_command,
    check_name,
    dropped_options,
    environment_of,
    find_virtualenv,
    kept_options,
    manifest_of,
    merged,
    policy_annotation,
    virtualenv_advice,
)
from serving.tools.cli.services.url import print_unrouted, print_url
from serving.tools.cli.services.waiting import until_ready

_POLL_S = 0.3

_TIMEOUT_S = 300.0
_CREATED, _NOT_FOUND = 201, 404
_NOT_WITH_ASGI = ("command", "image", "preload", "fixed_port", "h2c")


def watch_folder(folder: Path, deploy: Callable[[], None]) -> None:
    """Deploy, and again after each change. A failed deploy has reported its error; the next change retries."""
    while True:
        seen = fingerprint(folder)
        try:
            deploy()
        except SystemExit as error:
            print_aside(f"deploy failed (exit code {error.code}); waiting for a change")
        else:
            print_aside(f"watching {folder}; Ctrl-C ends it")
        sys.stdout.flush()
        while (now := fingerprint(folder)) == seen:
            time.sleep(_POLL_S)
        # An editor or a checkout writes many files: they are one change.
        while (later := fingerprint(folder)) != now:
            now = later
            time.sleep(_POLL_S)


class _How(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the deployment itself, not of the service."""

    wait: bool
    wait_s: float
    output: str
    replace: bool
    snapshot: bool


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--command",
    default="",
    help="What to run in FOLDER, as in 'python app.py' or 'uvicorn app:app --port $PORT'. The app must listen on $PORT. "
    "A command with shell syntax ($, |, &&, ;, >, NAME=VALUE) runs by sh -c. Use single quotes, or your shell expands $PORT.",
)
@click.option(
    "--asgi",
    metavar="MODULE:APP",
    help="Run this ASGI app of FOLDER with uvicorn, and its queue-proxy in the same process. Instead of --command.",
)
@service_options
@click.option(
    "--fixed-port",
    type=click.IntRange(1, 65535),
    help="The port on which the app listens, whatever $PORT says. Each pod gets a network of its own, in which 127.0.0.1 is the pod.",
)
@click.option(
    "--image",
    help="The image to run; with --command, the name that the manifest has for a cluster. Without both, FOLDER's Containerfile is built.",
)
@click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="An annotation of the template.")
@click.option(
    "--preload", is_flag=True, help="Fork pods from a process that has imported the app, which must be Python."
)
@click.option(
    "--tcp-port",
    "tcp_ports",
    type=click.IntRange(1, 65535),
    multiple=True,
    help="Take TCP connections at this port too, for a port of its own: the app listens on $PORT_5432 for 5432.",
)
@click.option(
    "--replace", is_flag=True, help="Drop variables and scaling of the revision before that are not given again."
)
@click.option(
    "--snapshot/--no-snapshot",
    default=True,
    show_default=True,
    help="Run a copy of FOLDER without what .gitignore and .servingignore name, or FOLDER itself.",
)
@click.option("--watch", is_flag=True, help="Deploy again whenever a file of FOLDER changes, until Ctrl-C.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is ready.")
@wait_timeout_option(_TIMEOUT_S)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def deploy(*, api: ApiClient, watch: bool, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Run a command or an image as a service NAME: create it, or make a new revision of it.

    The revision runs a copy of FOLDER, so that changed files are a new revision and an old one keeps its own. A virtual
    environment in FOLDER, or the active one, is used. Options that are not given keep the value of the previous revision.
    """
    how = _How(**{field: options.pop(field) for field in _How.__struct_fields__})
    options["scaling_policy"] = policy_name(api, options["scaling_policy"])
    try:
        asgi = options.pop("asgi")
        deployment = _deployment(options if asgi is None else _asgi_options(api, asgi, options))
    except (InvalidValue, SettingsError) as error:
        fail_usage(str(error))
    check_secrets(api, deployment.secrets)
    check_volumes(api, deployment.volumes)
    deployment = _with_virtualenv(api, deployment)
    if watch:
        watch_folder(deployment.folder, lambda: _deploy(api, deployment, how))
    _deploy(api, deployment, how)


def _asgi_options(api: ApiClient, app: str, options: dict[str, Any]) -> dict[str, Any]:
    others = [f"--{name.replace('_', '-')}" for name in _NOT_WITH_ASGI if options[name]]
    if others:
        fail_usage(f"--asgi says what to run, and how: leave out {', '.join(others)}")
    if api.state_path is None:
        fail_usage(
            "--asgi runs processes of this machine; on Kubernetes deploy an image, which gets a queue-proxy beside it"
        )
    command = asgi_command(app, find_virtualenv(options["folder"], os.environ))
    return {**options, "command": command, "is_own_proxy": True}


def _deployment(options: dict[str, Any]) -> Deployment:
    """The options as a record. Raises ``InvalidValue`` before anything is written."""
    check_name(options["name"])
    is_image = options["image"] or containerfile_in(options["folder"])
    if not (command_words(options["command"]) or (is_image and not options["command"])):
        where = options["folder"].absolute()
        given_command = (
            "--command is empty" if options["command"] else f"{where} has no Containerfile, and there is no --command"
        )
        fail_usage(
            f"{given_command}: name a command after --command, as 'python app.py', an --image, or a folder with a Containerfile"
        )
    if options["image"] and not options["command"]:
        parse_reference(options["image"])
    environment, secrets = taken_variables(options)
    return Deployment(
        policy=taken_policy(options),
        scaling=taken_scaling(options),
        environment=environment,
        secrets=secrets,
        limits=limits_of(options.pop("cpu"), options.pop("memory")),
        volumes=volumes_of(options.pop("volumes")),
        annotations={
            **policy_annotation(options.pop("scaling_policy")),
            **pairs_of(options.pop("annotate"), "--annotate", "KEY"),
        },
        **options,
    )


def _with_virtualenv(api: ApiClient, deployment: Deployment) -> Deployment:
    """The deployment in its virtual environment, if there is one and pods are processes of this machine."""
    virtualenv = find_virtualenv(deployment.folder, os.environ)
    if not deployment.command or api.state_path is None or deployment.image or "PATH" in deployment.environment:
        return deployment
    if virtualenv is None:
        advice = virtualenv_advice(deployment.folder)
        if advice:
            print_aside(advice)
        return deployment
    print_aside(f"using the virtual environment {virtualenv}")
    return msgspec.structs.replace(deployment, environment={**environment_of(virtualenv), **deployment.environment})


def _built(api: ApiClient, deployment: Deployment) -> Deployment:
    if deployment.image:
        return deployment
    if api.state_path is None:
        fail_usage(
            "a Containerfile is built for this machine only; push the image to a registry and name it by --image"
        )
    store = ImageStore(StateFolder(api.state_path).images)
    try:
        with Progress(f"building {deployment.folder}"):
            image = build_image(ImageBuild(name=deployment.name, folder=deployment.folder), store)
    except (ImageUnavailable, InvalidValue, OSError) as error:
        fail(str(error))
    return msgspec.structs.replace(deployment, image=image)


def _deploy(api: ApiClient, deployment: Deployment, how: _How) -> None:
    if not deployment.command:
        deployment = _built(api, deployment)
    elif how.snapshot and api.state_path is not None and is_application(deployment.folder, api.state_path):
        with Progress(f"copying {deployment.folder}"):
            try:
                deployment = msgspec.structs.replace(
                    deployment, snapshot=take_snapshot(deployment.folder, StateFolder(api.state_path).snapshots)
                )
            except InvalidValue as error:
                fail_usage(f"{deployment.folder}: {error}")
    with Progress(f"deploying {deployment.name}"):
        is_new, service = _write(api, deployment, how)
        if how.wait:
            with _explained_interrupt(deployment.name):
                service = until_ready(api, deployment.name, timeout_s=how.wait_s)
    if how.output == "json":
        click.echo(json.dumps(service, indent=2))
        return
    if how.wait:
        print_url(api, service)
    else:
        what = "created" if is_new else "changed"
        click.echo(f"service/{deployment.name} {what}; `serving wait {deployment.name}` waits until it is ready")
    print_unrouted(service)


@contextlib.contextmanager
def _explained_interrupt(name: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_aside(
            f"interrupted; the service {name} exists and goes on starting: `serving wait {name}` waits for it, "
            f"`serving delete {name}` removes it"
        )
        raise


def _write(api: ApiClient, deployment: Deployment, how: _How) -> tuple[bool, Object]:
    """Create or change the service, retrying after concurrent writes; return whether it is new, and the object."""
    path = path_of(SERVING_SERVICE, api.namespace)
    retained: list[str] = []
    dropped: list[str] = []
    failed_generations: list[int] = []
    is_again = False

    def write() -> tuple[int, Any]:
        status, before = api.call("GET", f"{path}/{deployment.name}")
        if status == _NOT_FOUND:
            return api.call("POST", path, manifest_of(deployment))
        if status >= 400:
            return status, before
        retained[:] = [] if how.replace else kept_options(before, deployment)
        dropped[:] = [] if how.replace else dropped_options(before, deployment)
        wanted = merged(before, deployment, replace=how.replace)
        if is_again:
            from serving.net.aio.clock import stamp  # noqa: PLC0415 - it loads asyncio, which a first deploy does not need

            # What was fixed is not in the template, such as a package in the virtual environment.
            wanted["spec"]["template"]["metadata"]["annotations"][UPDATE_TIMESTAMP_ANNOTATION] = stamp()
        elif condition(before).get("status") == "False":
            failed_generations.append(int(nested(before, "metadata", "generation") or 0))
        return api.call("PUT", f"{path}/{deployment.name}", wanted)

    status, after = until_written(write)
    if nested(after, "metadata", "generation") in failed_generations:
        is_again = True
        status, after = until_written(write)
    if dropped and status < 400:
        print_aside(f"dropped from before: {', '.join(dropped)}")
    if retained:
        print_aside(f"kept from before: {', '.join(retained)}; --replace drops them")
    return status == _CREATED, after
