"""Decides on startup, liveness and exec readiness probes: when they run, and the effect of each outcome.

Input: a probe in Kubernetes' shape, then one outcome at a time; output: whether the container is fine, failing, or to
be ended. HTTP and TCP readiness is the queue-proxy's own. Follows core/v1 Probe; its defaults are Kubernetes'.
"""

import asyncio
import enum
import shlex
from typing import Any

import msgspec

from serving.core.model.objects import Object
from serving.net.aio.netns import open_connection
from serving.queueproxy.podspec import Address, Probe, read_probe

_PERIOD_DEFAULT_S = 10.0
# Kubernetes' kubelet notices a running container within a second, and probes it then; manifests with a failureThreshold
# of 1 depend on that delay.
_LIVENESS_DELAY_MIN_S = 1.0

_STATUS_LINE_BYTES_MAX = 200


class ProbeKind(enum.StrEnum):
    """The purpose of a probe: startup, liveness or readiness."""

    STARTUP = "startupProbe"
    LIVENESS = "livenessProbe"
    READINESS = "readinessProbe"


class ProbeVerdict(enum.StrEnum):
    """The result of a probe so far: unknown, passed or failed."""

    UNKNOWN = "unknown"
    PASSED = "passed"
    FAILED = "failed"


class ProbePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A container's probe: ``command`` is executed; without one the HTTP or TCP ``probe`` runs. Times in seconds.

    ``success_min`` and ``failure_max`` are numbers of equal results in a row. ``port`` is the port in the manifest, 0
    for the app's port.
    """

    kind: ProbeKind
    probe: Probe
    command: tuple[str, ...] = ()
    initial_delay_s: float = 0.0
    period_s: float = _PERIOD_DEFAULT_S
    success_min: int = 1
    failure_max: int = 3
    port: int = 0

    @property
    def label(self) -> str:
        """The probe in messages: "exec true", "GET /healthz" or "tcpSocket"."""
        if self.command:
            return f"exec {shlex.join(self.command)}"
        return "tcpSocket" if self.probe.path is None else f"GET {self.probe.path}"


class ProbeState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a probe: its successes or failures in a row, and the verdict."""

    successes: int = 0
    failures: int = 0
    verdict: ProbeVerdict = ProbeVerdict.UNKNOWN


def probe_plans(container: Object) -> list[ProbePlan]:
    """The probes of a serving container that the kubelet runs: startup, liveness, and readiness if it is a command."""
    plans = [_plan(kind, container[kind]) for kind in ProbeKind if container.get(kind)]
    return [plan for plan in plans if plan.kind is not ProbeKind.READINESS or plan.command]


def sidecar_probe_plans(container: Object) -> list[ProbePlan]:
    """All probes of a container that the queue-proxy does not probe. The ports are those of the manifest.

    A gRPC probe passes when the port accepts a connection.
    """
    return [
        msgspec.structs.replace(_plan(kind, container[kind]), port=_port_of(container, container[kind]))
        for kind in ProbeKind
        if container.get(kind)
    ]


def _port_of(container: Object, probe: Object) -> int:
    handler: Object = next((probe[name] for name in ("httpGet", "tcpSocket", "grpc") if probe.get(name)), {})
    target_port = handler.get("port") or 0
    named = {port.get("name"): port.get("containerPort", 0) for port in container.get("ports") or ()}
    return int(named.get(target_port, 0) if isinstance(target_port, str) else target_port)


def listening_probe(container: Object) -> Probe:
    """The probe that tells whether an app listens: its readiness probe, or a TCP connection if it has none."""
    return _plan(ProbeKind.READINESS, container.get("readinessProbe") or {}).probe


def _plan(kind: ProbeKind, probe: Object) -> ProbePlan:
    # The manifest's port differs from the assigned one.
    own = {handler: {**probe[handler], "port": 0} for handler in ("httpGet", "tcpSocket") if handler in probe}
    delay_s = float(probe.get("initialDelaySeconds") or 0)
    numbers: dict[str, Any] = {key: value for key, value in probe.items() if isinstance(value, int | float)}
    return ProbePlan(
        kind=kind,
        probe=read_probe(msgspec.json.encode({**numbers, **own}).decode()),
        command=tuple((probe.get("exec") or {}).get("command", ())),
        initial_delay_s=max(delay_s, _LIVENESS_DELAY_MIN_S) if kind is ProbeKind.LIVENESS else delay_s,
        period_s=probe.get("periodSeconds") or _PERIOD_DEFAULT_S,
        success_min=probe.get("successThreshold") or 1,
        failure_max=probe.get("failureThreshold") or 3,
    )


def after_outcome(state: ProbeState, plan: ProbePlan, *, ok: bool) -> ProbeState:
    """The state of a probe after one more result. ``ok``: the result is a success.

    Example: with ``failure_max`` 3 and ``success_min`` 1, the third failure in a row gives FAILED, and the next success
    PASSED.
    """
    successes, failures = (state.successes + 1, 0) if ok else (0, state.failures + 1)
    verdict = state.verdict
    if successes >= plan.success_min:
        verdict = ProbeVerdict.PASSED
    elif failures >= plan.failure_max:
        verdict = ProbeVerdict.FAILED
    return ProbeState(successes=successes, failures=failures, verdict=verdict)


async def probe_failure(probe: Probe, app: Address, *, network: str = "") -> str:
    """Send an HTTP probe; return "" for a status of 200 to 399, else the failure.

    ``network`` is the path of the network namespace from which the probe is sent, "" for this process's namespace.
    """
    host, port = app
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(probe.timeout_s):
            reader, writer = await open_connection(host, port, network=network)
            headers = {"Host": f"{host}:{port}", "User-Agent": "kube-probe/serving", "Connection": "close"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in {**headers, **dict(probe.headers)}.items())
            writer.write(f"GET {probe.path} HTTP/1.1\r\n{lines}\r\n".encode())
            line = (await reader.readline())[:_STATUS_LINE_BYTES_MAX].decode("latin-1").strip()
    except TimeoutError:
        return f"no answer within {probe.timeout_s:g} s (timeoutSeconds)"
    except (OSError, ValueError) as error:
        return str(error)
    finally:
        if writer is not None:
            writer.transport.abort()
    words = line.split(" ", 2)
    if len(words) > 1 and words[0].startswith("HTTP/1.") and words[1].isdecimal():
        return "" if 200 <= int(words[1]) <= 399 else f"the app answered {' '.join(words[1:])}"
    return f"the answer is not HTTP/1.1: {line!r}" if line else "the app closed the connection"
