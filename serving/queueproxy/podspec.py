"""The configuration of one queue-proxy: its pod, listeners, app, and autoscaler.

Input: an environment as a mapping (documented in ``serving.queueproxy.main``), or fields set by the process that forks
it. Output: a ``PodSpec``, or all problems. A readiness probe has Kubernetes' form. An exec probe becomes a TCP probe of
the app's port, because it cannot run in another container.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from serving.core.model.errors import InvalidValue, Problem, SettingsError
from serving.core.model.knative import APP_PROBE
from serving.core.model.ports import PORT_MAX
from serving.core.model.quantity import parse_number
from serving.core.settings.dormancy import CallPair, read_calls
from serving.core.settings.load import load
from serving.core.settings.queueproxy import QUEUEPROXY, QueueProxySettings

Address = tuple[str, int]

FROZEN_MARK = "frozen"
"""Suffix, after ``PodSpec.processes``, of the file that exists while an app may be stopped by signals."""


_A_NAME = "a name as Kubernetes writes it"
_AN_ADDRESS = 'an address with a port, as in "127.64.0.1:8012"'
_NEEDED = frozenset({"namespace", "revision", "pod", "app"})


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """How to check that the app accepts requests.

    ``path`` is the path of an HTTP GET with ``headers``; None: the probe opens a TCP connection. ``port`` is None for
    the app's port. ``period_s`` is the pause between two probes of a ready app; 0 ends the probing. ``failure_max``
    consecutive failures make a ready app unready.
    """

    path: str | None = None
    port: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 1.0
    period_s: float = 10.0
    failure_max: int = 3


class FreezerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The cgroup of a pod, which may not exist yet: ``folder`` below ``root``, the mount point of its hierarchy.

    ``is_unified``: the hierarchy is of cgroup version 2.
    """

    root: str
    folder: str
    is_unified: bool = True


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one pod's queue-proxy.

    Addresses: ``listen`` and ``admin`` are the addresses for requests and for the admin port. A descriptor in
    ``listen_fds`` under "requests" or "admin" replaces the address. ``app`` is the app's address; ``tcp_ports`` are its
    further ports by containerPort.

    Stats: without ``stats_url`` no stats are reported. The token is ``stats_token``, or the content of
    ``stats_token_file``, read for each connection. ``gauges`` are the app's gauges to report. They are read from the
    page at ``metrics_path`` and ``metrics_port`` (0: the app's port), and from ORCA headers, which requests then ask
    for. ``counts_tokens``: the tokens of OpenAI requests are counted. ``loading_max_s`` is how long a starting app is
    reported as loading, None for never. ``slo`` is the latency goal by which requests are counted. ``oom_folders`` are
    the cgroups that count OOM kills of the app. ``service`` and ``configuration`` of the revision appear in the request
    log.

    Trust: only requests with ``secret`` are trusted; without a secret, none. ``is_guarded``: only requests of
    activators are accepted. ``caller_key`` is the key with which the app requests its caller token; without a key, the
    request must come from the pod's network. ``authority`` is the certificate of the installation's authority as PEM.
    If it and ``settings.inner_tls`` are set, requests and stats use TLS. ``app_user`` is the user that only this pod
    has, whose sockets are the app's; 0: there is none; None: only the app can listen at its address.

    State: ``ready_fd`` is the pipe for readiness. ``is_http2``: the app's port is named h2c, for HTTP/2 with prior
    knowledge. ``dormant_after_s`` is the idle time before the app is frozen, None for never. ``dormant_call`` are the
    app's own calls to sleep and wake. ``processes`` is the prefix of the files that record the app's first processes;
    "" if there are none. ``freezer`` is the cgroup that freezes the app; None uses signals. ``unfrozen`` is why the app
    of a cluster's pod is not frozen; "" if its processes are visible.
    """

    namespace: str
    revision: str
    pod: str
    app: Address
    tcp_ports: dict[int, int] = {}
    listen: Address = ("0.0.0.0", 8012)  # noqa: S104 - a pod's own address is not known to a sidecar; its ports are
    admin: Address = ("0.0.0.0", 8022)  # noqa: S104 - as above
    listen_fds: dict[str, int] = {}
    readiness: Probe = Probe()
    stats_url: str | None = None
    stats_token: str = ""
    stats_token_file: str = ""
    stats_network: str = ""
    secret: str = ""
    caller_key: str = ""
    is_guarded: bool = False
    ready_fd: int | None = None
    authority: str = ""
    is_http2: bool = False
    address: str = ""
    service: str = ""
    configuration: str = ""
    oom_folders: tuple[str, ...] = ()
    gauges: tuple[str, ...] = ()
    counts_tokens: bool = False
    loading_max_s: float | None = None
    slo: str = ""
    metrics_path: str = "/metrics"
    metrics_port: int = 0
    dormant_after_s: float | None = None
    dormant_call: CallPair | None = None
    processes: str = ""
    app_user: int | None = None
    freezer: FreezerPlace | None = None
    unfrozen: str | None = None
    settings: QueueProxySettings = QueueProxySettings()


class _HttpHeader(msgspec.Struct, frozen=True):
    name: str
    value: str


class _HttpGet(msgspec.Struct, frozen=True, rename="camel"):
    path: str = "/"
    port: int | str | None = None
    http_headers: list[_HttpHeader] = []


class _TcpSocket(msgspec.Struct, frozen=True):
    port: int | str | None = None


class _KubernetesProbe(msgspec.Struct, frozen=True, rename="camel"):
    """The supported fields of a core/v1 probe.

    Defaults are those of Kubernetes, except ``period_seconds``: 0 ends the probing after the first success.
    """

    http_get: _HttpGet | None = None
    tcp_socket: _TcpSocket | None = None
    timeout_seconds: Annotated[float, msgspec.Meta(ge=0)] = 1
    period_seconds: Annotated[float, msgspec.Meta(ge=0)] = 10
    failure_threshold: Annotated[int, msgspec.Meta(ge=0)] = 3


def read_probe(text: str) -> Probe:
    """Parse a probe from Kubernetes' JSON.

    Raises:
        msgspec.DecodeError: when the text is not a probe.
    """
    probe = msgspec.json.decode(text, type=_KubernetesProbe)
    get = probe.http_get
    port = get.port if get is not None else probe.tcp_socket.port if probe.tcp_socket is not None else None
    return Probe(
        path=get.path if get is not None else None,
        # A named port means the app's port, because a revision has a single port.
        port=port if isinstance(port, int) and port else None,
        headers=tuple((http_header.name, http_header.value) for http_header in get.http_headers)
        if get is not None
        else (),
        timeout_s=probe.timeout_seconds or 1.0,
        period_s=probe.period_seconds,
        failure_max=probe.failure_threshold or 1,
    )


def probing_app(probe: Probe, *, secret: str) -> Probe:
    """The probe with headers for a queue-proxy in the app's process, which forwards it without counting it."""
    marks = (("K-Pod-Secret", secret), ("K-Network-Probe", APP_PROBE)) if secret else ()
    return msgspec.structs.replace(probe, headers=(*probe.headers, *marks))


def spec_from_environment(environment: Mapping[str, str]) -> PodSpec:
    """Read a pod's spec from the environment of its queue-proxy.

    Raises:
        SettingsError: with every problem.
    """
    problems: list[Problem] = []
    values: dict[str, object] = {}
    for field, (variable, read, expected) in _VARIABLES.items():
        text = environment.get(variable)
        if text is None:
            if field in _NEEDED:
                problems.append(Problem(where=f"environment {variable}", what="is missing", expected=expected))
            continue
        try:
            values[field] = read(text)
        except (ValueError, InvalidValue, msgspec.DecodeError):
            problems.append(Problem(where=f"environment {variable}", what=f"{text!r} is not right", expected=expected))
    try:
        values["settings"] = load(QUEUEPROXY, registry=(QUEUEPROXY,), environment=environment).settings
    except SettingsError as error:
        problems += error.problems
    if problems:
        raise SettingsError(problems)
    spec = msgspec.convert(values, PodSpec)
    if spec.settings.inner_tls.is_on and not (spec.authority and spec.stats_url):
        what, expected = (
            "is missing, and inner TLS is on",
            "the certificate of the authority, and SERVING_POD_STATS_URL",
        )
        raise SettingsError([Problem(where="environment SERVING_POD_AUTHORITY", what=what, expected=expected)])
    return spec


def _read_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not 0 <= int(port) <= PORT_MAX:
        raise ValueError(text)
    return host.strip("[]"), int(port)


def _read_name(text: str) -> str:
    if not text or "/" in text:
        raise ValueError(text)
    return text


def _read_path(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(text)
    return text


def _read_port(text: str) -> int:
    if not 0 < int(text) <= PORT_MAX:
        raise ValueError(text)
    return int(text)


def _read_seconds(text: str) -> float:
    seconds = parse_number(text)
    if seconds <= 0:
        raise ValueError(text)
    return seconds


def _read_flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _read_slo(text: str) -> str:
    from serving.core.model.slo import read_slo  # noqa: PLC0415 - where there is a goal only

    read_slo(text)
    return text


def _read_user(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _read_protocol(text: str) -> bool:
    if text not in ("http1", "h2c"):
        raise ValueError(text)
    return text == "h2c"


# By field: the variable, its parser, and the expected value for messages.
_VARIABLES: dict[str, tuple[str, Callable[[str], object], str]] = {
    "namespace": ("SERVING_POD_NAMESPACE", _read_name, _A_NAME),
    "revision": ("SERVING_POD_REVISION", _read_name, _A_NAME),
    "pod": ("SERVING_POD_NAME", _read_name, _A_NAME),
    "app": ("SERVING_POD_APP", _read_address, _AN_ADDRESS),
    "tcp_ports": (
        "SERVING_POD_TCP_PORTS",
        lambda text: msgspec.json.decode(text, type=dict[int, int]),
        'ports for TCP by containerPort, as in {"5432": 23411}',
    ),
    "listen": ("SERVING_POD_LISTEN", _read_address, _AN_ADDRESS),
    "admin": ("SERVING_POD_ADMIN_LISTEN", _read_address, _AN_ADDRESS),
    "readiness": ("SERVING_POD_READINESS", read_probe, "a readinessProbe of core/v1 as JSON"),
    "stats_url": ("SERVING_POD_STATS_URL", str, "a URL of a websocket"),
    "stats_token": ("SERVING_POD_STATS_TOKEN", str, "a token"),
    "stats_token_file": ("SERVING_POD_STATS_TOKEN_FILE", str, "the path of a file with a token"),
    "stats_network": ("SERVING_POD_STATS_NETWORK", str, "the path of a network namespace"),
    "secret": ("SERVING_POD_SECRET", str, "a secret"),
    "caller_key": ("SERVING_POD_CALLER_KEY", str, "a secret"),
    "is_guarded": ("SERVING_POD_GUARDED", _read_flag, "true or false"),
    "authority": ("SERVING_POD_AUTHORITY", str, "a certificate as PEM"),
    "is_http2": ("SERVING_POD_PROTOCOL", _read_protocol, "http1 or h2c, the name of the app's port"),
    "address": ("SERVING_POD_IP", str, "an address"),
    "service": ("SERVING_POD_SERVICE", str, "a name, or nothing"),
    "configuration": ("SERVING_POD_CONFIGURATION", str, "a name, or nothing"),
    "oom_folders": (
        "SERVING_POD_OOM_FOLDERS",
        lambda text: msgspec.json.decode(text, type=tuple[str, ...]),
        'folders of cgroups, as in ["/sys/fs/cgroup/app"]',
    ),
    "gauges": (
        "SERVING_POD_GAUGES",
        lambda text: msgspec.json.decode(text, type=tuple[str, ...]),
        'names of gauges, as in ["queue_length"]',
    ),
    "counts_tokens": ("SERVING_POD_TOKENS", _read_flag, "true or false"),
    "loading_max_s": ("SERVING_POD_LOADING_MAX_S", _read_seconds, "seconds above 0"),
    "slo": ("SERVING_POD_SLO", _read_slo, 'a goal for latency, as in "p95<300ms"'),
    "metrics_path": ("SERVING_POD_METRICS_PATH", _read_path, 'a path, as in "/metrics"'),
    "metrics_port": ("SERVING_POD_METRICS_PORT", _read_port, "a port from 1 to 65535"),
    "dormant_after_s": ("SERVING_POD_DORMANT_AFTER_S", _read_seconds, "seconds above 0"),
    "dormant_call": ("SERVING_POD_DORMANT_CALL", read_calls, 'two calls, as in "POST /sleep, POST /wake_up"'),
    "processes": ("SERVING_POD_PROCESSES", str, "the beginning of a path"),
    "app_user": ("SERVING_POD_APP_USER", _read_user, "the number of a user, or 0"),
    "unfrozen": ("SERVING_POD_UNFROZEN", str, "a reason, or nothing"),
    "freezer": (
        "SERVING_POD_FREEZER",
        lambda text: msgspec.json.decode(text, type=FreezerPlace),
        'a cgroup, as in {"root": "/sys/fs/cgroup", "folder": "/sys/fs/cgroup/pods/p"}',
    ),
    "ready_fd": ("SERVING_READY_FD", int, "the number of a descriptor"),
    "listen_fds": (
        "SERVING_LISTEN_FDS",
        lambda text: msgspec.json.decode(text, type=dict[str, int]),
        'descriptors by name, as in {"requests": 3}',
    ),
}
