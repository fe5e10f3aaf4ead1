"""Services of a compose file as Knative Services. Pure.

Follows the Compose Specification. A service takes HTTP requests on its first port; what has no equal is named in a note.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from serving.cli.services.converted import Converted
from serving.model.errors import InvalidValue
from serving.model.knative import SERVING_API_VERSION
from serving.model.objects import Object, nested

# What a system of services does anyway, or what names nothing that runs.
_SILENT = frozenset(
    {"restart", "container_name", "networks", "init", "stdin_open", "tty", "expose", "depends_on", "labels"}
)
_KNOWN = frozenset({"image", "build", "command", "entrypoint", "environment", "ports", "working_dir", "deploy"})


def is_compose(document: object) -> bool:
    """Whether a document is a compose file: it has services and no kind."""
    return isinstance(document, dict) and "kind" not in document and isinstance(document.get("services"), dict)


def from_compose(document: Mapping[str, Any]) -> Converted:
    """A Knative Service for each service. Raises ``InvalidValue`` for one that is no mapping."""
    found = Converted()
    for name, service in document["services"].items():
        if not isinstance(service, dict):
            raise InvalidValue(text=f"services.{name}", expected="a mapping, as the Compose Specification has it")
        found.manifests.append(_service(str(name).replace("_", "-").lower(), service, found.notes))
    for section in ("volumes", "secrets", "configs"):
        if document.get(section):
            found.notes.append(f"{section}: not converted; mount ConfigMaps, Secrets or emptyDir volumes instead")
    return found


def _service(name: str, service: Mapping[str, Any], notes: list[str]) -> Object:
    container: Object = {"image": service.get("image") or name}
    if "build" in service:
        notes.append(f"{name}: build is not converted; `serving deploy {name} FOLDER` deploys a folder")
    for field, key in (("entrypoint", "command"), ("command", "args")):
        if service.get(field):
            container[key] = _words(service[field])
    if service.get("working_dir"):
        container["workingDir"] = service["working_dir"]
    environment = _environment(service.get("environment") or {}, name, notes)
    if environment:
        container["env"] = environment
    ports = [_port(one) for one in service.get("ports") or ()]
    if ports:
        container["ports"] = [{"containerPort": ports[0]}]
        notes.extend(f"{name}: port {port} is left out: a service has one" for port in ports[1:])
    elif not service.get("expose"):
        notes.append(f"{name}: it publishes no port; a service must listen on $PORT for HTTP requests")
    limits = _limits(nested(service, "deploy", "resources", "limits") or {})
    if limits:
        container["resources"] = {"limits": limits}
    notes.extend(f"{name}: {field} is not converted" for field in sorted(set(service) - _KNOWN - _SILENT))
    return {
        "apiVersion": SERVING_API_VERSION,
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def _words(command: object) -> list[str]:
    return [str(one) for one in command] if isinstance(command, list) else shlex.split(str(command))


def _environment(given: Mapping[str, object] | Sequence[str], name: str, notes: list[str]) -> list[Object]:
    pairs = (
        given.items()
        if isinstance(given, Mapping)
        else ((key, value) for key, _, value in (one.partition("=") for one in given))
    )
    found: list[Object] = []
    for key, value in pairs:
        if key == "PORT":
            notes.append(f"{name}: PORT is left out: each pod gets its own")
        else:
            text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
            found.append({"name": key, "value": text})
    return found


def _port(port: object) -> int:
    """The container's port of "8080:80/tcp", "127.0.0.1:8080:80", 80 or {target: 80}."""
    text = str(port["target"]) if isinstance(port, dict) and "target" in port else str(port)
    number = text.rpartition(":")[2].partition("/")[0]
    if not number.isdecimal():
        raise InvalidValue(text=text, expected="one port, as 80, 8080:80 or target: 80")
    return int(number)


def _limits(limits: Mapping[str, object]) -> dict[str, str]:
    """Kubernetes quantities of compose's: cpus "0.5", memory "512M", "1g" or "64kb", which are powers of 1024."""
    found = {}
    if limits.get("cpus"):
        found["cpu"] = str(limits["cpus"])
    if limits.get("memory"):
        text = str(limits["memory"]).lower().removesuffix("b")
        found["memory"] = f"{text[:-1]}{text[-1].upper()}i" if text[-1:] in {"k", "m", "g"} else text
    return found
