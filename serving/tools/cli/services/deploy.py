"""``serving deploy``: creates a service, or a new revision of a service, from a folder or an image.

Without ``--command``, ``--asgi`` and ``--image`` the command line comes from ``detect``.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.imagereference import parse_reference
from serving.core.model.knative import (
    DORMANT_ANNOTATION,
    FOLDER_ANNOTATION,
    NO_OWN_NETWORK,
    UPDATE_TIMESTAMP_ANNOTATION,
)
from serving.core.model.objects import Object, annotations_of, condition_of, nested
from serving.core.model.ports import PORT_MAX
from serving.home.images.store import (
    ImageBuild,
    ImageStore,
    ImageUnavailable,
    build_image,
    containerfile_in,
    find_builder,
    find_packer,
)
from serving.home.pods.podplan import DEFAULT_PATH, command_words
from serving.home.pods.snapshot import is_application, take_snapshot
from serving.home.state import StateFolder
from serving.net.cluster.kinds import EVENT, NAMESPACE, REVISION, SERVING_SERVICE
from serving.net.cluster.servicepatch import pinned_traffic
from serving.tools.cli.client.api import ApiClient, adding, api_options, fail, fail_usage, until_written
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import absence_of, items_of
from serving.tools.cli.client.output import Progress, output_option, print_aside
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.containeroptions import (
    changes_from,
    check_secrets,
    check_volumes,
    policy_name,
    service_options,
)
from serving.tools.cli.services.deployment import (
    Deployment,
    asgi_command,
    check_name,
    command_of,
    dropped_options,
    environment_of,
    find_virtualenv,
    manifest_of,
    merged,
    retained_options,
)
from serving.tools.cli.services.detect import build_commands, choices, name_of_folder, named_port, other_command
from serving.tools.cli.services.pythonapps import Choice, syntax_error
from serving.tools.cli.services.traffic import NewTraffic, tagged, traffic_from, traffic_options
from serving.tools.cli.services.url import print_unrouted, print_url
from serving.tools.cli.services.waiting import NotReady, Readiness, print_tcp_problems, until_ready

_TIMEOUT_S = 300.0
# A start this short needs no advice.
_SLOW_START_S = 0.5
# For an app with an unknown port; the pod that does not become ready reports the port.
_USUAL_PORT = 8080
_CREATED, _NOT_FOUND = 201, 404
_NOT_WITH_ASGI = ("command", "image", "preload", "fixed_port", "h2c")


class How(msgspec.Struct, frozen=True, kw_only=True):
    """Options that concern the deployment, not the service.

    ``wait``: wait until the service is ready, at most ``wait_s`` seconds. ``replace``: drop options of the existing
    service that are not given. ``is_found``: ``detect`` found the command, so it may also find the app's port.
    ``is_kept``: the service outlives the command.
    """

    wait: bool
    wait_s: float
    output: str
    replace: bool
    snapshot: bool
    is_found: bool
    is_kept: bool = True
    traffic: NewTraffic = NewTraffic()


deploy_options = adding(
    click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_service),
    click.argument("folder", required=False, type=click.Path(path_type=Path)),
    click.option(
        "--command",
        default="",
        help="Command to run in FOLDER, such as 'python app.py' or 'uvicorn app:app --port $PORT'. The app must listen on $PORT. "
        "A command with shell syntax ($, |, &&, ;, >, NAME=VALUE) runs by sh -c. Use single quotes, or your shell expands $PORT.",
    ),
    click.option(
        "--asgi",
        metavar="MODULE:APP",
        help="ASGI app in FOLDER to run with uvicorn, with its queue-proxy in the same process. Replaces --command.",
    ),
    service_options,
    click.option(
        "--fixed-port",
        type=click.IntRange(1, PORT_MAX),
        help="Port of an app that ignores $PORT. Each pod gets a separate network, in which 127.0.0.1 is the pod.",
    ),
    click.option(
        "--image",
        help="Image to run. With --command: the image name in the manifest for a cluster. Without both, FOLDER's Containerfile is built.",
    ),
    click.option("--annotate", multiple=True, metavar="KEY=VALUE", help="Set an annotation of the template."),
    click.option(
        "--preload", is_flag=True, help="Fork pods from a process that has imported the app; Python apps only."
    ),
    click.option(
        "--tcp-port",
        "tcp_ports",
        type=click.IntRange(1, PORT_MAX),
        multiple=True,
        help="Also accept TCP connections at this port; for 5432 the app listens on $PORT_5432.",
    ),
    click.option(
        "--build",
        is_flag=True,
        help="First install the dependencies in FOLDER: requirements.txt or pyproject.toml (into .venv), package.json.",
    ),
    click.option(
        "--replace",
        is_flag=True,
        help="Replace the previous revision's variables and scaling instead of merging with them.",
    ),
    click.option(
        "--snapshot/--no-snapshot",
        default=True,
        show_default=True,
        help="Run a copy of FOLDER without the files in .gitignore and .servingignore, or run FOLDER itself.",
    ),
)
"""Adds NAME, FOLDER and the options of ``serving deploy``; the command receives the API as ``api``."""


@click.command()
@deploy_options
@traffic_options
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the service is ready.")
@wait_timeout_option(_TIMEOUT_S)
@output_option()
@api_options
def deploy(*, api: ApiClient, wait: bool, wait_s: float, output: str, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Run a folder or an image as service NAME. If the service exists, create a new revision of it.

    Without --command, --asgi and --image, the command detects what to run: a Containerfile, a Procfile, a Python or
    Node app, or static pages. The default of NAME is the name of the folder, as in `serving deploy .`.

    A revision runs a copy of FOLDER. Changed files therefore need a new revision, and old revisions keep their files.
    A virtual environment in FOLDER, or else the active one, is used. Options that are left out keep the values of the
    previous revision.
    """
    traffic = traffic_from(options, wait=wait)
    how = how_of(options, wait=wait, wait_s=wait_s, output=output, traffic=traffic)
    deploy_once(api, deployment_of(api, options, replace=how.replace), how)


def how_of(options: dict[str, Any], **others: Any) -> How:  # noqa: ANN401 - fields of the record
    """Remove the options of the deployment from the command's options, and return them."""
    is_found = not any(options[name] for name in ("command", "image", "asgi"))
    return How(replace=options.pop("replace"), snapshot=options.pop("snapshot"), is_found=is_found, **others)


def deployment_of(api: ApiClient, options: dict[str, Any], *, replace: bool) -> Deployment:
    """The deployment that the command's options describe. Exits for invalid options, before any write."""
    options["name"], options["folder"] = placed(
        options["name"], options["folder"], is_image=options["image"] is not None
    )
    options["scaling_policy"] = policy_name(api, options["scaling_policy"])
    asgi, build = options.pop("asgi"), options.pop("build")
    check_name(options["name"])
    if asgi is not None:
        options = _asgi_options(api, asgi, options)
    elif not options["command"] and not options["image"]:
        options = _found_options(api, options, build=build, again=replace)
    elif build and options["command"]:
        install_packages(options["folder"])
    deployment = _deployment(options)
    check_secrets(api, deployment.secrets)
    check_volumes(api, deployment.volumes)
    port = None if deployment.fixed_port else named_port(deployment.command)
    if port is not None:
        print_aside(f"hint: the command names port {port}; write $PORT in its place, or add --fixed-port {port}")
    return _with_virtualenv(api, deployment)


def _found_options(api: ApiClient, options: dict[str, Any], *, build: bool, again: bool) -> dict[str, Any]:
    choice = command_for(api, options["name"], options["folder"], build=build, again=again)
    if not choice.is_grpc or options["h2c"] is not None:
        return {**options, "command": choice.command}
    print_aside("it is a gRPC server: sending it HTTP/2; --no-h2c does not")
    return {**options, "command": choice.command, "h2c": True}


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
    """The options as a record. Raises ``InvalidValue`` before any write."""
    if options["command"] and not command_words(options["command"]):
        fail_usage("--command is empty: name a command after --command, as 'python app.py'")
    if options["image"] and not options["command"]:
        parse_reference(options["image"])
    return Deployment(**changes_from(options), **options)


def _with_virtualenv(api: ApiClient, deployment: Deployment) -> Deployment:
    """Add the virtual environment to the deployment, if there is one and pods are processes of this machine."""
    virtualenv = find_virtualenv(deployment.folder, os.environ)
    if not deployment.command or api.state_path is None or deployment.image or "PATH" in deployment.environment:
        return deployment
    if virtualenv is None:
        commands = build_commands(deployment.folder, None)
        if commands:
            print_aside(
                f"{deployment.folder.absolute()} lists packages that are not installed; --build runs: {' && '.join(commands)}"
            )
        return deployment
    print_aside(f"using the virtual environment {virtualenv}")
    return msgspec.structs.replace(deployment, environment={**environment_of(virtualenv), **deployment.environment})


def _built(api: ApiClient, deployment: Deployment) -> Deployment:
    if deployment.image:
        return deployment
    assert api.state_path is not None
    store = ImageStore(StateFolder(api.state_path).images)
    try:
        with Progress(f"building {deployment.folder}"):
            image = build_image(ImageBuild(name=deployment.name, folder=deployment.folder, packer=find_packer()), store)
    except (ImageUnavailable, InvalidValue, OSError) as error:
        fail(str(error))
    return msgspec.structs.replace(deployment, image=image)


def deploy_once(api: ApiClient, deployment: Deployment, how: How) -> None:
    """Write the service, wait until it is ready, and print its URL. Exits if it does not become ready."""
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
    is_new, readiness = _written_at_its_port(api, deployment, how)
    service = readiness.service
    if how.output == "json":
        click.echo(json.dumps(service, indent=2))
        return
    if how.wait:
        print_url(api, service, tag=how.traffic.tag)
        print_aside(start_text(deployment, readiness.after_s))
        print_tcp_problems(api, service)
    else:
        what = "created" if is_new else "changed"
        click.echo(f"service/{deployment.name} {what}; `serving wait {deployment.name}` waits until it is ready")
    print_unrouted(service)


def start_text(deployment: Deployment, after_s: float) -> str:
    """How long a start took, with advice if it was slow."""
    ways = []
    if deployment.command and not deployment.preload and not deployment.is_own_proxy:
        ways.append("--preload (Python) forks pods from a process that has imported the app")
    if DORMANT_ANNOTATION not in deployment.annotations:
        ways.append(f"--annotate {DORMANT_ANNOTATION}=only keeps a sleeping pod")
    is_slow = after_s >= _SLOW_START_S
    return f"ready after {after_s:.1f} s" + (f"; to start sooner: {', or '.join(ways)}" if is_slow and ways else "")


def _written_at_its_port(api: ApiClient, deployment: Deployment, how: How) -> tuple[bool, Readiness]:
    """Like ``_written``, but exits on failure, and repeats with ``--fixed-port`` for an app that ignores $PORT.

    The revision with the wrong port is deleted after the repetition, because it would keep its pod and try on until its
    progress deadline.
    """
    abandoned = ""
    while True:
        try:
            return _written(api, deployment, how, abandoned=abandoned)
        except NotReady as error:
            if error.port is None or not deployment.command or api.state_path is None:
                fail(str(error))
            port = error.port or _USUAL_PORT
            if not how.is_found or port == deployment.fixed_port:
                events = items_of(api, EVENT) if deployment.fixed_port else ()
                fail(f"{error}\n{port_advice(events, deployment.name, error.port)}")
            print_aside(f"the app ignores $PORT: deploying it with --fixed-port {port}")
            deployment = msgspec.structs.replace(deployment, fixed_port=port)
            failed = api.peek(path_of(SERVING_SERVICE, api.namespace, deployment.name))
            abandoned = str(nested(failed, "status", "latestCreatedRevisionName") or "")


def port_advice(events: Iterable[Object], name: str, port: int) -> str:
    """Advice for a service whose app listens on ``port`` (0: unknown) instead of $PORT.

    If an Event of its pods reports that this machine cannot give pods a network of their own, the advice is this
    message.
    """
    for event in events:
        of_pod = str(nested(event, "involvedObject", "name") or "").startswith(f"{name}-")
        if event.get("reason") == NO_OWN_NETWORK and of_pod:
            return str(event.get("message"))
    return f"an app may listen on $PORT only; --fixed-port {port or 'PORT'} gives it its own port"


def _written(api: ApiClient, deployment: Deployment, how: How, *, abandoned: str) -> tuple[bool, Readiness]:
    """Write the service, delete the revision ``abandoned`` ("" for none), and wait as requested.

    Returns whether the service is new, and the object. Raises ``NotReady``.
    """
    with Progress(f"deploying {deployment.name}"):
        is_new, service = _write(api, deployment, how)
        if abandoned:
            api.call("DELETE", path_of(REVISION, api.namespace, abandoned))
        if not how.wait:
            return is_new, Readiness(service, 0.0)
        with _explained_interrupt(deployment.name) if how.is_kept else contextlib.nullcontext():
            readiness = until_ready(api, deployment.name, timeout_s=how.wait_s)
        if how.traffic.tag:
            readiness = readiness._replace(service=tagged(api, readiness.service, how.traffic.tag))
        return is_new, readiness


@contextlib.contextmanager
def _explained_interrupt(name: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print_aside(
            f"interrupted; the service {name} exists and continues to start: `serving wait {name}` waits for it, "
            f"`serving delete {name}` removes it"
        )
        raise


def _write(api: ApiClient, deployment: Deployment, how: How) -> tuple[bool, Object]:
    """Create or change the service, retrying after concurrent writes; return whether it is new, and the object."""
    path = path_of(SERVING_SERVICE, api.namespace)
    retained: list[str] = []
    dropped: list[str] = []
    failed_generations: list[int] = []
    is_again = False

    def write() -> tuple[int, Any]:
        status, before = api.call("GET", f"{path}/{deployment.name}")
        traffic = _pinned(deployment.name, before, is_new=status == _NOT_FOUND) if how.traffic.is_pinned else {}
        if status == _NOT_FOUND:
            status, after = api.call("POST", path, manifest_of(deployment))
            if status == _NOT_FOUND and api.call("GET", path_of(NAMESPACE, None, api.namespace))[0] == _NOT_FOUND:
                fail(absence_of(api, NAMESPACE, api.namespace))
            return status, after
        if status >= 400:
            return status, before
        retained[:] = [] if how.replace else retained_options(before, deployment)
        dropped[:] = [] if how.replace else dropped_options(before, deployment)
        wanted = merged(before, deployment, replace=how.replace)
        wanted["spec"] |= traffic
        if is_again:
            from serving.net.aio.clock import stamp  # noqa: PLC0415 - it loads asyncio, which a first deploy does not need

            # The template does not show every fix, such as a package in the virtual environment.
            wanted["spec"]["template"]["metadata"]["annotations"][UPDATE_TIMESTAMP_ANNOTATION] = stamp()
        elif condition_of(before, "Ready").get("status") == "False":
            failed_generations.append(int(nested(before, "metadata", "generation") or 0))
        return api.call("PUT", f"{path}/{deployment.name}", wanted)

    status, after = until_written(write)
    if nested(after, "metadata", "generation") in failed_generations:
        is_again = True
        status, after = until_written(write)
    if dropped and status < 400:
        print_aside(f"removed: {', '.join(dropped)}")
    if retained:
        print_aside(f"kept from the previous revision: {', '.join(retained)}; --replace removes them")
    return status == _CREATED, after


def _pinned(name: str, before: Object, *, is_new: bool) -> Object:
    """A spec's ``traffic`` without any for the new revision. Exits if no other revision can receive the traffic."""
    if is_new:
        fail_usage(f"--no-traffic: {name} is new, and its first revision gets all traffic: leave it out")
    try:
        return {"traffic": pinned_traffic(before)}
    except ServingError as error:
        fail_usage(f"--no-traffic: {error}")


def placed(name: str | None, folder: Path | None, *, is_image: bool) -> tuple[str, Path]:
    """The service name and the folder that the arguments mean; each may be left out. Exits for invalid arguments."""
    is_path = name is not None and ("/" in name or name in {".", ".."})
    if folder is not None and is_path:
        fail_usage(f"{name} is not a valid name: the name comes before the folder, as in `serving deploy shop {name}`")
    if name is not None and not is_path:
        return name, _checked(folder or Path())
    if is_image:
        fail_usage("--image needs a name, as in `serving deploy shop --image IMAGE`")
    path = _checked(Path(name or "."))
    return name_of_folder(path), path


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        what = "a file" if folder.exists() else "missing"
        fail_usage(f"{folder} is {what}: expected a folder, as in `serving deploy shop .`")
    return folder


def _fail_without_command(name: str, folder: Path) -> NoReturn:
    if wrong := syntax_error(folder):
        fail_usage(f"{folder.absolute()} has nothing to run: {wrong}")
    here = f"; `serving deploy ./{name}` runs the folder {name}" if folder == Path() and Path(name).is_dir() else ""
    if other := other_command(folder):
        here = f"; for manifests and compose files: `{other}`"
    fail_usage(
        f"{folder.absolute()} has nothing to run: expected a Containerfile, a Procfile, a Python or Node app or an index.html "
        f"in it, a command after --command, as 'python app.py', or an --image{here}"
    )


def command_for(api: ApiClient, name: str, folder: Path, *, build: bool, again: bool) -> Choice:
    """Choose the command that runs a folder; a choice without a command builds an image.

    ``again`` ignores the command of the existing service.

    Raises ``InvalidValue`` for an unreadable file of the folder. Exits if there is nothing to run.
    """
    if api.state_path is None:
        fail_usage("Kubernetes runs images: push one to a registry and name it by --image")
    has_file = containerfile_in(folder) is not None
    why_unbuilt = _why_unbuilt(name) if has_file else ""
    if has_file and not why_unbuilt:
        return Choice(source="Containerfile")
    before = "" if again else _command_before(api, name, folder)
    if build or not before:
        _install(folder, build_commands(folder, find_virtualenv(folder, os.environ), again=build), build=build)
    if before:
        return Choice(source="the service", command=before)
    choice = _chosen(folder, _choices(folder))
    if choice is None:
        if has_file or find_packer():
            return Choice(source="a build")
        _fail_without_command(name, folder)
    if choice.missing:
        _install(
            folder, build_commands(folder, find_virtualenv(folder, os.environ), missing=choice.missing), build=build
        )
        choice = next(other for other in _choices(folder) if other.source == choice.source)
    print_aside(f"{choice.source}: running `{choice.command}`; --command runs another")
    if why_unbuilt:
        print_aside(f"the Containerfile is not built: {why_unbuilt}")
    return choice


def install_packages(folder: Path) -> None:
    """Install the packages listed in a folder, as --build does."""
    _install(folder, build_commands(folder, find_virtualenv(folder, os.environ), again=True), build=True)


def _why_unbuilt(name: str) -> str:
    try:
        find_builder(name)
    except ImageUnavailable as error:
        return error.why
    return ""


def _command_before(api: ApiClient, name: str, folder: Path) -> str:
    """The command of the existing service if it runs this folder; else ""."""
    template = nested(api.peek(path_of(SERVING_SERVICE, api.namespace, name)), "spec", "template") or {}
    is_same = annotations_of(template).get(FOLDER_ANNOTATION) == str(folder.absolute())
    return command_of(template) if is_same else ""


def _choices(folder: Path) -> list[Choice]:
    virtualenv = find_virtualenv(folder, os.environ)

    def has(program: str) -> bool:
        if virtualenv is not None:
            return (virtualenv / "bin" / program).exists()
        return shutil.which(program, path=DEFAULT_PATH) is not None

    return choices(folder, has=has, python="python" if virtualenv else "python3")


def _chosen(folder: Path, several: Sequence[Choice]) -> Choice | None:
    """The only choice, or the user's selection on a terminal; else None."""
    if len(several) < 2:
        return several[0] if several else None
    lines = [f"{choice.source}: {choice.command or f'needs {choice.missing}'}" for choice in several]
    if not _is_terminal():
        listed = "".join(f"\n  {line}" for line in lines)
        fail_usage(f"{folder.absolute()} has several things to run: choose one by --command '...'{listed}")
    for number, line in enumerate(lines, 1):
        print_aside(f"{number}  {line}")
    return several[click.prompt("Which one should run", type=click.IntRange(1, len(lines)), err=True) - 1]


def _install(folder: Path, commands: Sequence[str], *, build: bool) -> None:
    """Run the commands if --build is set, or if the user agrees on a terminal.

    Exits if they fail or must not run.
    """
    if not commands:
        return
    text = " && ".join(commands)
    if not build:
        print_aside(f"{folder.absolute()} lists packages that are not installed; to install them: {text}")
        if not (_is_terminal() and click.confirm("Run it now?", err=True)):
            fail_usage("--build runs it before the deploy")
    print_aside(f"running {text}")
    # Standard output is for results.
    if subprocess.run(["/bin/sh", "-c", text], stdout=2, check=False).returncode:  # noqa: S603 - printed before
        fail(f"{folder.absolute()}: the packages cannot be installed; the lines above say why")


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
