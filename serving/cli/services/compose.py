"""Converts compose files: a Knative Service for each service, and the images that are to be built for them. Pure.

Follows the Compose Specification (github.com/compose-spec/compose-spec): its parts ``build``, ``ports``, ``expose``, ``environment``,
``command``, ``entrypoint``, ``working_dir`` and the limits of ``deploy``.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.home.images.store import ImageBuild
from serving.model.errors import InvalidValue
from serving.model.knative import NAMED_PORT_ANNOTATION, SERVING_API_VERSION
from serving.model.objects import Object, nested

# Keys that are the default here, or that do not affect what runs.
_SILENT = frozenset(
    {"restart", "container_name", "networks", "init", "stdin_open", "tty", "expose", "depends_on", "labels"}
)
_KNOWN = frozenset({"image", "build", "command", "entrypoint", "environment", "ports", "working_dir", "deploy"})
_BUILD_KNOWN = frozenset({"context", "dockerfile", "args", "target"})
# Keys without which the image would have another content.
_BUILD_REFUSED = frozenset({"dockerfile_inline", "additional_contexts", "secrets", "ssh"})
# Sections of a file without an equivalent here, and what to do.
_INSTEAD = {
    "volumes": "`serving volume create NAME` makes one, and `serving update SERVICE --volume NAME:/PATH` mounts it",
    "secrets": "make a Secret, and mount it as a volume",
    "configs": "make a ConfigMap, and mount it as a volume",
}


class Converted(msgspec.Struct, kw_only=True):
    """The manifests, a note for each part without an equivalent, and the images to build, each with its container."""

    manifests: list[Object] = []
    notes: list[str] = []
    builds: list[tuple[ImageBuild, Object]] = []


def is_compose(document: object) -> bool:
    """Whether a document is a compose file: it has services and no kind."""
    return isinstance(document, dict) and "kind" not in document and isinstance(document.get("services"), dict)


def from_compose(document: Mapping[str, Any], *, folder: Path, environment: Mapping[str, str]) -> Converted:
    """A Knative Service for each service.

    ``folder`` is that of the file; ``environment`` has variables and build arguments without a value.

    Raises:
        InvalidValue: for a part that cannot be converted.
    """
    found = Converted()
    for name, service in document["services"].items():
        if not isinstance(service, dict):
            raise InvalidValue(text=f"services.{name}", expected="a mapping, as the Compose Specification has it")
        if _name(name) != name:
            found.notes.append(f"{name}: it is called {_name(name)} here, by other services too")
        manifest, container = _service(_name(name), service, found.notes, outside=environment)
        found.manifests.append(manifest)
        if service.get("build"):
            build = _build(_name(name), service["build"], found.notes, folder=folder, environment=environment)
            found.builds.append((build, container))
    for section, instead in _INSTEAD.items():
        if document.get(section):
            found.notes.append(f"{section}: not converted; {instead}")
    return found


def _name(name: object) -> str:
    return str(name).replace("_", "-").lower()


def _service(
    name: str, service: Mapping[str, Any], notes: list[str], *, outside: Mapping[str, str]
) -> tuple[Object, Object]:
    """A Service, and its container."""
    container: Object = {"image": service.get("image") or name}
    for field, key in (("entrypoint", "command"), ("command", "args")):
        if service.get(field):
            container[key] = _words(service[field])
    if service.get("working_dir"):
        container["workingDir"] = service["working_dir"]
    environment = _environment(pairs_with_values(service.get("environment") or {}, "variables", outside), name, notes)
    if environment:
        container["env"] = environment
    ports = [_port(one) for one in service.get("ports") or service.get("expose") or ()]
    if ports:
        container["ports"] = [{"containerPort": ports[0]}]
        notes.extend(f"{name}: port {port} is left out: a service has one" for port in ports[1:])
    else:
        notes.append(f"{name}: it publishes no port; a service must listen on $PORT for HTTP requests")
    limits = _limits(nested(service, "deploy", "resources", "limits") or {})
    if limits:
        container["resources"] = {"limits": limits}
    notes.extend(f"{name}: {field} is not converted" for field in sorted(map(str, set(service) - _KNOWN - _SILENT)))
    annotations = {"annotations": {NAMED_PORT_ANNOTATION: str(ports[0])}} if ports else {}
    manifest = {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": {"name": name, **annotations},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return manifest, container


def _build(name: str, build: object, notes: list[str], *, folder: Path, environment: Mapping[str, str]) -> ImageBuild:
    given = {"context": build} if isinstance(build, str) else build
    if not isinstance(given, dict):
        raise InvalidValue(text=f"services.{name}.build", expected="a folder, or a mapping with context")
    refused = sorted(_BUILD_REFUSED & given.keys())
    if refused:
        expected = f"a build of {name} without it; put what it says into the Containerfile"
        raise InvalidValue(text=refused[0], expected=expected)
    context = str(given.get("context") or ".")
    if "://" in context or context.startswith("git@"):
        raise InvalidValue(text=context, expected=f"a folder as the build context of {name}; clone it first")
    where = folder / context
    notes.extend(f"{name}: build.{field} is not converted" for field in sorted(given.keys() - _BUILD_KNOWN))
    return ImageBuild(
        name=name,
        folder=where,
        file=where / str(given["dockerfile"]) if given.get("dockerfile") else None,
        arguments=pairs_with_values(given.get("args") or {}, "build arguments", environment),
        target=str(given.get("target") or ""),
    )


def pairs_with_values(given: object, what: str, outside: Mapping[str, str]) -> dict[str, str]:
    """Names with values; one without a value has that of the environment outside, or is left out."""
    if not isinstance(given, (dict, list)):
        raise InvalidValue(text=str(given), expected=f"a mapping or a list of {what}, as in [VERSION=1]")
    if isinstance(given, dict):
        pairs = {str(key): None if value is None else _text(value) for key, value in given.items()}
    else:
        pairs = {key: value if sign else None for key, sign, value in (str(one).partition("=") for one in given)}
    found = {key: outside.get(key) if value is None else value for key, value in pairs.items()}
    return {key: value for key, value in found.items() if value is not None}


def _words(command: object) -> list[str]:
    return [str(one) for one in command] if isinstance(command, list) else shlex.split(str(command))


def _environment(variables: Mapping[str, str], name: str, notes: list[str]) -> list[Object]:
    if "PORT" in variables:
        notes.append(f"{name}: PORT is left out: each pod gets its own")
    return [{"name": key, "value": value} for key, value in variables.items() if key != "PORT"]


def _text(value: object) -> str:
    """A scalar of YAML as compose passes it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _port(port: object) -> int:
    """The container's port of "8080:80/tcp", "127.0.0.1:8080:80", 80 or {target: 80}."""
    text = str(port["target"]) if isinstance(port, dict) and "target" in port else str(port)
    number = text.rpartition(":")[2].partition("/")[0]
    if not number.isdecimal():
        raise InvalidValue(text=text, expected="one port, as 80, 8080:80 or target: 80")
    return int(number)


def _limits(limits: Mapping[str, object]) -> dict[str, str]:
    """Convert compose's limits to Kubernetes quantities: cpus "0.5", memory "512M", "1g" or "64kb", in powers of 1024."""
    found = {}
    if limits.get("cpus"):
        found["cpu"] = str(limits["cpus"])
    if limits.get("memory"):
        text = str(limits["memory"]).lower().removesuffix("b")
        found["memory"] = f"{text[:-1]}{text[-1].upper()}i" if text[-1:] in {"k", "m", "g"} else text
    return found
