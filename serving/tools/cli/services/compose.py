"""Converts compose files: a Knative Service for each service, and the images to build. Pure.

Follows the Compose Specification (github.com/compose-spec/compose-spec): the parts ``build``, ``ports``, ``expose``,
``environment``, ``command``, ``entrypoint``, ``working_dir``, ``profiles`` and the limits of ``deploy``. Each other
field is a note. A program without HTTP, known by its image or its ports, becomes a service of TCP connections with one
pod.
"""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import AUTOSCALING_GROUP, NAMED_PORT_ANNOTATION, SERVING_API_VERSION, TCP_ANNOTATION
from serving.core.model.objects import Object, is_dns_label, name_of, nested
from serving.core.model.ports import PORT_MAX
from serving.core.model.quantity import parse_quantity
from serving.core.model.unread import Fields, unread
from serving.home.images.store import ImageBuild

# The converted fields of a service, and fields without an effect; every other field becomes a note.
_READ: Fields = {
    **dict.fromkeys(("args", "build", "command", "entrypoint", "environment", "expose", "image", "ports", "profiles")),
    **dict.fromkeys(("restart", "volumes", "working_dir")),
    "deploy": {"resources": {"limits": {"cpus": None, "memory": None}}},
}
_OF_FILE: Fields = dict.fromkeys(("configs", "name", "secrets", "services", "version", "volumes"))
# Replacements for some fields.
_REASONS = {
    "container_name": "each pod has a generated name",
    "depends_on": "a request waits until the service that it calls is ready",
    "deploy.replicas": "requests decide; `serving scale NAME COUNT` fixes the number of pods",
    "deploy.restart_policy": "a container that ends is restarted",
    "extends": "write the fields of the other service into this one",
    "healthcheck": "pods are ready when their port is open; write a readinessProbe",
    "include": "give the other file as one more argument",
    "labels": "put rules for hosts into a DomainMapping",
    "networks": "services of a namespace reach each other",
    "scale": "requests decide; `serving scale NAME COUNT` fixes the number of pods",
}
# The types of the converted fields, in the order in which they are checked.
_TYPES: Final[Mapping[tuple[str, ...], tuple[type, ...]]] = {
    **dict.fromkeys((("image",), ("working_dir",)), (str,)),
    **dict.fromkeys((("command",), ("entrypoint",)), (str, list)),
    **dict.fromkeys((("ports",), ("expose",), ("volumes",)), (list,)),
    **dict.fromkeys((("deploy",), ("deploy", "resources"), ("deploy", "resources", "limits")), (dict,)),
}
_TYPE_NAMES: Final[Mapping[type, str]] = {str: "a text", list: "a list", dict: "a mapping"}
_RESTARTED = frozenset({"always", "on-failure", "unless-stopped"})
_ALL_PROFILES = "*"
# A TCP connection counts as a request, and no service keeps a request for longer.
_CONNECTION_MAX_S = 3600
_CLAIM_SIZE, _CLAIM_KIND = "1Gi", "PersistentVolumeClaim"
_PORT_DIGITS_MAX = 5
# A named volume in place of a folder of the machine.
_VOLUME = re.compile(r"[A-Za-z0-9][\w.-]*:/")
_OF_VOLUME: Fields = {**dict.fromkeys(("type", "source", "target", "read_only")), "volume": {}, "bind": {}, "tmpfs": {}}
# "" of a volume without options; "rw" is the default.
_MOUNT_OPTIONS = frozenset({"", "ro", "rw"})
_BUILD_KNOWN = frozenset({"context", "dockerfile", "args", "target"})
# Keys that change the content of the image.
_BUILD_REFUSED = frozenset({"dockerfile_inline", "additional_contexts", "secrets", "ssh"})
# Sections of a file without an equivalent, and advice for each.
_INSTEAD = {
    "volumes": "`serving volume create NAME` makes one, and `serving update SERVICE --volume NAME:/PATH` mounts it",
    "secrets": "make a Secret, and mount it as a volume",
    "configs": "make a ConfigMap, and mount it as a volume",
}


# "server" alone identifies no program.
_SERVER_FOLDERS: Final = ("mssql",)
# Ports without plain HTTP: names from /etc/services, and ports of databases and brokers.
PORTS_WITHOUT_HTTP: Final = frozenset(
    {
        *(21, 22, 23, 25, 53, 110, 123, 143, 161, 162, 179, 389, 443, 445, 465, 514, 587, 636, 853, 873, 990, 993, 995),
        *(1025, 1194, 1433, 1521, 1883, 2049, 2181, 2379, 2380, 3260, 3306, 3389, 4222, 5044, 5060, 5061, 5222, 5269),
        *(5432, 5433, 5671, 5672, 5900, 6379, 6380, 6443, 6667, 7000, 7687, 8443, 8883, 9042, 9092, 9093, 9094, 9300),
        *(11211, 11212, 26257, 26379, 27017, 27018, 27019, 33060, 61613, 61616),
    }
)


class KnownServer(msgspec.Struct, frozen=True):
    """A well-known program that serves TCP connections. ``data`` is its data folder, "" if it has none."""

    port: int
    data: str = ""


_POSTGRES: Final = KnownServer(5432, "/var/lib/postgresql/data")
_MYSQL: Final = KnownServer(3306, "/var/lib/mysql")
_REDIS: Final = KnownServer(6379, "/data")
_KAFKA: Final = KnownServer(9092, "/var/lib/kafka/data")
_BY_IMAGE: Final[Mapping[str, KnownServer]] = {
    **dict.fromkeys(("pgvector", "postgis", "postgres", "postgresql", "timescaledb", "timescaledb-ha"), _POSTGRES),
    **dict.fromkeys(("mariadb", "mysql", "mysql-server", "percona", "percona-server"), _MYSQL),
    **dict.fromkeys(
        ("dragonfly", "keydb", "redis", "redis-stack", "redis-stack-server", "valkey", "valkey-bundle"), _REDIS
    ),
    **dict.fromkeys(("cp-kafka", "kafka", "kafka-native", "redpanda"), _KAFKA),
    **dict.fromkeys(("cassandra", "scylla"), KnownServer(9042, "/var/lib/cassandra")),
    **dict.fromkeys(
        ("mongo", "mongodb", "mongodb-community-server", "percona-server-mongodb"), KnownServer(27017, "/data/db")
    ),
    **dict.fromkeys(("cp-zookeeper", "zookeeper"), KnownServer(2181, "/data")),
    **dict.fromkeys(("eclipse-mosquitto", "mosquitto"), KnownServer(1883, "/mosquitto/data")),
    **dict.fromkeys(("pgbouncer", "pgcat", "pgpool"), KnownServer(5432)),
    **dict.fromkeys(("activemq-artemis", "artemis"), KnownServer(61616)),
    "cockroach": KnownServer(26257, "/cockroach/cockroach-data"),
    "emqx": KnownServer(1883, "/opt/emqx/data"),
    "etcd": KnownServer(2379),
    "ferretdb": KnownServer(27017),
    "memcached": KnownServer(11211),
    "nats": KnownServer(4222),
    "neo4j": KnownServer(7687, "/data"),
    "openldap": KnownServer(389, "/var/lib/ldap"),
    "rabbitmq": KnownServer(5672, "/var/lib/rabbitmq"),
    "sftp": KnownServer(22),
    "server": KnownServer(1433, "/var/opt/mssql"),
}


def known_server(image: str) -> KnownServer | None:
    """The known program in an image such as "docker.io/library/postgres:16" or "bitnami/redis"; None for others."""
    path = image.partition("@")[0]
    folder, _, name = path.rpartition("/")
    name = name.partition(":")[0].lower()
    if name == "server" and not folder.endswith(_SERVER_FOLDERS):
        return None
    return _BY_IMAGE.get(name)


class Converted(msgspec.Struct, kw_only=True):
    """The manifests, a note for each part without an equivalent, and the images to build, with their containers."""

    manifests: list[Object] = []
    notes: list[str] = []
    builds: list[tuple[ImageBuild, Object]] = []


def is_compose(document: object) -> bool:
    """Whether a document is a compose file: it has services, and no kind."""
    return isinstance(document, dict) and "kind" not in document and isinstance(document.get("services"), dict)


def from_compose(
    document: Mapping[str, Any], *, folder: Path, environment: Mapping[str, str], profiles: Collection[str] = ()
) -> Converted:
    """A Knative Service for each service of an active profile.

    ``folder`` is the folder of the compose file. ``environment`` supplies values for variables and build arguments that
    have none.

    Raises:
        InvalidValue: for a part that cannot be converted.
    """
    converted, labels = Converted(), dict[str, object]()
    for name, service in document["services"].items():
        if not isinstance(service, dict):
            raise InvalidValue(text=f"services.{name}", expected="a mapping, as the Compose Specification has it")
        _check_types(str(name), service)
        reason = _omission(name, service, profiles)
        if reason:
            converted.notes.append(f"{name}: not converted: {reason}")
            continue
        label = _label(name)
        if label in labels:
            raise InvalidValue(text=str(name), expected=f"a unique name: {labels[label]} becomes {label}, too")
        labels[label] = name
        if label != name:
            converted.notes.append(f"{name}: renamed to {label}; other services must use this name, too")
        manifests, container = _service(label, service, converted.notes, outside=environment)
        converted.manifests += manifests
        if service.get("build"):
            build = _build(label, service["build"], converted.notes, folder=folder, environment=environment)
            converted.builds.append((build, container))
    claims = {name_of(manifest) for manifest in converted.manifests if manifest["kind"] == _CLAIM_KIND}
    for section, instead in _INSTEAD.items():
        names = document.get(section) or {}
        listed = names if isinstance(names, dict | list) else [names]
        rest = [str(name) for name in listed if section != "volumes" or _name(name) not in claims]
        if rest:
            converted.notes.append(f"{section} {', '.join(rest)}: not converted; {instead}")
        if section == "volumes" and isinstance(names, dict):
            mounted: Object = {name: value for name, value in names.items() if name not in rest}
            fields = (f"{section}.{field}" for field in unread(mounted, {name: {} for name in mounted}))
            converted.notes += [_unread_note(field) for field in fields]
    converted.notes += [_unread_note(field) for field in unread(document, _OF_FILE)]
    return converted


def _omission(name: object, service: Mapping[str, Any], profiles: Collection[str]) -> str:
    """Why a service has no manifest; "" if it has one."""
    own = _profiles(name, service.get("profiles"))
    if own and _ALL_PROFILES not in profiles and own.isdisjoint(profiles):
        return f"no profile of it is chosen; --profile {min(own)} does"
    return "a program of docker compose provides it" if service.get("provider") else ""


def _profiles(name: object, profiles: object) -> frozenset[str]:
    if profiles is not None and not isinstance(profiles, list):
        raise InvalidValue(text=str(profiles), expected=f"a list of names as services.{name}.profiles")
    return frozenset(map(str, profiles or ()))


def _unread_note(field: str, owner: str = "") -> str:
    reason = _REASONS.get(field, "")
    return f"{owner}{': ' if owner else ''}{field} is not converted{f': {reason}' if reason else ''}"


def _name(name: object) -> str:
    return str(name).replace("_", "-").lower()


def _label(name: object) -> str:
    """A service's name with the characters that Kubernetes allows. Raises ``InvalidValue`` if it is still invalid."""
    label = _name(name).replace(".", "-").strip("-")
    if not is_dns_label(label) or label[0].isdigit():
        raise InvalidValue(
            text=str(name), expected="a name here: at most 63 of a-z, 0-9 and '-', beginning with a letter"
        )
    return label


def _check_types(name: str, service: Mapping[str, Any]) -> None:
    for path, types in _TYPES.items():
        value = nested(service, *path)
        if value is not None and not isinstance(value, types):
            expected = " or ".join(_TYPE_NAMES[kind] for kind in types)
            raise InvalidValue(text=f"services.{name}.{'.'.join(path)}", expected=f"{expected}: it is {value!r}")


class _Port(msgspec.Struct, frozen=True):
    """A port of a container; ``is_udp``: it receives datagrams. ``published`` is the port of the machine, "" if none."""

    number: int
    is_udp: bool
    published: str = ""


def _service(
    name: str, service: Mapping[str, Any], notes: list[str], *, outside: Mapping[str, str]
) -> tuple[list[Object], Object]:
    """The manifests of a service, and its container."""
    if not (service.get("image") or service.get("build")):
        from_other = "; write the fields of the service that it extends into it" if service.get("extends") else ""
        raise InvalidValue(text=f"services.{name}", expected=f"a service with image or build{from_other}")
    container: Object = {"image": service.get("image") or name}
    for field, key in (("entrypoint", "command"), ("command", "args")):
        if service.get(field):
            container[key] = _words(service[field], f"services.{name}.{field}")
    if service.get("working_dir"):
        container["workingDir"] = service["working_dir"]
    variables = service.get("environment") or {}
    values = pairs_with_values(variables, "variables", outside)
    unset = [str(key) for key in variables if "=" not in str(key) and str(key) not in values]
    notes.extend(f"{name}: variable {key} is left out: it has no value here" for key in unset)
    environment = _environment(values, name, notes)
    if environment:
        container["env"] = environment
    limits = _limits(nested(service, "deploy", "resources", "limits") or {}, f"services.{name}.deploy.resources.limits")
    if limits:
        container["resources"] = {"limits": limits}
    notes.extend(_unread_note(field, name) for field in sorted(set(unread(service, _READ))))
    if service.get("restart") not in (None, *_RESTARTED):
        notes.append(f"{name}: restart {service['restart']} is not converted: a container that ends is restarted")
    port, is_http = _serving_port(name, service, notes)
    if port:
        container["ports"] = [{"containerPort": port}]
    annotations = {NAMED_PORT_ANNOTATION: str(port)} if port else {}
    if port and not is_http:
        return _tcp_manifests(name, service, container, port=port, notes=notes), container
    notes.extend(f"{name}: volumes {volume} is not converted" for volume in _volumes(service))
    spec: Object = {"template": {"spec": {"containers": [container]}}}
    return [_manifest(name, annotations, spec)], container


def _manifest(name: str, annotations: Mapping[str, str], spec: Object) -> Object:
    metadata = {"name": name, **({"annotations": dict(annotations)} if annotations else {})}
    return {"apiVersion": SERVING_API_VERSION, "kind": "Service", "metadata": metadata, "spec": spec}


def _serving_port(name: str, service: Mapping[str, Any], notes: list[str]) -> tuple[int, bool]:
    """The port for requests (0 if there is none), and whether requests are HTTP. Other ports are added to ``notes``."""
    entries = service.get("ports") or service.get("expose") or ()
    ports = [port for entry in entries for port in _ports(name, entry)]
    streams = list(dict.fromkeys(port.number for port in ports if not port.is_udp))
    server = known_server(str(service.get("image") or ""))
    pages = [number for number in streams if number not in PORTS_WITHOUT_HTTP]
    if server is not None:
        chosen, is_http = (server.port if server.port in streams or not streams else streams[0]), False
    elif pages or not streams:
        chosen, is_http = (pages[0] if pages else 0), True
    else:
        chosen, is_http = streams[0], False
    notes.extend(
        f"{name}: port {port.number}/udp is left out: services do not support UDP" for port in ports if port.is_udp
    )
    notes.extend(f"{name}: port {number} is left out: a service has one" for number in streams if number != chosen)
    published = next((port.published for port in ports if port.number == chosen and port.published), "")
    if published and is_http and published != str(chosen):
        notes.append(
            f"{name}: port {published} of the machine is not opened: `serving url {name}` prints where it answers"
        )
    if published and not is_http and published != str(chosen):
        notes.append(f"{name}: port {published} of the machine is not opened: it answers at {chosen}")
    if not chosen:
        notes.append(f"{name}: it publishes no port; a service must listen on $PORT for HTTP requests")
    return chosen, is_http


def _tcp_manifests(
    name: str, service: Mapping[str, Any], container: Object, *, port: int, notes: list[str]
) -> list[Object]:
    """The manifests of a service with one pod that serves TCP connections: the claims of its volumes, then the service."""
    server = known_server(str(service.get("image") or ""))
    named = [volume for volume in _volumes(service) if _VOLUME.match(volume)]
    notes.extend(f"{name}: volumes {volume} is not converted" for volume in _volumes(service) if volume not in named)
    notes.extend(f"{name}: {lost} is not converted" for volume in named for lost in _lost_options(volume))
    mounts = {_name(source): path for source, _, path in (volume.partition(":") for volume in named)}
    if not mounts and server is not None and server.data:
        mounts = {f"{name}-data": server.data}
    pod: Object = {"containers": [container], "timeoutSeconds": _CONNECTION_MAX_S}
    if mounts:
        container["volumeMounts"] = [_mount(claim, path) for claim, path in mounts.items()]
        pod["volumes"] = [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in mounts]
    storage = f", with its data in the volume {', '.join(mounts)} of {_CLAIM_SIZE}" if mounts else ", without a volume"
    notes.append(
        f"{name}: not HTTP: it takes TCP connections at port {port}, each for an hour at most, in one pod that stays{storage}"
    )
    scaling = {f"{AUTOSCALING_GROUP}/{bound}": "1" for bound in ("min-scale", "max-scale")}
    annotations = {TCP_ANNOTATION: str(port), NAMED_PORT_ANNOTATION: str(port)}
    spec: Object = {"template": {"metadata": {"annotations": scaling}, "spec": pod}}
    return [*(_claim(claim) for claim in mounts), _manifest(name, annotations, spec)]


def _lost_options(volume: str) -> Iterator[str]:
    """The options of a volume in the short form that its mount does not have."""
    source, path, *options = volume.split(":", 2)
    for option in ",".join(options).split(","):
        if option not in _MOUNT_OPTIONS:
            yield f"option {option} of volumes {source}:{path}"


def _mount(claim: str, target: str) -> Object:
    """The mount of a claim at "/path" or "/path:ro"."""
    path, _, options = target.partition(":")
    return {"name": claim, "mountPath": path, **({"readOnly": True} if "ro" in options.split(",") else {})}


def _claim(name: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": _CLAIM_SIZE}}}
    return {"apiVersion": "v1", "kind": _CLAIM_KIND, "metadata": {"name": name}, "spec": spec}


def _volumes(service: Mapping[str, Any]) -> list[str]:
    """The volumes of a service in the short form "source:path" or "source:path:ro"."""
    volumes = []
    for volume in service.get("volumes") or ():
        if isinstance(volume, dict):
            options = ["ro"] if volume.get("read_only") else []
            options += unread(volume, _OF_VOLUME)
            named = f"{volume.get('source', '')}:{volume.get('target', '')}"
            volumes.append(":".join([named, *filter(None, [",".join(options)])]))
        else:
            volumes.append(str(volume))
    return volumes


def _build(name: str, build: object, notes: list[str], *, folder: Path, environment: Mapping[str, str]) -> ImageBuild:
    options = {"context": build} if isinstance(build, str) else build
    if not isinstance(options, dict):
        raise InvalidValue(text=f"services.{name}.build", expected="a folder, or a mapping with context")
    refused = sorted(_BUILD_REFUSED & options.keys())
    if refused:
        expected = "convertible; put what it says into the Containerfile"
        raise InvalidValue(text=f"services.{name}.build.{refused[0]}", expected=expected)
    context = str(options.get("context") or ".")
    if "://" in context or context.startswith("git@"):
        raise InvalidValue(text=context, expected=f"a folder as the build context of {name}; clone it first")
    where = folder / context
    notes.extend(f"{name}: build.{field} is not converted" for field in sorted(options.keys() - _BUILD_KNOWN))
    return ImageBuild(
        name=name,
        folder=where,
        file=where / str(options["dockerfile"]) if options.get("dockerfile") else None,
        arguments=pairs_with_values(options.get("args") or {}, "build arguments", environment),
        target=str(options.get("target") or ""),
    )


def pairs_with_values(source: object, what: str, outside: Mapping[str, str]) -> dict[str, str]:
    """Parse a mapping, or a list of NAME=VALUE. A name without a value gets that of ``outside``, or is left out."""
    if not isinstance(source, (dict, list)):
        raise InvalidValue(text=str(source), expected=f"a mapping or a list of {what}, as in [VERSION=1]")
    for entry in source.values() if isinstance(source, dict) else source:
        if isinstance(entry, dict | list):
            raise InvalidValue(text=str(entry), expected=f"a text among the {what}; a list has NAME=VALUE")
    if isinstance(source, dict):
        pairs = {str(key): None if value is None else _text(value) for key, value in source.items()}
    else:
        pairs = {key: value if sign else None for key, sign, value in (str(pair).partition("=") for pair in source)}
    values = {key: outside.get(key) if value is None else value for key, value in pairs.items()}
    return {key: value for key, value in values.items() if value is not None}


def _words(command: object, where: str) -> list[str]:
    if isinstance(command, list):
        for word in command:
            if word is None or isinstance(word, dict | list):
                raise InvalidValue(text=where, expected=f"a list of texts: {word!r} is in it")
        return [_text(word) for word in command]
    try:
        return shlex.split(str(command))
    except ValueError as error:
        raise InvalidValue(text=where, expected=f"a command as in a shell ({str(error).lower()})") from None


def _environment(variables: Mapping[str, str], name: str, notes: list[str]) -> list[Object]:
    if "PORT" in variables:
        notes.append(f"{name}: PORT is left out: each pod gets its own")
    return [{"name": key, "value": value} for key, value in variables.items() if key != "PORT"]


def _text(value: object) -> str:
    """Convert a YAML scalar to the text that compose passes to a container."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ports(name: str, port: object) -> list[_Port]:
    """The container's ports in compose's forms.

    The forms are "8080:80/tcp", "127.0.0.1:8080:80", "8000-8003", 80, and {target: 80, published: 8080, protocol: udp}.
    """
    is_long = isinstance(port, dict) and "target" in port
    fields: Mapping[str, Any] = port if isinstance(port, dict) and is_long else {}
    text = str(fields["target"]) if is_long else str(port)
    outside, _, inside = text.rpartition(":")
    range_text, _, protocol = inside.partition("/")
    numbers = _range(range_text)
    if not numbers:
        raise InvalidValue(text=text, expected=f"a port of {name}, as 80, 8080:80, 8000-8003 or target: 80")
    published = str(fields.get("published") or "") if is_long else outside.rpartition(":")[2]
    # Ranges of equal length form pairs; otherwise the command uses one port.
    pairs = _range(published) if len(_range(published)) == len(numbers) else (published,) * len(numbers)
    is_udp = (protocol or fields.get("protocol")) == "udp"
    return [_Port(number, is_udp=is_udp, published=str(outer)) for number, outer in zip(numbers, pairs, strict=True)]


def _range(text: str) -> range:
    """The ports in "80" or "8000-8003"; empty for other text."""
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > _PORT_DIGITS_MAX:
        return range(0)
    ports = range(int(first), int(last or first) + 1)
    return ports if ports and 0 < ports[0] <= ports[-1] <= PORT_MAX else range(0)


def _limits(limits: Mapping[str, object], where: str) -> dict[str, str]:
    """Convert compose's limits to Kubernetes quantities: cpus "0.5"; memory "512M" or "64kb" (powers of 1024).

    ``where`` is their position for errors. Raises ``InvalidValue``.
    """
    quantities = {}
    if limits.get("cpus"):
        quantities["cpu"] = _quantity(str(limits["cpus"]), f"{where}.cpus", "a number of cores, as 0.5")
    if limits.get("memory"):
        text = str(limits["memory"]).lower().removesuffix("b")
        written = f"{text[:-1]}{text[-1].upper()}i" if text[-1:] in {"k", "m", "g"} else text
        quantities["memory"] = _quantity(written, f"{where}.memory", "a size, as 512M or 64kb")
    return quantities


def _quantity(text: str, where: str, expected: str) -> str:
    try:
        parse_quantity(text)
    except InvalidValue:
        raise InvalidValue(text=where, expected=expected) from None
    return text
