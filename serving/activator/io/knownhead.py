"""Extracts routing facts from a request's head, and caches them for repeated heads on a connection.

Input: a head, and the site of its host. Output: the request's tag, session and trace. The header Knative-Serving-Tag or
a header rule of the route selects the tag.
"""

import msgspec

from serving.activator.routing.probes import is_probe_agent
from serving.activator.routing.sites import Site, session_in_cookies, session_in_header
from serving.core.model.routepolicy import SessionAffinity
from serving.net.proxy.http1.requesthead import RequestHead, is_grpc_call

_BY_COOKIE = SessionAffinity()

HeadMarks = tuple[str | None, bytes, bytes]
"""The last values of Knative-Serving-Tag (None if missing), User-Agent and traceparent ("" if missing)."""


class KnownHead(msgspec.Struct, frozen=True, kw_only=True):
    """The routing facts of a head. They are outdated once ``Routes.turn`` differs from ``turn``.

    ``session`` is the number of the client's session, or None. ``starts_session``: the response sets a session cookie.
    ``is_grpc``: the request is a gRPC call. ``tag`` selects a revision of ``site``, None without one.
    """

    head: RequestHead
    turn: int
    site: Site
    tag: str | None
    traceparent: bytes
    session: int | None
    starts_session: bool
    is_grpc: bool


def marks_of(head: RequestHead) -> HeadMarks:
    """Extract the headers needed for routing, in one pass over the head's lines."""
    tag, agent, traceparent = None, b"", b""
    for line in head.lines:
        if line.name == b"user-agent":
            agent = line.value
        elif line.name == b"knative-serving-tag":
            tag = line.value.decode("latin-1")
        elif line.name == b"traceparent":
            traceparent = line.value
    return tag, agent, traceparent


def known_head(head: RequestHead, site: Site, marks: HeadMarks, *, turn: int) -> KnownHead:
    """The routing facts of a head. ``site`` is the site of its host, ``marks`` its routing headers."""
    tag, _, traceparent = marks
    policy = site.policy
    if tag is None and policy.header_rules:
        tag = _tag_by_rule(head, site)
    affinity = policy.affinity
    session = None if affinity is None else _session(head, affinity)
    return KnownHead(
        head=head,
        turn=turn,
        site=site,
        tag=tag,
        traceparent=traceparent,
        session=session,
        starts_session=affinity == _BY_COOKIE and session is None,
        is_grpc=is_grpc_call(head),
    )


def _tag_by_rule(head: RequestHead, site: Site) -> str | None:
    """The tag of the first header rule that the request satisfies, if the route has this tag; else None."""
    for rule in site.policy.header_rules:
        values = head.values(rule.header.encode())
        if rule.tag in site.tags and any(rule.matches(value.decode("latin-1")) for value in values):
            return rule.tag
    return None


def _session(head: RequestHead, affinity: SessionAffinity) -> int | None:
    if affinity.by_prefix or affinity.client_s:
        return None
    if affinity.header:
        return session_in_header(head.values(affinity.header.encode()))
    return session_in_cookies(head.values(b"cookie"))


def named_revision(head: RequestHead) -> tuple[list[bytes], list[bytes]]:
    """The namespaces and the names of revisions in the two headers by which a Gateway names a revision.

    Each list has the values of one header: one value in a valid request.
    """
    return [*head.values(b"knative-serving-namespace")], [*head.values(b"knative-serving-revision")]


def without_agent(head: RequestHead) -> RequestHead:
    """The head without a User-Agent that makes a queue-proxy treat the request as a probe."""
    return head.without(lambda line: line.name == b"user-agent" and is_probe_agent(line.value))
