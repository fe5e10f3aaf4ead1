"""ScaledWorkload: scales an existing workload, such as a Deployment, by the requests for its Service.

``ScaledWorkloadSpec`` is the spec of the manifest. ``from_object`` reads a manifest and lists every problem;
``to_object`` writes one. ``as_revision`` converts a workload to a Revision, so that activators and autoscalers use the
same code for both. Its scaling keys become the revision's annotations. An annotation of the workload is its serving
state. This Revision is not stored.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from serving.core.model.errors import Problem, SettingsError
from serving.core.model.knative import (
    MAX_SCALE_ANNOTATION,
    METRIC_ANNOTATION,
    MIN_SCALE_ANNOTATION,
    OWN_API_VERSION,
    POLICY_ANNOTATION,
    REQUEST_TARGET_ANNOTATION,
    SCALE_DOWN_DELAY_ANNOTATION,
    SERVING_STATE_ANNOTATION,
    WINDOW_ANNOTATION,
    ServingState,
)
from serving.core.model.objects import Object, annotations_of, is_dns_label, merge_difference, nested
from serving.core.model.ports import PORT_MAX
from serving.core.model.quantity import INT32_MAX

KIND = "ScaledWorkload"

TARGET_RESOLVED = "TargetResolved"
"""The condition that the target exists and may be scaled."""

SCALED_ALONE = "ScaledAlone"
"""The condition that no other controller scales the target.

While it is False, the target is only scaled up from zero.
"""

NAMESPACE_NOT_LABELLED = "NamespaceNotLabelled"
"""The reason for ``TargetResolved=False`` of a workload that may not be scaled in its namespace."""

METRICS = ("concurrency", "rps")
"""The metrics of a ScaledWorkload, measured by activators, because its pods have no queue-proxy."""

HOSTS_MAX = PATHS_MAX = HEADERS_MAX = RULES_MAX = 16
"""Most entries of each list: the router scans the paths and headers of a host linearly."""

SCHEDULES_MAX = 16
"""Most schedules of one object."""

REJECT, PLACEHOLDER = "Reject", "Placeholder"
"""What a request gets above ``maxPendingRequests``: status 503, or the placeholder."""

TLS_PROTOCOLS = frozenset({"https", "kubernetes.io/wss"})
"""Values of ``appProtocol`` for TLS connections to pods."""

_FALLBACK = ":fallback"
_TEXT_MAX = 253
_BODY_MAX = 32768
_STATUS_MIN, _STATUS_MAX = 200, 599
_PATH_MAX = 1024
_TIMEOUT_MAX_S = 3600
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9](-?[a-z0-9]){0,14}")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,256}")
_HEADER_VALUE = re.compile(r"[\t -~\x80-\xff]{0,4096}")
# The activator sets these itself.
_FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "date", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_DURATION = re.compile(r"([0-9]+(\.[0-9]+)?(ms|s|m|h))+|0")
_API_VERSION = re.compile(r"([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?v[0-9][a-z0-9]*")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_PATH = re.compile(r"/(?:(?![?#])[!-~])*")


class WorkloadTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The object to scale, of any kind with a scale subresource, in the ScaledWorkload's namespace."""

    name: str
    kind: str = "Deployment"
    api_version: str = "apps/v1"

    @property
    def shown(self) -> str:
        """Kind and name: "Deployment shop"."""
        return f"{self.kind} {self.name}"


class WorkloadService(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The Service whose endpoints receive the requests, in the same namespace. ``port`` None means its only port."""

    name: str
    port: int | str | None = None


class HeaderMatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, order=True):
    """A header that a request must have; ``value`` None matches any value. Names are case-insensitive."""

    name: str
    value: str | None = None


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule that matches requests by hosts, path prefixes and headers; an empty list matches all.

    A request matches one of the ``hosts``, one of the ``paths``, and all of the ``headers``. A host is exact or a
    wildcard ("*.shop.example.com", which matches any number of labels). A path is a prefix of whole segments: "/api"
    matches "/api" and "/api/v1", not "/apis". Of several matching rules, an exact host wins, then the longest path,
    then the most headers.
    """

    hosts: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    headers: tuple[HeaderMatch, ...] = ()

    @classmethod
    def below(
        cls, prefixes: Iterable[str], *, hosts: tuple[str, ...], headers: tuple[HeaderMatch, ...]
    ) -> "RoutingRule":
        """A rule from path prefixes in other tools' notation: "api/" becomes "/api", and "/" matches every path."""
        paths = dict.fromkeys(f"/{prefix.strip('/')}" for prefix in prefixes)
        return cls(hosts=hosts, paths=() if "/" in paths else tuple(paths), headers=headers)


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Times with a minimum number of pods, regardless of load: from each ``start`` to the next ``end``.

    Both are cron expressions. Part of a ScaledWorkload or a ScalingPolicy.
    """

    start: str
    """The start as five cron fields: ``0 8 * * 1-5`` is 8:00 on working days."""

    end: str
    """The end, as five cron fields."""

    min_count: int = msgspec.field(name="min")
    """Fewest pods during the schedule. Range: from 1, and to ``max`` of the policy if it has one."""

    time_zone: str = "Etc/UTC"
    """The time zone of start and end, such as Europe/Berlin, including its daylight-saving time."""

    name: str = ""
    """The display name; "" shows start and end."""

    @property
    def shown_name(self) -> str:
        """The display name."""
        return self.name or f"{self.start} to {self.end}"


class WorkloadScaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The scaling values, which a revision has as annotations. None uses the autoscaler's setting."""

    min_count: int | None = msgspec.field(default=None, name="min")
    """Fewest pods. 0 allows scaling to zero."""

    max_count: int | None = msgspec.field(default=None, name="max")
    """Most pods. 0 means no limit."""

    target: float | None = None
    """Target per pod: requests in flight, or requests a second."""

    metric: str | None = None
    """One of ``METRICS``."""

    window: str | None = None
    """The averaging window, such as "60s"."""

    scale_down_delay: str | None = None
    """How long a lower count must be wanted before pods are removed, such as "30s"."""

    policy: str | None = None
    """The scaling policy, such as knative or adaptive."""

    schedules: tuple[Schedule, ...] = ()

    @property
    def annotations(self) -> dict[str, str]:
        """The set values, except schedules, as annotations of a revision by key."""
        values = {
            MIN_SCALE_ANNOTATION: self.min_count,
            MAX_SCALE_ANNOTATION: self.max_count,
            REQUEST_TARGET_ANNOTATION: self.target,
            METRIC_ANNOTATION: self.metric,
            WINDOW_ANNOTATION: self.window,
            SCALE_DOWN_DELAY_ANNOTATION: self.scale_down_delay,
            POLICY_ANNOTATION: self.policy,
        }
        return {key: _text(value) for key, value in values.items() if value is not None}


class PlaceholderResponse(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """A response while the workload starts."""

    status_code: int = 503
    headers: dict[str, str] = {}
    """Headers of the response. Without Content-Type a body that begins with "<" is text/html, any other text/plain."""

    body: str = ""


class ColdStart(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True
):
    """How requests are answered while no pod is ready.

    Without a ``placeholder`` all requests wait. With one, each request gets this response immediately; if ``overflow``
    is ``PLACEHOLDER``, requests wait, and get the response only while the queue is full. ``fallback`` is the Service
    for requests that waited too long, or whose pods fail.
    """

    fallback: WorkloadService | None = None
    """The Service for requests that got no pod within the wait, or whose pods fail."""

    placeholder: PlaceholderResponse | None = None
    """The immediate response to each request. It starts the workload, too."""

    overflow: str = REJECT
    """``REJECT``, or ``PLACEHOLDER``: only requests above ``maxPendingRequests`` get the placeholder; others wait."""

    def placeholder_at_once(self, *, waiting_max: int | None) -> PlaceholderResponse | None:
        """The placeholder if requests must not wait at all; otherwise None.

        ``waiting_max`` is the limit of waiting requests. With a limit and ``overflow`` ``PLACEHOLDER``, requests wait
        first.
        """
        return None if self.overflow == PLACEHOLDER and waiting_max is not None else self.placeholder

    @property
    def placeholder_on_overflow(self) -> PlaceholderResponse | None:
        """The placeholder for requests that arrive while the queue is full; None if there is none."""
        return self.placeholder if self.overflow == PLACEHOLDER else None


class ScaledWorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The spec of a ScaledWorkload.

    ``hosts``, ``paths`` and ``headers`` are one routing rule; ``rules`` has further rules. A workload without hosts is
    reached only by its cluster-local name.
    """

    target: WorkloadTarget
    service: WorkloadService
    hosts: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    headers: tuple[HeaderMatch, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    scaling: WorkloadScaling = WorkloadScaling()
    container_concurrency: int = 0
    """Most requests in flight per pod; 0 means no limit."""

    max_pending_requests: int | None = None
    """Most requests that wait for a pod in an activator.

    A further request gets status 503. None: only the activator's bound applies, which always does.
    """

    wait_timeout_seconds: int | None = None
    """Longest wait for a pod.

    Then a request gets status 503. None: only the activator's bound applies, which always does.
    """

    timeout_seconds: int | None = None
    """Longest time of a request, including the wait for a pod."""

    response_start_timeout_seconds: int | None = None
    """Longest time until the first byte of the response."""

    idle_timeout_seconds: int | None = None
    """Longest pause within a response."""

    cold_start: ColdStart = ColdStart()

    @classmethod
    def from_object(cls, resource: Mapping[str, Any]) -> "ScaledWorkloadSpec":
        """Read the spec of a ScaledWorkload. Raises ``SettingsError`` with every problem."""
        try:
            spec = msgspec.convert(resource.get("spec"), cls)
        except msgspec.ValidationError as error:
            what, _, path = str(error).partition(" - at `$")
            where = "spec" + path.removesuffix("`")
            raise SettingsError([Problem(where=where, what=what, expected="a field of ScaledWorkload")]) from error
        problems = list(spec.problems())
        if problems:
            raise SettingsError(problems)
        return spec

    def to_object(self, *, name: str, namespace: str) -> Object:
        """The manifest of a ScaledWorkload with this spec; fields at their defaults are left out."""
        defaults: Object = msgspec.to_builtins(ScaledWorkloadSpec(target=self.target, service=self.service))
        written: Object = msgspec.to_builtins(self)
        spec = {key: _written(value) for key, value in written.items() if value != defaults[key] or key in _REQUIRED}
        return {
            "apiVersion": OWN_API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }

    @property
    def routing(self) -> tuple[RoutingRule, ...]:
        """All routing rules; a single empty rule if the spec has none."""
        first = RoutingRule(hosts=self.hosts, paths=self.paths, headers=self.headers)
        return (first, *self.rules) if first != RoutingRule() or not self.rules else self.rules

    @property
    def all_hosts(self) -> frozenset[str]:
        """The hosts of all routing rules."""
        return frozenset(host for rule in self.routing for host in rule.hosts)

    @property
    def matches(self) -> frozenset[tuple[str, str, tuple[tuple[str, str], ...]]]:
        """The combinations that the routing rules match: host, path without a trailing slash, and required headers."""
        return frozenset(
            (
                host,
                path.rstrip("/"),
                tuple(sorted((header.name.lower(), header.value or "") for header in rule.headers)),
            )
            for rule in self.routing
            for host in rule.hosts
            for path in rule.paths or ("",)
        )

    def problems(self) -> Iterator[Problem]:
        """Every problem in the values."""
        target, service = self.target, self.service
        yield from _matching("spec.target.name", target.name, _NAME, expected="the name of an object")
        yield from _matching("spec.target.kind", target.kind, _KIND, expected="a kind, such as Deployment")
        yield from _matching(
            "spec.target.apiVersion", target.api_version, _API_VERSION, expected="group/version, such as apps/v1"
        )
        yield from _service_problems("spec.service", service)
        yield from _rule_problems("spec", self)
        for index, rule in enumerate(self.rules):
            yield from _rule_problems(f"spec.rules[{index}]", rule)
        yield from _too_many("spec.rules", self.rules, RULES_MAX)
        yield from _scaling_problems(self.scaling)
        yield from _cold_start_problems(self.cold_start)
        yield from _in_range("spec.containerConcurrency", self.container_concurrency, low=0, high=INT32_MAX)
        yield from _in_range("spec.maxPendingRequests", self.max_pending_requests, low=1, high=INT32_MAX)
        for field in ("waitTimeoutSeconds", "timeoutSeconds", "responseStartTimeoutSeconds", "idleTimeoutSeconds"):
            attribute = re.sub("[A-Z]", lambda match: "_" + match[0].lower(), field)
            yield from _in_range(f"spec.{field}", getattr(self, attribute), low=1, high=_TIMEOUT_MAX_S)


_REQUIRED = ("target", "service")


def as_revision(workload: Object, spec: ScaledWorkloadSpec) -> Object:
    """Convert a ScaledWorkload with this spec to the Revision that activators and autoscalers use.

    Annotations of the workload are copied, because daemons save state in them; annotations from the spec win. The
    serving state is read from the annotation ``serving.dev/serving-state``.
    """
    annotations = annotations_of(workload)
    state = annotations.get(SERVING_STATE_ANNOTATION)
    metadata = {**workload["metadata"], "labels": {}, "annotations": {**annotations, **spec.scaling.annotations}}
    fields: Object = {
        "servingState": state if state in set(ServingState) else ServingState.ACTIVE.value,
        "containerConcurrency": spec.container_concurrency,
        "timeoutSeconds": spec.timeout_seconds,
        "responseStartTimeoutSeconds": spec.response_start_timeout_seconds,
        "idleTimeoutSeconds": spec.idle_timeout_seconds,
    }
    return {
        "metadata": metadata,
        "spec": {key: value for key, value in fields.items() if value is not None},
        "status": {"desiredReplicas": nested(workload, "status", "desiredReplicas")},
    }


def serving_state_patch(state: ServingState, *, resource_version: str, is_workload: bool) -> Object:
    """The patch that sets a serving state.

    A Revision has the state in its spec, a ScaledWorkload in an annotation, because its spec is the user's.
    """
    metadata: Object = {"resourceVersion": resource_version}
    if is_workload:
        return {"metadata": {**metadata, "annotations": {SERVING_STATE_ANNOTATION: state.value}}}
    return {"metadata": metadata, "spec": {"servingState": state.value}}


def is_wildcard(host: str) -> bool:
    """Whether the host is a wildcard, such as "*.shop.example.com"."""
    return host.startswith("*.")


def fallback_key(key: tuple[str, str]) -> tuple[str, str]:
    """The key that identifies a workload's fallback in activators. No object can have this name."""
    return key[0], key[1] + _FALLBACK


def workload_key(key: tuple[str, str]) -> tuple[str, str]:
    """The key of a fallback's workload; any other key unchanged."""
    return key[0], key[1].removesuffix(_FALLBACK)


def _service_problems(where: str, service: WorkloadService) -> Iterator[Problem]:
    if not is_dns_label(service.name):
        yield Problem(where=f"{where}.name", what=repr(service.name), expected="the name of a Service")
    if not _is_port(service.port):
        expected = "a port of the Service, by number (80) or name (http)"
        yield Problem(where=f"{where}.port", what=repr(service.port), expected=expected)


def _rule_problems(where: str, rule: RoutingRule | ScaledWorkloadSpec) -> Iterator[Problem]:
    for index, host in enumerate(rule.hosts):
        if not is_host(host):
            expected = 'a host in lower case without a port, as "shop.example.com" or "*.example.com"'
            yield Problem(where=f"{where}.hosts[{index}]", what=repr(host), expected=expected)
    for index, path in enumerate(rule.paths):
        if not is_path(path):
            expected = f'a path that begins with "/", without query, of at most {_PATH_MAX} characters'
            yield Problem(where=f"{where}.paths[{index}]", what=repr(path), expected=expected)
    for index, header in enumerate(rule.headers):
        yield from _matching(
            f"{where}.headers[{index}].name", header.name, _HEADER_NAME, expected="the name of a header"
        )
    yield from _too_many(f"{where}.hosts", rule.hosts, HOSTS_MAX)
    yield from _too_many(f"{where}.paths", rule.paths, PATHS_MAX)
    yield from _too_many(f"{where}.headers", rule.headers, HEADERS_MAX)


def _scaling_problems(scaling: WorkloadScaling) -> Iterator[Problem]:
    low, high = scaling.min_count, scaling.max_count
    yield from _in_range("spec.scaling.min", low, low=0, high=INT32_MAX)
    yield from _in_range("spec.scaling.max", high, low=0, high=INT32_MAX)
    if low and high and low > high:
        yield Problem(where="spec.scaling.min", what=f"{low} is above max, {high}", expected=f"at most {high}")
    if scaling.target is not None and not 0 < scaling.target < float("inf"):
        yield Problem(where="spec.scaling.target", what=repr(scaling.target), expected="a number above 0")
    if scaling.metric is not None and scaling.metric not in METRICS:
        yield Problem(where="spec.scaling.metric", what=repr(scaling.metric), expected="one of " + ", ".join(METRICS))
    for field, text in (("window", scaling.window), ("scaleDownDelay", scaling.scale_down_delay)):
        if text is not None:
            yield from _matching(f"spec.scaling.{field}", text, _DURATION, expected='a duration, such as "60s"')
    yield from _too_many("spec.scaling.schedules", scaling.schedules, SCHEDULES_MAX)
    for index, schedule in enumerate(scaling.schedules):
        yield from _in_range(f"spec.scaling.schedules[{index}].min", schedule.min_count, low=1, high=INT32_MAX)


def _cold_start_problems(cold_start: ColdStart) -> Iterator[Problem]:
    where, placeholder = "spec.coldStart", cold_start.placeholder
    if cold_start.fallback is not None:
        yield from _service_problems(f"{where}.fallback", cold_start.fallback)
    if cold_start.overflow not in {REJECT, PLACEHOLDER}:
        yield Problem(where=f"{where}.overflow", what=repr(cold_start.overflow), expected=f"{REJECT} or {PLACEHOLDER}")
    if placeholder is None:
        if cold_start.overflow == PLACEHOLDER:
            yield Problem(where=f"{where}.overflow", what="there is no placeholder", expected=f"{where}.placeholder")
        return
    where += ".placeholder"
    yield from _in_range(f"{where}.statusCode", placeholder.status_code, low=_STATUS_MIN, high=_STATUS_MAX)
    yield from _too_many(f"{where}.headers", tuple(placeholder.headers), HEADERS_MAX)
    if len(placeholder.body) > _BODY_MAX:
        expected = f"at most {_BODY_MAX}"
        yield Problem(where=f"{where}.body", what=f"{len(placeholder.body)} characters", expected=expected)
    for name, value in placeholder.headers.items():
        yield from _matching(f"{where}.headers", name, _HEADER_NAME, expected="the name of a header")
        yield from _matching(
            f"{where}.headers[{name}]", value, _HEADER_VALUE, expected="a value of printable characters"
        )
        if name.lower() in _FRAMING_HEADERS:
            yield Problem(
                where=f"{where}.headers", what=repr(name), expected="a header that the activator does not set"
            )


def _matching(where: str, text: str, pattern: re.Pattern[str], *, expected: str) -> Iterator[Problem]:
    if not pattern.fullmatch(text):
        yield Problem(where=where, what=repr(text), expected=expected)


def _in_range(where: str, number: int | None, *, low: int, high: int) -> Iterator[Problem]:
    if number is not None and not low <= number <= high:
        yield Problem(where=where, what=str(number), expected=f"a whole number from {low} to {high}")


def _too_many(where: str, entries: tuple[object, ...], most: int) -> Iterator[Problem]:
    if len(entries) > most:
        yield Problem(where=where, what=f"{len(entries)} entries", expected=f"at most {most}")


def _is_port(port: object) -> bool:
    if isinstance(port, str):
        return bool(_PORT_NAME.fullmatch(port))
    return port is None or (isinstance(port, int) and 0 < port <= PORT_MAX)


def is_host(host: str) -> bool:
    """Whether the text is a host name or a wildcard host. Addresses are not hosts."""
    labels = host.removeprefix("*.").split(".")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return len(host) <= _TEXT_MAX and all(map(is_dns_label, labels))
    return False


def is_path(path: str) -> bool:
    """Whether the text is a path prefix: "/" first, ASCII only, and no query."""
    return len(path) <= _PATH_MAX and bool(_PATH.fullmatch(path))


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _written(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A manifest value without unset fields."""
    if isinstance(value, dict):
        return {key: _written(child) for key, child in value.items() if child is not None and child not in ([], ())}
    return [_written(child) for child in value] if isinstance(value, list | tuple) else value


def spec_patch(workload: Mapping[str, Any], wanted: ScaledWorkloadSpec) -> Object:
    """The merge patch that gives a ScaledWorkload this spec; {} if the specs are equal, even if written differently."""
    try:
        if ScaledWorkloadSpec.from_object(workload) == wanted:
            return {}
    except SettingsError:
        # The object is replaced.
        pass
    return merge_difference(workload.get("spec") or {}, wanted.to_object(name="", namespace="")["spec"])
