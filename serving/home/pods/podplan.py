"""Derives a pod's processes from its manifest. Pure.

Input: the pod, its revision's numbers, and its assigned addresses. Output: commands with their environment. An app's
environment has only the variables of its manifest, and PORT, HOME, HOSTNAME and PATH. HOME is the pod's folder with its
mounts. A volume at /etc/config is also at $HOME/etc/config, for kernels without mount namespaces (``mounts.py``).
"""

import functools
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import (
    COMMAND_ANNOTATION,
    FOLDER_ANNOTATION,
    GUARDED_ANNOTATION,
    GUARDED_VARIABLE,
    IMAGES_ONLY_ANNOTATION,
    METRICS_PORT_ANNOTATION,
    NETWORK_ANNOTATION,
    QUEUE_PROXY_ANNOTATION,
    REVISION_LABEL,
    QueueProxyPlace,
)
from serving.core.model.objects import Object, annotations_of
from serving.core.model.ports import PORT_MAX
from serving.core.settings.queueproxy import (
    QueueProxySettings,
    changed_variables,
    load_variables,
    tcp_variables,
    variables_of,
)
from serving.home.pods.sources import ByteBudget, expanded

_DEFAULTS = QueueProxySettings()
_NO_PORTS: Mapping[int, int] = {}
DRAIN_LAG_S = 1.0
"""How long an idle pod drains, in seconds: on a single machine all senders see its end within milliseconds."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KUBERNETES_VARIABLE = re.compile(r"\$\(([A-Z_][A-Z0-9_]*)\)")
_QUOTED = re.compile(r"""'[^']*'|\\.|"((?:\\.|[^"\\])*)\"""")
_ASSIGNMENT = re.compile(r"\s*\w+=")
_SHELL_SYNTAX = re.compile(r"[$`|&;<>\n]")
_SEVERAL_COMMANDS = re.compile(r"[|&;\n]")
# Shell builtins: there is no program to execute instead.
_SHELL_WORDS = frozenset(
    {"cd", "exec", "export", "if", "for", "while", "until", "case", "set", "test", ".", "trap", "{"}
)
_PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_HANDLERS = ("httpGet", "tcpSocket", "grpc")
# Cached: all pods of a revision have the same one, and splitting takes a quarter of a millisecond of a cold start.
_COMMANDS_KEPT = 1024
_NO_USERS = "hostUsers true, or none: only containers of images have separate users, and this is a process"
_NO_RANGE = "hostUsers true, or none: this machine cannot give containers separate users"
_NO_PROFILE = (
    "seccompProfile RuntimeDefault, or none: only containers of images have profiles from files, and this is a process"
)
_NO_PRIVILEGES = "no privileged, or false: no pod of this machine is privileged; capabilities can be added one by one"
_NO_PROGRAM = "an image that can be run here: the pod's author may not run programs of this machine"
_NO_COMMAND = (
    f"a command, args, or the annotation {COMMAND_ANNOTATION} on the template: this process container has none"
)
_NO_RUNTIME = (
    "an image that a container runtime runs: there is none here, and the command of an image is no command of this machine. "
    f"Install crun or runc, or annotate the template with {COMMAND_ANNOTATION}"
)

CONTAINER_CREATING = "ContainerCreating"
"""The waiting reason of a container that has not been started."""


class AppPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a container as a process: its arguments, environment and working folder.

    ``snapshot`` is the folder of the application's snapshot, "" without one.
    """

    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    snapshot: str = ""


class ContainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a container: whether it runs, its restarts, and its last end.

    ``restart_count`` includes the restart that the container waits for. ``is_over``: it has ended and is not restarted
    (``restartPolicy``). ``exit_code`` is as in Kubernetes: 128 plus the number of the signal, if a signal ended it.
    """

    is_running: bool = False
    started_at: str = ""
    """The start of the process, to the microsecond; "" if an older version started it."""
    is_over: bool = False
    restart_count: int = 0
    exit_code: int | None = None
    exit_reason: str = ""
    last_lines: str = ""
    waiting_reason: str = CONTAINER_CREATING
    waiting_message: str = ""

    @property
    def awaits_restart(self) -> bool:
        """Whether the container has ended and will be started again."""
        return not self.is_running and not self.is_over and self.exit_code is not None

    @property
    def has_failed(self) -> bool:
        """Whether a start has failed: the container could not start, or its process ended and is restarted."""
        return self.restart_count > 0 or (not self.is_running and self.waiting_reason != CONTAINER_CREATING)

    @property
    def progress(self) -> tuple[str, int, bool]:
        """The state for the next control process: last start, restarts, and whether the container has ended."""
        return self.started_at, self.restart_count, self.is_over


def has_own_users(pod: Object) -> bool:
    """Whether a pod requests a user namespace."""
    return pod["spec"].get("hostUsers") is False


def refuse_unsupported(pod: Object, container: Object, *, is_process: bool, no_users: str = "") -> None:
    """Raise ``InvalidValue`` for requested isolation or rights that a container would not get.

    ``is_process``: the container runs as a process, without an image. ``no_users`` is the reason why this machine
    cannot create user namespaces for containers; "" if it can.
    """
    if has_own_users(pod) and (is_process or no_users):
        raise InvalidValue(text="hostUsers: false", expected=_NO_USERS if is_process else f"{_NO_RANGE}: {no_users}")
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    if security.get("privileged"):
        raise InvalidValue(text="privileged: true", expected=_NO_PRIVILEGES)
    if is_process and (security.get("seccompProfile") or {}).get("type") == "Localhost":
        raise InvalidValue(text="seccompProfile: Localhost", expected=_NO_PROFILE)


def app_plan(
    pod: Object, container: Object, *, port: int, home: str, variables: Mapping[str, str], snapshot: str = ""
) -> AppPlan:
    """How to run a container as a process. Raises ``InvalidValue`` if it has no command.

    ``variables`` is the manifest's environment. ``home`` is the pod's folder. ``snapshot`` is the folder of the
    application's snapshot, if any. Only the serving container gets ``port`` as PORT.
    """
    refuse_unsupported(pod, container, is_process=True)
    if IMAGES_ONLY_ANNOTATION in annotations_of(pod):
        raise InvalidValue(text=container.get("image", ""), expected=_NO_PROGRAM)
    if runs_images(pod):
        raise InvalidValue(text=container.get("image", ""), expected=_NO_RUNTIME)
    annotation = (pod["metadata"].get("annotations") or {}).get(COMMAND_ANNOTATION, "")
    command = [*container.get("command", ()), *container.get("args", ())]
    if annotation and not container.get("command") and not is_init(pod, container):
        # In a shell "$$" is the process id, not a dollar.
        command = [*(word.replace("$$", "$$$$") for word in command_words(annotation)), *container.get("args", ())]
    if not command:
        raise InvalidValue(text=container.get("image", ""), expected=_NO_COMMAND)
    environment = {"PATH": DEFAULT_PATH, "HOME": home, "HOSTNAME": pod["metadata"]["name"], **variables}
    if serves(pod, container):
        environment["PORT"] = str(port)
    budget = ByteBudget("the command line")
    return AppPlan(
        name=container_name_of(container),
        arguments=tuple(expanded(word, environment, budget) for word in command),
        environment=environment,
        folder=container.get("workingDir")
        or snapshot
        or (pod["metadata"].get("annotations") or {}).get(FOLDER_ANNOTATION)
        or home,
        snapshot=snapshot,
    )


@functools.lru_cache(maxsize=_COMMANDS_KEPT)
def command_words(text: str) -> tuple[str, ...]:
    """The arguments of a command line. Raises ``InvalidValue`` for an unclosed quote.

    Text with shell syntax, such as "$PORT", "a && b" or "A=1 b", becomes arguments of ``sh -c``. If it is a single
    command, ``exec`` is added, so that the command replaces the shell. ``$(PORT)`` means the variable, as in a
    manifest.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        reason = str(error).lower()
        raise InvalidValue(text=text, expected=f"a command as in a shell ({reason})") from error
    text = _KUBERNETES_VARIABLE.sub(r"${\1}", text)
    # Within double quotes a shell expands only variables.
    bare = _QUOTED.sub(lambda match: "".join(character for character in match[1] or "" if character in "$`"), text)
    is_assignment = _ASSIGNMENT.match(bare)
    if not is_assignment and not _SHELL_SYNTAX.search(bare):
        return tuple(words)
    is_single = not is_assignment and not _SEVERAL_COMMANDS.search(bare) and words[0] not in _SHELL_WORDS
    return ("/bin/sh", "-c", f"exec {text}" if is_single else text)


def container_name_of(container: Object) -> str:
    """A container's name, or Knative's default."""
    return container.get("name") or "user-container"


def as_new(pod: Object) -> Object:
    """The pod without the fields that a server adds, to be created again with its uid and age."""
    fields = {"name", "generateName", "namespace", "labels", "annotations", "uid", "creationTimestamp"}
    metadata = {key: value for key, value in pod["metadata"].items() if key in fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}


def init_containers(pod: Object) -> Sequence[Object]:
    """The containers that run before the others, one after another."""
    containers: Sequence[Object] = pod["spec"].get("initContainers") or ()
    return containers


def all_containers(pod: Object) -> Sequence[Object]:
    """The containers of a pod, in start order."""
    return [*init_containers(pod), *_containers(pod)]


def is_init(pod: Object, container: Object) -> bool:
    """Whether a container is an init container. Container names are unique in a pod."""
    return any(init_container.get("name") == container.get("name") for init_container in init_containers(pod))


def serves(pod: Object, container: Object) -> bool:
    """Whether a container serves requests: the only one, or the one with a port."""
    return (len(_containers(pod)) == 1 or bool(container.get("ports"))) and not is_init(pod, container)


def serving_ports(pod: Object) -> list[Object]:
    """The declared ports of the serving container."""
    return [port for container in _containers(pod) if serves(pod, container) for port in container.get("ports") or ()]


def named_ports(pod: Object) -> list[int]:
    """The ports in a manifest, ascending: container ports, ports of probes, and the port of the metrics page."""
    handlers = [
        handler
        for container in all_containers(pod)
        for probe in (container.get(kind) or {} for kind in _PROBES)
        for handler in (probe.get(kind) or {} for kind in _HANDLERS)
    ]
    metrics_port = annotations_of(pod).get(METRICS_PORT_ANNOTATION, "")
    ports = [
        *(port.get("containerPort") for container in all_containers(pod) for port in container.get("ports") or ()),
        *(handler.get("port") for handler in handlers),
        int(metrics_port) if metrics_port.isdecimal() else 0,
    ]
    return sorted({port for port in ports if isinstance(port, int) and 0 < port <= PORT_MAX})


def is_own_proxy(pod: Object, container: Object) -> bool:
    """Whether the queue-proxy of a revision's pod runs in the process of this container."""
    annotations = pod["metadata"].get("annotations") or {}
    is_inside = annotations.get(QUEUE_PROXY_ANNOTATION) == QueueProxyPlace.IN_PROCESS
    return is_inside and REVISION_LABEL in (pod["metadata"].get("labels") or {}) and serves(pod, container)


def runs_images(pod: Object) -> bool:
    """Whether a pod must run the images of its containers, because no annotation names a command or a folder."""
    annotations = annotations_of(pod)
    return COMMAND_ANNOTATION not in annotations and FOLDER_ANNOTATION not in annotations


def has_own_network(pod: Object) -> bool:
    """Whether the processes of a pod run in their own network namespace."""
    return annotations_of(pod).get(NETWORK_ANNOTATION) == "pod" and not runs_images(pod)


def proxy_environment(
    pod: Object,
    revision: Object,
    *,
    app: str,
    address: str,
    tcp_ports: Mapping[int, int] = _NO_PORTS,
    proxy_settings: QueueProxySettings = _DEFAULTS,
) -> dict[str, str]:
    """The environment of a pod's queue-proxy, without its secrets and the address for its statistics.

    ``app`` is "address:port". ``tcp_ports`` are the app's TCP ports by containerPort. ``proxy_settings`` apply where
    the revision does not override them.
    """
    settings = {
        **variables_of(revision.get("spec", {})),
        "SERVING_QUEUEPROXY_DRAIN_GRACE_S": pod["spec"].get("terminationGracePeriodSeconds"),
        "SERVING_POD_READINESS": _readiness(pod),
        "SERVING_POD_PROTOCOL": _protocol(pod),
    }
    metadata = pod["metadata"]
    ports = [int(port["containerPort"]) for container in _containers(pod) for port in container.get("ports") or ()]
    return {
        **({"SERVING_POD_IP": address} if proxy_settings.logging.is_on else {}),
        **load_variables(annotations_of(revision), app_port=ports[0] if ports else 0),
        "SERVING_POD_NAMESPACE": metadata["namespace"],
        "SERVING_POD_REVISION": metadata["labels"][REVISION_LABEL],
        "SERVING_POD_NAME": metadata["name"],
        "SERVING_POD_APP": app,
        **tcp_variables(tcp_ports),
        **({GUARDED_VARIABLE: "true"} if GUARDED_ANNOTATION in annotations_of(pod) else {}),
        "SERVING_POD_LISTEN": f"{address}:8012",
        "SERVING_POD_ADMIN_LISTEN": f"{address}:8022",
        **changed_variables(proxy_settings),
        **proxy_settings.logging.log_variables(metadata["labels"]),
        "SERVING_QUEUEPROXY_DRAIN_LAG_S": str(DRAIN_LAG_S),
        **{name: str(value) for name, value in settings.items() if value is not None},
    }


def _readiness(pod: Object) -> str | None:
    """The serving container's readiness probe as JSON; None without one.

    The port is removed, because the app's actual port differs from the manifest's.
    """
    for container in _containers(pod):
        probe = container.get("readinessProbe")
        if probe and serves(pod, container):
            kinds = {kind: {**probe[kind], "port": 0} for kind in ("httpGet", "tcpSocket") if kind in probe}
            return msgspec.json.encode({**probe, **kinds}).decode()
    return None


def _protocol(pod: Object) -> str | None:
    """The app's protocol: h2c if the serving port is named so; None for HTTP/1.1."""
    return "h2c" if any(uses_http2(container) for container in _containers(pod) if serves(pod, container)) else None


def uses_http2(container: Object) -> bool:
    """Whether an app accepts HTTP/2 with prior knowledge: its port is named h2c."""
    return any(port.get("name") == "h2c" for port in container.get("ports", ()))


def _containers(pod: Object) -> Sequence[Object]:
    containers: Sequence[Object] = pod["spec"]["containers"]
    return containers
