"""Rules on the pods of a Service, Configuration or Revision, as CEL and in Python.

``rules.py`` says how the two belong together. Messages and limits are Knative's (pkg/apis/serving, k8s_validation.go and revision_validation.go), but for
the longest timeout, which is Cloud Run's: Knative leaves it to a setting.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serving.cluster.kinds import CONFIGURATION, REVISION, SERVING_SERVICE, Kind
from serving.model.errors import Problem

__all__ = ["CONCURRENCY_MAX", "POD_RULES", "RESERVED_PORTS", "TIMEOUT_MAX_S"]

# Knative's container-concurrency-max-limit.
CONCURRENCY_MAX = 1000
# Knative's max-revision-timeout-seconds is 600 by default; Cloud Run's manifests have up to an hour.
TIMEOUT_MAX_S = 3600
# Knative's default revision-timeout-seconds, for the bound of the other two timeouts.
_TIMEOUT_DEFAULT_S = 300
RESERVED_PORTS = (8012, 8013, 8022, 8112, 9090, 9091)
_RESERVED_ENVIRONMENT = ("K_CONFIGURATION", "K_REVISION", "K_SERVICE", "PORT")
_PORT_NAMES = ("", "h2c", "http1")
_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_SOURCES = (
    "configMap",
    "csi",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "nfs",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
_REFUSED = ("hostIPC", "hostNetwork", "hostPID")
_RESERVED_PATHS = ("/", "/dev", "/dev/log", "/var", "/var/log")

# JSON values come as they are.
# ruff: noqa: ANN401


def _missing(where: str, expected: str) -> Problem:
    return Problem(where=where, what="missing field(s)", expected=expected)


def _refused(where: str, expected: str) -> Problem:
    return Problem(where=where, what="must not set the field(s)", expected=expected)


def _outside(where: str, value: int, *, low: int, high: int) -> Iterator[Problem]:
    if not low <= value <= high:
        yield Problem(where=where, what=f"expected {low} <= {value} <= {high}", expected=f"{low} to {high}")


def _twice(items: Iterable[Any]) -> set[Any]:
    return {item for item, count in Counter(items).items() if count > 1}


def _has_containers(self: Any, _: Any, __: str) -> Iterator[Problem]:
    yield from _containers_below(self, "spec.template.spec")


def _revision_has_containers(self: Any, _: Any, __: str) -> Iterator[Problem]:
    yield from _containers_below(self, "spec")


def _containers_below(whole: Any, path: str) -> Iterator[Problem]:
    pod = whole
    for key in path.split("."):
        pod = pod.get(key, {})
    if not pod.get("containers"):
        yield _missing(f"{path}.containers", "at least one container")


def _one_serves(self: Any, _: Any, path: str) -> Iterator[Problem]:
    containers = self.get("containers", ())
    serving = sum(bool(one.get("ports")) for one in containers)
    if len(containers) > 1 and serving == 0:
        yield _missing(f"{path}.containers.ports", "ports on the container that serves, and on no other")
    if len(containers) > 1 and serving > 1:
        what = "expected exactly one, got both"
        yield Problem(where=f"{path}.containers.ports", what=what, expected="ports on one container only")


def _names_differ(self: Any, _: Any, path: str) -> Iterator[Problem]:
    names = [one.get("name", "") for one in self]
    for name in sorted(_twice(name for name in names if name)):
        where = ", ".join(f"{path}[{index}].name" for index, one in enumerate(names) if one == name)
        yield Problem(where=where, what=f'duplicate container name "{name}"', expected="each name once")


def _has_image(self: Any, _: Any, path: str) -> Iterator[Problem]:
    if not self.get("image"):
        yield _missing(f"{path}.image", "the name of an image, also where a command says what is run")


def _one_port(self: Any, _: Any, path: str) -> Iterator[Problem]:
    if len(self.get("ports", ())) > 1:
        yield Problem(
            where=f"{path}.ports",
            what="More than one container port is set",
            expected="a single port across all containers",
        )


def _port_is_usable(self: Any, _: Any, path: str) -> Iterator[Problem]:
    port = self.get("containerPort", 1)
    yield from _outside(f"{path}.containerPort", port, low=1, high=65535)
    if port in RESERVED_PORTS:
        what = f"invalid value: {port} is a reserved port"
        reserved = ", ".join(map(str, RESERVED_PORTS))
        yield Problem(where=f"{path}.containerPort", what=what, expected=f"another port than {reserved}")
    if self.get("name", "") not in _PORT_NAMES:
        what = f"Port name {self['name']} is not allowed"
        yield Problem(where=f"{path}.name", what=what, expected="no name, or one of: 'h2c', 'http1'")
    if self.get("protocol", "TCP") != "TCP":
        yield Problem(where=f"{path}.protocol", what=f"invalid value: {self['protocol']}", expected="TCP")


def _variable_is_free(self: Any, _: Any, path: str) -> Iterator[Problem]:
    name = self.get("name", "")
    if not name:
        yield _missing(f"{path}.name", "a name")
    if name in _RESERVED_ENVIRONMENT:
        what = f'"{name}" is a reserved environment variable'
        yield Problem(where=f"{path}.name", what=what, expected="another name; it is set for you")


def _one_handler(self: Any, _: Any, path: str) -> Iterator[Problem]:
    for probe in _PROBES:
        given = [handler for handler in _HANDLERS if handler in self.get(probe, {})]
        if len(given) > 1:
            where = ", ".join(f"{path}.{probe}.{handler}" for handler in given)
            yield Problem(where=where, what="expected exactly one, got both", expected="one way to probe")


def _mounts_differ(self: Any, _: Any, path: str) -> Iterator[Problem]:
    mounts = self.get("volumeMounts", ())
    again = _twice(mount["mountPath"] for mount in mounts)
    for index, mount in enumerate(mounts):
        where, place = f"{path}.volumeMounts[{index}].mountPath", mount["mountPath"]
        if place in again:
            yield Problem(where=where, what=f'invalid value: "{place}" must be unique', expected="each path once")
        if not place.startswith("/"):
            yield Problem(where=where, what=f"invalid value: {place}", expected="a path that begins with /")
        if place in _RESERVED_PATHS:
            what = f'mountPath "{place}" is a reserved path'
            yield Problem(where=where, what=what, expected=f"another path than {', '.join(_RESERVED_PATHS)}")


def _volumes_belong(self: Any, _: Any, path: str) -> Iterator[Problem]:
    volumes = [volume.get("name", "") for volume in self.get("volumes", ())]
    mounted: set[str] = set()
    for number, container in enumerate(self.get("containers", ())):
        for index, mount in enumerate(container.get("volumeMounts", ())):
            mounted.add(mount["name"])
            if mount["name"] not in volumes:
                where = f"{path}.containers[{number}].volumeMounts[{index}].name"
                what = "volumeMount has no matching volume"
                yield Problem(where=where, what=what, expected=f"a volume named {mount['name']}")
    for index, name in enumerate(volumes):
        where = f"{path}.volumes[{index}].name"
        if name in _twice(volumes):
            yield Problem(where=where, what=f'duplicate volume name "{name}"', expected="each name once")
        # What containers that run before mount is not looked at.
        if name not in mounted and not self.get("initContainers"):
            yield Problem(where=where, what=f'volume with name "{name}" not mounted', expected="a mount, or no volume")


def _one_source(self: Any, _: Any, path: str) -> Iterator[Problem]:
    given = [source for source in _SOURCES if source in self]
    if len(given) != 1:
        what = f"expected exactly one, got {'both' if given else 'neither'}"
        where = ", ".join(f"{path}.{source}" for source in given or ("configMap", "emptyDir", "projected", "secret"))
        yield Problem(where=where, what=what, expected="one source")


def _host_is_left_alone(self: Any, _: Any, path: str) -> Iterator[Problem]:
    for field in _REFUSED:
        if self.get(field):
            yield _refused(f"{path}.{field}", "a pod with its own network and processes")


def _limits_hold(self: Any, _: Any, path: str) -> Iterator[Problem]:
    timeout_s = self.get("timeoutSeconds", _TIMEOUT_DEFAULT_S)
    yield from _outside(
        f"{path}.containerConcurrency", self.get("containerConcurrency", 0), low=0, high=CONCURRENCY_MAX
    )
    yield from _outside(f"{path}.timeoutSeconds", timeout_s, low=0, high=TIMEOUT_MAX_S)
    for field in ("responseStartTimeoutSeconds", "idleTimeoutSeconds"):
        yield from _outside(f"{path}.{field}", self.get(field, 0), low=0, high=timeout_s)


Row = tuple[str, tuple[Kind, ...], str, str, str, Callable[[Any, Any, str], Iterator[Problem]]]


def _rows(
    name: str, at: str, *, cel: str, message: str, check: Callable[[Any, Any, str], Iterator[Problem]]
) -> list[Row]:
    """The same rule below a template and in a revision. ``at`` begins below the spec of the pods."""
    templated = f"spec.template.spec.{at}".removesuffix(".")
    return [
        (name, (SERVING_SERVICE, CONFIGURATION), templated, cel, message, check),
        (name, (REVISION,), f"spec.{at}".removesuffix("."), cel, message, check),
    ]


def _cel_list(texts: Iterable[str | int]) -> str:
    return "[" + ", ".join(repr(text) for text in texts) + "]"


def _cel_within(field: str, high: str) -> str:
    return f"(!has(self.{field}) || (self.{field} >= 0 && self.{field} <= {high}))"


def _cel_needs(path: str) -> str:
    """That every step of a path is there, and a list with something in it at its end."""
    steps = path.split(".")
    return " && ".join([*(f"has({'.'.join(steps[: end + 1])})" for end in range(1, len(steps))), f"size({path}) > 0"])


_OWN_TIMEOUT = f"(has(self.timeoutSeconds) ? self.timeoutSeconds : {_TIMEOUT_DEFAULT_S})"
_MOUNTS = "!has(self.volumeMounts) || self.volumeMounts"

POD_RULES: tuple[Row, ...] = (
    (
        "has-containers",
        (SERVING_SERVICE, CONFIGURATION),
        "",
        _cel_needs("self.spec.template.spec.containers"),
        "missing field(s): spec.template.spec.containers",
        _has_containers,
    ),
    (
        "has-containers",
        (REVISION,),
        "",
        _cel_needs("self.spec.containers"),
        "missing field(s): spec.containers",
        _revision_has_containers,
    ),
    *_rows(
        "one-container-serves",
        "",
        cel="!has(self.containers) || size(self.containers) < 2 || "
        "self.containers.filter(c, has(c.ports) && size(c.ports) > 0).size() == 1",
        message="expected exactly one of the containers to have ports",
        check=_one_serves,
    ),
    *_rows(
        "container-names-differ",
        "containers",
        cel="self.all(c, !has(c.name) || c.name == '' || self.exists_one(o, has(o.name) && o.name == c.name))",
        message="duplicate container name",
        check=_names_differ,
    ),
    *_rows(
        "has-image",
        "containers[*]",
        cel="has(self.image) && self.image != ''",
        message="missing field(s): image",
        check=_has_image,
    ),
    *_rows(
        "one-port",
        "containers[*]",
        cel="!has(self.ports) || size(self.ports) < 2",
        message="more than one container port is set: only a single port is allowed across all containers",
        check=_one_port,
    ),
    *_rows(
        "port-is-usable",
        "containers[*].ports[*]",
        cel="(!has(self.containerPort) || (self.containerPort >= 1 && self.containerPort <= 65535 && "
        f"!(self.containerPort in {_cel_list(RESERVED_PORTS)}))) && "
        f"(!has(self.name) || self.name in {_cel_list(_PORT_NAMES)}) && "
        "(!has(self.protocol) || self.protocol == 'TCP')",
        message="a port must be 1 to 65535, not one of 8012, 8013, 8022, 8112, 9090, 9091, named h2c or http1, and TCP",
        check=_port_is_usable,
    ),
    *_rows(
        "variable-is-free",
        "containers[*].env[*]",
        cel=f"has(self.name) && self.name != '' && !(self.name in {_cel_list(_RESERVED_ENVIRONMENT)})",
        message="name: must be set, and not be a reserved environment variable",
        check=_variable_is_free,
    ),
    *_rows(
        "one-handler",
        "containers[*]",
        cel=" && ".join(
            f"(!has(self.{probe}) || [{', '.join(f'has(self.{probe}.{one})' for one in _HANDLERS)}]"
            ".filter(h, h).size() < 2)"
            for probe in _PROBES
        ),
        message="expected exactly one of exec, grpc, httpGet, tcpSocket in a probe",
        check=_one_handler,
    ),
    *_rows(
        "mounts-differ",
        "containers[*]",
        cel=f"{_MOUNTS}.all(m, m.mountPath.startsWith('/') && !(m.mountPath in {_cel_list(_RESERVED_PATHS)}) && "
        "self.volumeMounts.exists_one(o, o.mountPath == m.mountPath))",
        message="volumeMounts: each mountPath once, beginning with /, and none that is reserved",
        check=_mounts_differ,
    ),
    *_rows(
        "volumes-belong",
        "",
        cel="(!has(self.containers) || self.containers.all(c, !has(c.volumeMounts) || c.volumeMounts.all(m, "
        "has(self.volumes) && self.volumes.exists(v, v.name == m.name)))) && "
        "(!has(self.volumes) || self.volumes.all(v, self.volumes.exists_one(o, o.name == v.name) && "
        "((has(self.initContainers) && size(self.initContainers) > 0) || "
        "(has(self.containers) && self.containers.exists(c, has(c.volumeMounts) && "
        "c.volumeMounts.exists(m, m.name == v.name))))))",
        message="volumes: each is mounted, and each mount names one",
        check=_volumes_belong,
    ),
    *_rows(
        "one-source",
        "volumes[*]",
        cel=f"[{', '.join(f'has(self.{one})' for one in _SOURCES)}].filter(s, s).size() == 1",
        message="expected exactly one source of a volume",
        check=_one_source,
    ),
    *_rows(
        "host-is-left-alone",
        "",
        cel=" && ".join(f"(!has(self.{one}) || !self.{one})" for one in _REFUSED),
        message="must not set the field(s): hostIPC, hostNetwork, hostPID",
        check=_host_is_left_alone,
    ),
    *_rows(
        "limits-hold",
        "",
        cel=" && ".join(
            [
                _cel_within("containerConcurrency", str(CONCURRENCY_MAX)),
                _cel_within("timeoutSeconds", str(TIMEOUT_MAX_S)),
                _cel_within("responseStartTimeoutSeconds", _OWN_TIMEOUT),
                _cel_within("idleTimeoutSeconds", _OWN_TIMEOUT),
            ]
        ),
        message="containerConcurrency: 0 to 1000; timeoutSeconds: 0 to 3600; the other timeouts: 0 to timeoutSeconds",
        check=_limits_hold,
    ),
)
