"""Builds the Knative Service of ``serving deploy`` from options and the existing service.

Input: the command's options and the existing service; output: a manifest. A second deploy changes only the given
options: other variables, scaling, limits and traffic stay. Also finds the folder's virtual environment and an ASGI
app's command.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import (
    AUTOSCALING_GROUP,
    COMMAND_ANNOTATION,
    FOLDER_ANNOTATION,
    NETWORK_ANNOTATION,
    PRELOAD_MODULES_ANNOTATION,
    QUEUE_PROXY_ANNOTATION,
    SERVING_API_VERSION,
    SNAPSHOT_ANNOTATION,
    TEMPLATE_ANNOTATION,
    QueueProxyPlace,
)
from serving.core.model.objects import Object, annotations_of, nested
from serving.home.pods.podplan import DEFAULT_PATH
from serving.net.cluster.servicepatch import scaling_annotations
from serving.tools.cli.services.containeroptions import (
    SCALING,
    ServiceChanges,
    ports_of,
    variables_of,
    with_limits,
    with_volumes,
)

VIRTUAL_ENV = "VIRTUAL_ENV"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
# Annotations that select the program; a deploy always sets them.
_RUN = frozenset({COMMAND_ANNOTATION, FOLDER_ANNOTATION, QUEUE_PROXY_ANNOTATION, SNAPSHOT_ANNOTATION})
# Annotations of a template that runs a command of the machine in place of the image.
_OF_PROCESSES = _RUN | {NETWORK_ANNOTATION, PRELOAD_MODULES_ANNOTATION, TEMPLATE_ANNOTATION}

_FOLDERS = (".venv", "venv")
_MARK = "pyvenv.cfg"
_ASGI_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_IMPORT_MAX_S = 30.0


class Deployment(ServiceChanges, frozen=True, kw_only=True):
    """The options of ``serving deploy``. A missing option is None or ()."""

    name: str
    folder: Path
    command: str = ""
    fixed_port: int | None = None
    """The app's port if the app ignores PORT; each pod then has a separate network."""
    tcp_ports: tuple[int, ...] = ()
    """Ports of the app for TCP, besides the first port."""
    snapshot: str = ""
    preload: bool = False
    is_own_proxy: bool = False
    """Whether the queue-proxy runs in the process of the app."""


def check_name(name: str, *, of: str = "service") -> None:
    """Raise ``InvalidValue`` unless the text is a valid name of a service or volume."""
    if not _NAME.match(name):
        expected = f"a {of}'s name: at most 63 of a-z, 0-9 and '-', beginning with a letter, not ending with '-'"
        raise InvalidValue(text=name, expected=expected)


def manifest_of(deployment: Deployment) -> Object:
    """The manifest of a new service with these options."""
    annotations = {
        **(
            {COMMAND_ANNOTATION: deployment.command, FOLDER_ANNOTATION: str(deployment.folder.absolute())}
            if deployment.command
            else {}
        ),
        **({SNAPSHOT_ANNOTATION: deployment.snapshot} if deployment.snapshot else {}),
        **({TEMPLATE_ANNOTATION: "preload"} if deployment.preload else {}),
        **({QUEUE_PROXY_ANNOTATION: str(QueueProxyPlace.IN_PROCESS)} if deployment.is_own_proxy else {}),
        **({NETWORK_ANNOTATION: "pod"} if deployment.fixed_port and deployment.command else {}),
        **{key: text for key, text in scaling_annotations(deployment.scaling).items() if text is not None},
        **deployment.annotations,
    }
    container: Object = {
        "image": deployment.image or deployment.name,
        "env": variables_of(deployment.environment, deployment.secrets),
    }
    ports = ports_of((), port=deployment.fixed_port or deployment.port, h2c=deployment.h2c, tcp=deployment.tcp_ports)
    if ports:
        container["ports"] = ports
    if deployment.limits:
        container["resources"] = with_limits(None, deployment.limits)
    spec = with_volumes({"containers": [container]}, deployment.volumes)
    if deployment.concurrency is not None:
        spec["containerConcurrency"] = deployment.concurrency
    if deployment.timeout is not None:
        spec["timeoutSeconds"] = deployment.timeout
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": {
            "name": deployment.name,
            **({"annotations": dict(deployment.policy)} if deployment.policy else {}),
        },
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": spec}},
    }


def merged(before: Object, deployment: Deployment, *, replace: bool) -> Object:
    """Apply the options to the service ``before``. With ``replace``, only its traffic and metadata are kept."""
    wanted = manifest_of(deployment)
    spec: Object = {key: value for key, value in before["spec"].items() if key == "traffic"} | wanted["spec"]
    if not replace:
        spec["template"] = _merged_template(
            nested(before, "spec", "template") or {}, wanted["spec"]["template"], deployment
        )
    old = nested(before, "spec", "template", "spec", "containers", 0) or {}
    container = spec["template"]["spec"]["containers"][0]
    container["env"] = in_same_order(container["env"], old.get("env") or [])
    metadata = before["metadata"]
    if deployment.policy:
        metadata = {**metadata, "annotations": {**annotations_of(before), **deployment.policy}}
    return {**wanted, "metadata": metadata, "spec": spec}


def in_same_order(variables: list[Object], before: list[Object]) -> list[Object]:
    """The variables in the order of ``before`` if only the order differs, to avoid a new revision.

    If a value refers to another variable, as $(NAME), the order has an effect and is not changed.
    """
    has_order = any("$(" in str(variable.get("value", "")) for variable in variables)
    is_equal = sorted(variables, key=name_in_environment) == sorted(before, key=name_in_environment)
    return before if is_equal and not has_order else variables


def name_in_environment(variable: Object) -> str:
    """The name of a variable, as sort key."""
    return str(variable.get("name", ""))


def _merged_template(before: Object, wanted: Object, deployment: Deployment) -> Object:
    replaced = (_RUN if deployment.command else _OF_PROCESSES) | scaling_annotations(deployment.scaling).keys()
    annotations = {key: text for key, text in annotations_of(before).items() if key not in replaced}
    old = (nested(before, "spec", "containers") or [{}])[0]
    new = wanted["spec"]["containers"][0]
    environment = {variable["name"]: variable for variable in (*_own_variables(old), *new["env"])}
    image = new["image"] if deployment.image or "image" not in old else old["image"]
    new = {key: value for key, value in new.items() if key != "volumeMounts"}
    # A command of the container would replace the requested one, or the image's.
    retained = {key: value for key, value in old.items() if key not in {"args", "command"}}
    container = {**retained, **new, "image": image, "env": list(environment.values())}
    if deployment.limits:
        container["resources"] = with_limits(old.get("resources"), deployment.limits)
    ports = ports_of(
        old.get("ports") or (),
        port=deployment.fixed_port or deployment.port,
        h2c=deployment.h2c,
        tcp=deployment.tcp_ports,
    )
    if ports:
        container["ports"] = ports
    own = {key: value for key, value in wanted["spec"].items() if key != "volumes"}
    # A revision name cannot be used twice, so the name in the previous template is removed.
    metadata = {key: value for key, value in (before.get("metadata") or {}).items() if key != "name"}
    return {
        "metadata": {**metadata, "annotations": {**annotations, **annotations_of(wanted)}},
        "spec": with_volumes({**(before.get("spec") or {}), **own, "containers": [container]}, deployment.volumes),
    }


def _own_variables(container: Object) -> list[Object]:
    """The variables of a container except those of a virtual environment, which each deploy sets."""
    variables: list[Object] = container.get("env") or []
    is_virtual = any(variable["name"] == VIRTUAL_ENV for variable in variables)
    return [variable for variable in variables if not is_virtual or variable["name"] not in {VIRTUAL_ENV, "PATH"}]


def command_of(template: Object) -> str:
    """The command in a template that runs instead of an image; "" if the template runs the image."""
    return annotations_of(template).get(COMMAND_ANNOTATION, "")


def without_command(template: Object) -> Object:
    """The template without the command and related fields. It then runs the image."""
    metadata = template.get("metadata") or {}
    annotations = {key: text for key, text in annotations_of(template).items() if key not in _OF_PROCESSES}
    first, *others = nested(template, "spec", "containers") or [{}]
    container = {**first, "env": _own_variables(first)}
    spec = {**(template.get("spec") or {}), "containers": [container, *others]}
    return {**template, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def dropped_options(before: Object, deployment: Deployment) -> list[str]:
    """Lines to print: the commands of the existing service that this deploy overwrites."""
    template = nested(before, "spec", "template") or {}
    container = nested(template, "spec", "containers", 0) or {}
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    command = command_of(template)
    dropped = [f"the command {command!r}"] if command and not deployment.command else []
    return [*dropped, *([f"the container's command {shlex.join(map(str, words))!r}"] if words else [])]


def retained_options(before: Object, deployment: Deployment) -> list[str]:
    """Settings kept from the existing service, such as "-e TARGET", "--min-scale 1", as texts to print."""
    template = nested(before, "spec", "template") or {}
    variables = [variable["name"] for variable in _own_variables(nested(template, "spec", "containers", 0) or {})]
    prefix = f"{AUTOSCALING_GROUP}/"
    options = {f"{prefix}{option.replace('_', '-')}": f"--{option.replace('_', '-')} " for option in SCALING}
    replaced = scaling_annotations(deployment.scaling).keys() | deployment.annotations.keys()
    return [
        *(f"-e {name}" for name in variables if name not in deployment.environment and name not in deployment.secrets),
        *(
            f"{options.get(key, f'--annotate {key}=')}{text}"
            for key, text in annotations_of(template).items()
            if key.startswith(prefix) and key not in replaced
        ),
    ]


def find_virtualenv(folder: Path, environment: Mapping[str, str]) -> Path | None:
    """The virtual environment in a folder, else the active one, else None."""
    candidates = [folder.absolute() / name for name in _FOLDERS]
    if environment.get(VIRTUAL_ENV):
        candidates.append(Path(environment[VIRTUAL_ENV]))
    return next((candidate for candidate in candidates if (candidate / _MARK).is_file()), None)


def environment_of(virtualenv: Path) -> dict[str, str]:
    """The environment variables that make a command use a virtual environment."""
    return {VIRTUAL_ENV: str(virtualenv), "PATH": f"{virtualenv / 'bin'}:{DEFAULT_PATH}"}


def asgi_command(app: str, virtualenv: Path | None) -> str:
    """The command that serves the app "module:name".

    Raises ``InvalidValue`` for any other text, or if a package is missing in the environment.
    """
    if not _ASGI_APP.fullmatch(app):
        raise InvalidValue(text=app, expected="a module and the name of an ASGI app in it, as in --asgi app:app")
    interpreter = str(virtualenv / "bin" / "python") if virtualenv else sys.executable
    missing = _missing_package(interpreter)
    if missing:
        expected = f"{missing} in the environment of {interpreter}: {interpreter} -m pip install 'serving[asgi]'"
        raise InvalidValue(text=app, expected=expected)
    return shlex.join([interpreter, "-m", "serving.asgi", app])


def _missing_package(interpreter: str) -> str:
    """The required packages that an interpreter cannot import, as text; "" if it can import all."""
    program = "import importlib.util as u; print(*[n for n in ('serving', 'uvicorn') if u.find_spec(n) is None])"
    try:
        # -P: skip a file with the package's name in the app's folder.
        done = subprocess.run(  # noqa: S603 - the user's own interpreter
            [interpreter, "-P", "-c", program], capture_output=True, text=True, timeout=_IMPORT_MAX_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a Python that starts ({error})"
    if done.returncode:
        return (
            f"Python 3.11 or newer ({done.stderr.strip().splitlines()[-1]})" if done.stderr.strip() else "Python 3.11"
        )
    return " and ".join(done.stdout.split())
