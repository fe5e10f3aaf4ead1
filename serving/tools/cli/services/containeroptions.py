"""The options common to ``serving deploy``, ``update`` and ``scale``.

``deploy`` and ``update`` have all: variables, limits, ports, scaling, and the route's policy. ``scale`` has those of
scaling.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.knative import (
    ACCESS_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    POLICY_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
    START_EVENTS_ANNOTATION,
    TCP_ANNOTATION,
)
from serving.core.model.objects import Object, is_dns_label
from serving.core.model.ports import CONTAINER_PORT, PORT_MAX
from serving.core.model.quantity import parse_bytes, parse_millicores
from serving.core.model.routepolicy import route_policy
from serving.core.settings.autoscaler import POLICY_NAME
from serving.net.aio.inputfile import open_input
from serving.tools.cli.client.api import MAY_BE_EMPTY, ApiClient, adding, fail_usage
from serving.tools.cli.client.resources import SecondsParam
from serving.tools.cli.services.interpolation import Interpolation

# Knative's default for a manifest without a port.
# Each revision and pod stores its variables, and each watch of them sends the variables.
_ENV_FILE_MAX_BYTES = 256 * 1024
# MAX_ARG_STRLEN of Linux: the longest "NAME=VALUE" with terminator in the environment of a program.
_VARIABLE_MAX_BYTES = 128 * 1024 - 1
_SECRET = re.compile(r"(?P<name>[^=:\s]+)=(?P<secret>[a-z0-9]([-a-z0-9.]*[a-z0-9])?):(?P<key>[-._a-zA-Z0-9]+)")
_MOUNT_PATH = re.compile(r"/[^:]+")
_NOT_FOUND = 404

_OPTIONS = (
    click.option("-e", "--env", "pairs", multiple=True, metavar="NAME=VALUE", help="Set an environment variable."),
    click.option(
        "--env-file",
        "env_files",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
        help="File of NAME=VALUE lines, such as .env; --env takes precedence.",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME=SECRET:KEY",
        help="Set an environment variable from a key of a Secret.",
    ),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="NAME:/PATH",
        help="Mount a volume, created by `serving volume create`, at a path.",
    ),
    click.option("--cpu", metavar="CPU", help="CPU limit, such as 500m or 2."),
    click.option("--memory", metavar="MEMORY", help="Memory limit, such as 256Mi."),
    click.option(
        "--port", type=click.IntRange(1, PORT_MAX), help="Container port in the manifest; the app still gets $PORT."
    ),
    click.option("--h2c/--no-h2c", default=None, help="Send HTTP/2 with prior knowledge to the app, as gRPC needs."),
    click.option(
        "--concurrency", type=click.IntRange(0), help="Maximum number of concurrent requests per pod; 0 is no limit."
    ),
    click.option("--timeout", type=SecondsParam(), metavar="TIME", help="Request timeout, such as 90 (seconds) or 5m."),
    click.option(
        "--policy",
        "scaling_policy",
        metavar="POLICY",
        help="Scaling policy: knative, adaptive, the name of an installed policy, or FILE.py:Class on this machine.",
    ),
)
_SCALING_OPTIONS = (
    click.option(
        "--min",
        "--min-scale",
        "min_scale",
        type=click.IntRange(0),
        help="Minimum number of pods; 0 allows scale to zero.",
    ),
    click.option(
        "--max", "--max-scale", "max_scale", type=click.IntRange(0), help="Maximum number of pods; 0 is no limit."
    ),
    click.option(
        "--initial-scale",
        type=click.IntRange(0),
        help="Number of pods that start with the revision and must become ready; 0 starts none.",
    ),
    click.option("--window", metavar="TIME", help="Time over which load is averaged, such as 60s."),
    click.option(
        "--target", type=click.FloatRange(0, min_open=True), help="Target number of concurrent requests per pod."
    ),
)
_ROUTE_OPTIONS = (
    click.option(
        "--access",
        type=click.Choice(["public", "private"]),
        help="Allow all callers, or only those with the service's token.",
    ),
    click.option(
        "--session-affinity",
        type=MAY_BE_EMPTY,
        metavar="HOW",
        help="Send the requests of a session to one pod, by cookie, header:NAME or prefix; none or '' disables it.",
    ),
    click.option(
        "--route-by-header",
        type=MAY_BE_EMPTY,
        metavar="RULES",
        help="Route requests with a header to a tag, such as 'X-Beta=yes:candidate'; '' for none.",
    ),
    click.option(
        "--placeholder-page", type=click.Choice(["true", "false"]), help="Show browsers a page while a pod starts."
    ),
    click.option(
        "--start-events",
        type=click.Choice(["true", "false"]),
        help="Send comments to clients of event streams while a pod starts.",
    ),
    click.option(
        "--tcp",
        type=MAY_BE_EMPTY,
        metavar="PORTS",
        help="Accept TCP connections of any protocol at these ports, such as 5432; '' for none.",
    ),
)
SCALING = ("min_scale", "max_scale", "initial_scale", "window", "target")
"""The options of scaling, each for an annotation of the template."""

# The options of a route, each for an annotation of the service.
_ROUTE = {
    "access": ACCESS_ANNOTATION,
    "session_affinity": SESSION_AFFINITY_ANNOTATION,
    "route_by_header": ROUTE_BY_HEADER_ANNOTATION,
    "placeholder_page": PLACEHOLDER_PAGE_ANNOTATION,
    "start_events": START_EVENTS_ANNOTATION,
    "tcp": TCP_ANNOTATION,
}


scaling_options = adding(*_SCALING_OPTIONS)
"""Adds ``--min``, ``--max`` and the other options of scaling."""

service_options = adding(*_OPTIONS, *_SCALING_OPTIONS, *_ROUTE_OPTIONS)
"""Adds all shared options."""


class ServiceChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The values of ``service_options``. An option that was not given is None or empty."""

    image: str | None = None
    environment: Mapping[str, str] = {}
    secrets: Mapping[str, Object] = {}
    """References to keys of Secrets by variable."""
    limits: Mapping[str, str] = {}
    volumes: Mapping[str, str] = {}
    """Mount paths by volume."""
    annotations: Mapping[str, str] = {}
    concurrency: int | None = None
    timeout: int | None = None
    port: int | None = None
    h2c: bool | None = None
    scaling: Mapping[str, str] = {}
    """Values by key, such as "min-scale"."""
    policy: Mapping[str, str] = {}
    """Annotations of the service itself, which its Route gets (``serving.core.model.routepolicy``); "" removes one."""


def changes_from(options: dict[str, Any]) -> dict[str, Any]:
    """Remove options that need parsing; return them as fields of ``ServiceChanges``.

    Raises ``InvalidValue`` or ``SettingsError``.
    """
    environment, secrets = variables_from(options)
    scaling_policy = options.pop("scaling_policy")
    return {
        "environment": environment,
        "secrets": secrets,
        "scaling": scaling_from(options),
        "policy": policy_from(options),
        "limits": limits_of(options.pop("cpu"), options.pop("memory")),
        "volumes": volumes_of(options.pop("volumes")),
        "annotations": {
            **({} if scaling_policy is None else {POLICY_ANNOTATION: scaling_policy}),
            **pairs_of(options.pop("annotate"), "--annotate", "KEY"),
        },
    }


def policy_name(api: ApiClient, text: str | None) -> str | None:
    """The policy's name in the annotation; None without the option.

    On this machine, the file of FILE.py:Class is copied, and the name refers to the copy. Exits if the text is invalid.
    """
    if text is None:
        return None
    try:
        if ":" not in text:
            return str(POLICY_NAME.read(text))
        from serving.net.aio.policyclasses import POLICIES_FOLDER, StoredPolicies  # noqa: PLC0415 - for files only

        if api.state_path is None:
            fail_usage(
                f"--policy {text}: a file is for this machine; on Kubernetes name a policy of a package that is installed "
                "in the autoscaler's image (docs/policies.md)"
            )
        return StoredPolicies(api.state_path / POLICIES_FOLDER).add(text)
    except (InvalidValue, OSError) as error:
        fail_usage(f"--policy: {error}")


def scaling_from(options: dict[str, Any]) -> dict[str, str]:
    """Remove the scaling options; return the scaling values by key, such as "min-scale"."""
    values = {option.replace("_", "-"): options.pop(option) for option in SCALING}
    return {
        key: f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in values.items()
        if value is not None
    }


def policy_from(options: dict[str, Any]) -> dict[str, str]:
    """Remove the policy options; return the service's annotations. Exits if one is invalid."""
    policy = {key: value for option, key in _ROUTE.items() if (value := options.pop(option)) is not None}
    more = [str(tcp_port) for tcp_port in options.get("tcp_ports") or ()]
    if more:
        # The annotation lists all listening ports of the activators.
        named = [port.strip() for port in policy.get(TCP_ANNOTATION, "").split(",") if port]
        policy[TCP_ANNOTATION] = ",".join([*named, *(tcp_port for tcp_port in more if tcp_port not in named)])
    problems = route_policy(policy).problems
    if problems:
        fail_usage("; ".join(problems))
    return policy


def pairs_of(texts: Iterable[str], option: str, what: str) -> dict[str, str]:
    """Parse NAME=VALUE texts of an option. Raises ``InvalidValue``, also for a repeated name."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise InvalidValue(text=text, expected=f"{what}=VALUE after {option}")
        if name in pairs:
            raise InvalidValue(text=text, expected=f"the only {option} for {name}: each name is given once")
        pairs[name] = value
    return pairs


def variables_from(options: dict[str, Any]) -> tuple[dict[str, str], dict[str, Object]]:
    """Remove the options for variables; return values and secret references.

    Raises ``InvalidValue``, ``SettingsError``.
    """
    files = options.pop("env_files")
    pairs = pairs_of(options.pop("pairs"), "--env", "NAME")
    values: dict[str, str] = {}
    for path in files:
        values |= read_env_file(path)
    values |= pairs
    for name, value in values.items():
        size = len(f"{name}={value}".encode(errors="surrogateescape"))
        if size > _VARIABLE_MAX_BYTES:
            expected = f"at most {_VARIABLE_MAX_BYTES:,} bytes with its name; mount a Secret or ConfigMap as a file"
            raise SettingsError([Problem(where=f"variable {name}", what=f"{size:,} bytes", expected=expected)])
    secrets = secrets_of(options.pop("secrets"))
    both = sorted(values.keys() & secrets.keys())
    if both:
        raise InvalidValue(text=both[0], expected="a variable of --secret only: --env or --env-file sets it too")
    return values, secrets


class _Binding(NamedTuple):
    """One variable of a .env file. ``value`` is None if the line has only a name."""

    line: int
    name: str
    value: str | None
    quote: str


def read_env_file(path: Path) -> dict[str, str]:
    """The variables of a .env file, without quotes. Raises ``OSError``, or ``SettingsError`` with each invalid line."""
    lines: dict[str, int] = {}
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for binding in _bindings(path, problems, needs_value=True):
        if binding.name in lines:
            expected = f"each name once; line {lines[binding.name]} has it"
            problems.append(Problem(where=f"{path}:{binding.line}", what=f"{binding.name} again", expected=expected))
        else:
            lines[binding.name], values[binding.name] = binding.line, binding.value or ""
    if problems:
        raise SettingsError(problems)
    return values


def read_compose_env_file(path: Path, interpolation: Interpolation) -> dict[str, str]:
    """The variables of a file in compose's syntax, interpolated, and added to ``interpolation``.

    A name may be repeated. A name without a value gets the environment's value, if it exists. Raises ``OSError``, or
    ``SettingsError`` with each invalid line.
    """
    values: dict[str, str] = {}
    problems: list[Problem] = []
    for binding in _bindings(path, problems, needs_value=False):
        if binding.value is None:
            values |= (
                {binding.name: interpolation.variables[binding.name]} if binding.name in interpolation.variables else {}
            )
            continue
        # The parser does not change an escaped dollar sign.
        text = binding.value.replace("\\$", "$$") if binding.quote == '"' else binding.value
        try:
            values[binding.name] = interpolation.define(binding.name, text, is_literal=binding.quote == "'")
        except InvalidValue as error:
            problems.append(Problem(where=f"{path}:{binding.line}", what=repr(error.text), expected=error.expected))
    if problems:
        raise SettingsError(problems)
    return values


def _bindings(path: Path, problems: list[Problem], *, needs_value: bool) -> Iterator[_Binding]:
    """The variables of a file in order. Invalid lines are added to ``problems``."""
    # Imported with an env file only: the parser is a separate package.
    import io  # noqa: PLC0415 - as above

    from dotenv.parser import parse_stream  # noqa: PLC0415 - as above

    for binding in parse_stream(io.StringIO(_text_of(path))):
        name, value, written = binding.key, binding.value, binding.original.string
        # Empty lines before a variable belong to the variable.
        line = binding.original.line + written[: len(written) - len(written.lstrip())].count("\n")
        lacks_value = name is not None and value is None and needs_value
        if binding.error or lacks_value or (name is not None and "\0" in name + (value or "")):
            shown = repr(written.strip()[:40])
            expected = "NAME=VALUE, a comment or an empty line"
            problems.append(Problem(where=f"{path}:{line}", what=shown, expected=expected))
        elif name is not None:
            yield _Binding(line, name, value, quote=written.partition("=")[2].lstrip()[:1])


def _text_of(path: Path) -> str:
    with open_input(path) as file:
        content = file.read(_ENV_FILE_MAX_BYTES + 1)
    if len(content) > _ENV_FILE_MAX_BYTES:
        expected = f"at most {_ENV_FILE_MAX_BYTES:,} bytes of variables; mount a Secret or ConfigMap as a file"
        raise SettingsError([Problem(where=str(path), what="too large", expected=expected)])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = Problem(where=str(path), what=f"byte {error.start} is not UTF-8", expected="a text file")
        raise SettingsError([problem]) from None


def secrets_of(texts: Iterable[str]) -> dict[str, Object]:
    """References to keys of Secrets by variable. Raises ``InvalidValue``."""
    texts = list(texts)
    references: dict[str, Object] = {}
    for text in texts:
        match = _SECRET.fullmatch(text)
        if match is None:
            raise InvalidValue(text=text, expected="NAME=SECRET:KEY after --secret, as in DB_PASSWORD=db:password")
        references[match["name"]] = {"name": match["secret"], "key": match["key"]}
    # A repeated name is an error, too.
    pairs_of(texts, "--secret", "NAME")
    return references


def volumes_of(texts: Iterable[str]) -> dict[str, str]:
    """Mount paths by volume. Raises ``InvalidValue``."""
    paths: dict[str, str] = {}
    for text in texts:
        name, _, path = text.partition(":")
        if not (is_dns_label(name) and _MOUNT_PATH.fullmatch(path)) or ".." in path.split("/"):
            raise InvalidValue(text=text, expected="NAME:/PATH after --volume, as in db:/var/lib/db")
        if name in paths or path in paths.values():
            raise InvalidValue(text=text, expected="the only --volume of its name and of its path")
        paths[name] = path
    return paths


def with_volumes(pod_spec: Object, volumes: Mapping[str, str]) -> Object:
    """The spec with volumes in the first container; a volume of the same name or path is replaced."""
    if not volumes:
        return pod_spec
    first, *others = pod_spec["containers"]
    retained = [volume_mount for volume_mount in first.get("volumeMounts") or () if volume_mount["name"] not in volumes]
    mounts = [*retained, *({"name": name, "mountPath": path} for name, path in volumes.items())]
    remaining = [volume for volume in pod_spec.get("volumes") or () if volume["name"] not in volumes]
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in volumes]
    return {**pod_spec, "volumes": [*remaining, *claims], "containers": [{**first, "volumeMounts": mounts}, *others]}


def check_volumes(api: ApiClient, volumes: Iterable[str]) -> None:
    """Exit if a volume does not exist."""
    for name in volumes:
        path = f"/api/v1/namespaces/{api.namespace}/persistentvolumeclaims/{name}"
        if api.call("GET", path)[0] == _NOT_FOUND:
            fail_usage(
                f"--volume: there is no volume {name} in namespace {api.namespace}; `serving volume create {name}`"
            )


def check_secrets(api: ApiClient, secrets: Mapping[str, Object]) -> None:
    """Exit if a Secret or its key does not exist. If the user may not read Secrets, nothing is checked."""
    for reference in secrets.values():
        name, key = reference["name"], reference["key"]
        status, secret = api.call("GET", f"/api/v1/namespaces/{api.namespace}/secrets/{name}")
        if status == _NOT_FOUND:
            fail_usage(
                f"--secret: there is no Secret {name} in namespace {api.namespace}; "
                f"`kubectl create secret generic {name} --from-literal={key}=...` creates it"
            )
        keys = sorted(secret.get("data") or {}) if status < 400 else [key]
        if key not in keys:
            fail_usage(f"--secret: Secret {name} has no key {key}; it has {', '.join(keys) or 'none'}")


def variables_of(values: Mapping[str, str], secrets: Mapping[str, Object]) -> list[Object]:
    """The variables in the form of a container's ``env``."""
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": {"secretKeyRef": reference}} for name, reference in secrets.items()),
    ]


def limits_of(cpu: str | None, memory: str | None) -> dict[str, str]:
    """The limits by resource. Raises ``InvalidValue`` unless a text is a quantity above 0."""
    limits: dict[str, str] = {}
    for resource, text, read in (("cpu", cpu, parse_millicores), ("memory", memory, parse_bytes)):
        if text is None:
            continue
        try:
            number = read(text)
        except InvalidValue as error:
            raise InvalidValue(text=f"--{resource} {text}", expected=error.expected) from None
        if number <= 0:
            raise InvalidValue(text=f"--{resource} {text}", expected="a limit: it is more than 0")
        limits[resource] = text
    return limits


def with_limits(resources: Mapping[str, Any] | None, limits: Mapping[str, str]) -> Object:
    """The resources of a container, with these limits replaced."""
    before = dict(resources or {})
    return {**before, "limits": {**before.get("limits", {}), **limits}}


def ports_of(before: Sequence[Object], *, port: int | None, h2c: bool | None, tcp: Sequence[int] = ()) -> list[Object]:
    """The ports of a container after the options. None or an empty option does not change a port."""
    if port is None and h2c is None and not tcp:
        return list(before)
    old = before[0] if before else {}
    number = {"containerPort": port or old.get("containerPort") or CONTAINER_PORT}
    first = {"name": "h2c", **number} if (old.get("name") == "h2c" if h2c is None else h2c) else number
    return [first, *([{"name": f"tcp-{tcp_port}", "containerPort": tcp_port} for tcp_port in tcp] or before[1:])]
