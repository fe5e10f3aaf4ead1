"""The activator's policy for a route, apart from its traffic split.

The policy has the allowed callers, session affinity, header rules for tags, the early response while a pod starts, and
TCP ports.

Input: the annotations of a Route, which a Service copies to its Route. Output: a ``RoutePolicy`` with a problem for
each invalid annotation. An invalid access annotation makes the service private; other invalid annotations are ignored.
"""

import hashlib
import re
from collections.abc import Mapping

import msgspec

from serving.core.model.accessrules import CallerRule, JwtRule, caller_rule, jwt_rule
from serving.core.model.errors import Problem
from serving.core.model.knative import (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    AFFINITY_ANNOTATION,
    ALLOW_FROM_ANNOTATION,
    CLAIMED_TAGS_ANNOTATION,
    JWT_ANNOTATION,
    NAMED_PORT_ANNOTATION,
    PATHS_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SESSION_AFFINITY_ANNOTATION,
    START_EVENTS_ANNOTATION,
    TCP_ANNOTATION,
    VISIBILITY_LABEL,
)
from serving.core.model.objects import Object, annotations_of, labels_of, nested, uid_of
from serving.core.model.ports import PORT_MAX, port_of
from serving.core.model.rollout import tag_splits
from serving.core.model.routehosts import HostRules, claimed_hosts
from serving.core.model.scaledworkload import HOSTS_MAX, is_host, is_path

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VERSION = re.compile(r"[0-9A-Za-z._-]{1,63}")
_RULE = re.compile(r"([^=\s]+)=([^,:]*):([a-z0-9]([a-z0-9-]*[a-z0-9])?)")
_ANY_VALUE = "*"
TCP_PORTS_MAX = 16
"""The most TCP ports of a service; each port is a listener in each activator."""

_TCP = f"annotation {TCP_ANNOTATION}"
_TCP_EXPECTED = 'a port from 1 to 65535, as in "5432", or several with commas, as in "5432,8883/tls"'
_HEADER_PREFIX = "header:"
# The most header rules: each one slows the routing of every request.
_RULES_MAX = 16

_LENGTH = 16
_TARGET_FIELDS = ("revisionName", "percent", "tag", "url")


class SessionAffinity(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of a session are recognised: by ``header`` (lower case), or by the activator's cookie if it is "".

    With ``by_prefix`` there are no sessions, and the beginning of the prompt in the body chooses the pod. With
    ``client_s`` above 0 the client's address is the session, which ends that many seconds after its last request.
    """

    header: str = ""
    by_prefix: bool = False
    client_s: int = 0


class HeaderRule(msgspec.Struct, frozen=True, kw_only=True):
    """Sends requests with this ``header`` (lower case) and ``value`` to the revision with ``tag``; "*" is any value."""

    header: str
    value: str
    tag: str

    def matches(self, value: str) -> bool:
        """Whether a header value selects the tag."""
        return self.value in (_ANY_VALUE, value)


class TcpPort(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A TCP port of a service. If ``is_tls``, several services may share the port, each by its server name."""

    number: int
    is_tls: bool = False


class SharedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host, exact or wildcard, that services may share. ``path`` is this service's prefix, "/" for all paths."""

    host: str
    path: str = "/"


class RoutePolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How activators treat the requests of a route, as its annotations specify.

    A service that ``is_private`` requires a token; ``token_version`` is "" for the first one. ``callers`` is None if
    all callers are admitted. ``affinity`` sends requests of a session to one pod. With ``has_placeholder``, browsers
    get a waiting page while a pod starts. With ``has_start_events``, clients of event streams get events while a pod
    starts. ``named_port`` is the port at which other apps reach the service by its short name, 0 for none. ``problems``
    are invalid annotations, which an Event reports.
    """

    is_private: bool = False
    token_version: str = ""
    callers: CallerRule | None = None
    jwt: JwtRule | None = None
    affinity: SessionAffinity | None = None
    header_rules: tuple[HeaderRule, ...] = ()
    has_placeholder: bool = False
    has_start_events: bool = False
    tcp_ports: tuple[TcpPort, ...] = ()
    named_port: int = 0
    shared_hosts: tuple[SharedHost, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether sessions, prompts or headers affect the choice of the revision or the pod."""
        return bool(self.affinity or self.header_rules)

    @property
    def needs_activator(self) -> bool:
        """Whether every request must pass an activator, so that the public Service never contains pods."""
        return self.is_private or self.is_guarded or self.chooses

    @property
    def is_guarded(self) -> bool:
        """Whether pods accept requests only from activators, because activators check callers and tokens."""
        return self.jwt is not None or (self.callers is not None and not self.callers.is_open)


OPEN_POLICY = RoutePolicy()
"""The policy of a route without policy annotations."""


def route_policy(annotations: Mapping[str, str]) -> RoutePolicy:
    """Parse the policy from a route's annotations."""
    problems: list[str] = []
    is_private = _is_private(annotations.get(ACCESS_ANNOTATION, "public"), problems)
    version = annotations.get(ACCESS_TOKEN_VERSION_ANNOTATION, "")
    if version and not _VERSION.fullmatch(version):
        problems.append(_problem(ACCESS_TOKEN_VERSION_ANNOTATION, version, "1 to 63 letters, digits, '.', '_' or '-'"))
        # A changed version must revoke the previous token.
        is_private, version = True, "invalid"
    tcp_ports = _tcp_ports(annotations.get(TCP_ANNOTATION, ""), problems)
    callers = _callers(annotations.get(ALLOW_FROM_ANNOTATION), problems)
    jwt = _jwt(annotations.get(JWT_ANNOTATION), problems)
    if tcp_ports and (is_private or jwt is not None or (callers is not None and not callers.is_open)):
        problems.append(f"annotation {TCP_ANNOTATION} has no effect: a TCP connection carries no token of its caller")
        tcp_ports = ()
    rules = header_rules_of(annotations.get(ROUTE_BY_HEADER_ANNOTATION, ""), problems)
    policy = RoutePolicy(
        is_private=is_private,
        token_version=version,
        callers=callers,
        jwt=jwt,
        affinity=_affinity(annotations, problems),
        header_rules=rules,
        has_placeholder=_flag(annotations, PLACEHOLDER_PAGE_ANNOTATION, problems),
        has_start_events=_flag(annotations, START_EVENTS_ANNOTATION, problems),
        tcp_ports=tcp_ports,
        named_port=_named_port(annotations.get(NAMED_PORT_ANNOTATION, ""), problems),
        shared_hosts=_shared_hosts(annotations.get(PATHS_ANNOTATION, ""), problems),
        problems=tuple(problems),
    )
    return OPEN_POLICY if policy == OPEN_POLICY else policy


def header_rules_of(text: str, problems: list[str]) -> tuple[HeaderRule, ...]:
    """Parse "X-Beta=yes:candidate, X-Tier=*:gold"; invalid rules are skipped and added to ``problems``."""
    rules: list[HeaderRule] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _RULE.fullmatch(part)
        if match is None or not _HEADER_NAME.fullmatch(match[1]):
            problems.append(_problem(ROUTE_BY_HEADER_ANNOTATION, part, "HEADER=VALUE:TAG, as in X-Beta=yes:candidate"))
        elif len(rules) == _RULES_MAX:
            problems.append(_problem(ROUTE_BY_HEADER_ANNOTATION, part, f"at most {_RULES_MAX} rules"))
        else:
            rules.append(HeaderRule(header=match[1].lower(), value=match[2].strip(), tag=match[3]))
    return tuple(rules)


def _is_private(text: str, problems: list[str]) -> bool:
    if text not in ("public", "private"):
        problems.append(_problem(ACCESS_ANNOTATION, text, '"public" or "private"; the service is private until then'))
    return text != "public"


def _callers(text: str | None, problems: list[str]) -> CallerRule | None:
    if text is None:
        return None
    rule, wrong = caller_rule(text)
    problems += [
        _problem(ALLOW_FROM_ANNOTATION, entry, "namespace/NS, serviceaccount/NS/NAME, service/NS/NAME, or * alone")
        for entry in wrong
    ]
    return rule


def _jwt(text: str | None, problems: list[str]) -> JwtRule | None:
    if text is None:
        return None
    rule, wrong = jwt_rule(text)
    problems += [f"annotation {JWT_ANNOTATION}: {problem}" for problem in wrong]
    return rule


def _affinity(annotations: Mapping[str, str], problems: list[str]) -> SessionAffinity | None:
    key = AFFINITY_ANNOTATION if AFFINITY_ANNOTATION in annotations else SESSION_AFFINITY_ANNOTATION
    text = annotations.get(key, "")
    if text != annotations.get(SESSION_AFFINITY_ANNOTATION, text):
        problems.append(f"annotation {SESSION_AFFINITY_ANNOTATION} has no effect beside {AFFINITY_ANNOTATION}")
    if not text or text == "none":
        return None
    if text in ("cookie", "prefix"):
        return SessionAffinity(by_prefix=text == "prefix")
    name = text.removeprefix(_HEADER_PREFIX)
    if name != text and _HEADER_NAME.fullmatch(name):
        return SessionAffinity(header=name.lower())
    problems.append(_problem(key, text, '"cookie", "header:NAME", "prefix" or "none"'))
    return None


def _flag(annotations: Mapping[str, str], key: str, problems: list[str]) -> bool:
    text = annotations.get(key, "false")
    if text not in ("true", "false"):
        problems.append(_problem(key, text, '"true" or "false"'))
    return text == "true"


def read_tcp_ports(text: str) -> tuple[TcpPort, ...] | Problem:
    """Parse the TCP annotation: the ports in order, or the problem."""
    ports: dict[int, TcpPort] = {}
    for part in text.split(",") if text else ():
        word, slash, kind = part.strip().partition("/")
        number = port_of(word)
        if not number or kind not in ("", "tls") or bool(kind) != bool(slash):
            return Problem(where=_TCP, what=f'"{part.strip()}" in "{text}" is not right', expected=_TCP_EXPECTED)
        if number in ports:
            return Problem(where=_TCP, what=f'port {word} is repeated in "{text}"', expected="each port once")
        ports[number] = TcpPort(number=number, is_tls=bool(kind))
    if len(ports) > TCP_PORTS_MAX:
        return Problem(where=_TCP, what=f"{len(ports)} ports are too many", expected=f"at most {TCP_PORTS_MAX}")
    return tuple(ports.values())


def _tcp_ports(text: str, problems: list[str]) -> tuple[TcpPort, ...]:
    ports = read_tcp_ports(text)
    if isinstance(ports, Problem):
        problems.append(str(ports))
        return ()
    return ports


def _shared_hosts(text: str, problems: list[str]) -> tuple[SharedHost, ...]:
    shared: list[SharedHost] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        host, _, path = part.partition("/")
        if not is_host(host) or not is_path(f"/{path}"):
            expected = "HOST or HOST/PATH, as in shop.example.com/api or *.example.com"
            problems.append(_problem(PATHS_ANNOTATION, part, expected))
        elif len(shared) == HOSTS_MAX:
            problems.append(_problem(PATHS_ANNOTATION, part, f"at most {HOSTS_MAX} hosts"))
        else:
            shared.append(SharedHost(host=host, path=f"/{path}"))
    return tuple(shared)


def _named_port(text: str, problems: list[str]) -> int:
    number = port_of(text)
    if text and not number:
        problems.append(_problem(NAMED_PORT_ANNOTATION, text, f'a port from 1 to {PORT_MAX}, as in "8080"'))
    return number


def _problem(key: str, text: str, expected: str) -> str:
    return f'annotation {key} is "{text}", expected {expected}'


def route_digest(route: Object, rules: HostRules) -> str:
    """A digest of a Route's routing, 16 hexadecimal digits: hosts, tags, rollout, traffic and policy."""
    annotations = annotations_of(route)
    served: list[object] = [
        uid_of(route),
        labels_of(route).get(VISIBILITY_LABEL),
        annotations.get(CLAIMED_TAGS_ANNOTATION),
        tag_splits(annotations),
        nested(route, "status", "url"),
        nested(route, "status", "address", "url"),
        [[target.get(field) for field in _TARGET_FIELDS] for target in nested(route, "status", "traffic") or ()],
    ]
    served.append(
        [
            (claimed_host.host, claimed_host.since, claimed_host.is_public)
            for claimed_host in claimed_hosts(route, rules)
        ]
    )
    policy = route_policy(annotations)
    if policy != OPEN_POLICY:
        served.append(policy)
    return hashlib.sha256(msgspec.json.encode(served)).hexdigest()[:_LENGTH]
