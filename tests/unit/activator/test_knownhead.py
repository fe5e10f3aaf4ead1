"""Routing data read from a request head."""

import pytest

from serving.activator.io.knownhead import KnownHead, known_head, marks_of
from serving.activator.routing.sites import Site
from serving.core.model.knative import ROUTE_BY_HEADER_ANNOTATION, SESSION_AFFINITY_ANNOTATION
from serving.core.model.routepolicy import route_policy
from serving.core.traffic.policy import session_number
from serving.net.proxy.http1.requesthead import RequestHead, read_request_head


def head(*lines: str) -> RequestHead:
    return read_request_head("\r\n".join(["GET / HTTP/1.1", "Host: hello", *lines]).encode(), header_count_max=100)


def known_at(request_head: RequestHead, there: Site, *, turn: int) -> KnownHead:
    return known_head(request_head, there, marks_of(request_head), turn=turn)


def site(**annotations: str) -> Site:
    keys = {"rules": ROUTE_BY_HEADER_ANNOTATION, "affinity": SESSION_AFFINITY_ANNOTATION}
    policy = route_policy({keys[name]: text for name, text in annotations.items()})
    tagged = Site(route="default/hello", namespace="default", revisions=("hello-00002",), bounds=(100,))
    return Site(
        route="default/hello",
        namespace="default",
        revisions=("hello-00001",),
        bounds=(100,),
        tags={"candidate": tagged},
        policy=policy,
    )


@pytest.mark.parametrize(
    ("lines", "tag"),
    [
        (["X-Beta: yes"], "candidate"),
        (["X-Beta: no"], None),
        (["X-Beta: no", "X-Beta: yes"], "candidate"),
        ([], None),
        (["X-Tier: any"], None),
        (["X-Beta: yes", "Knative-Serving-Tag: other"], "other"),
    ],
)
def test_a_header_selects_a_tag_that_the_route_has(lines: list[str], tag: str | None) -> None:
    known = known_at(head(*lines), site(rules="X-Beta=yes:candidate, X-Tier=*:gold"), turn=3)
    assert known.tag == tag
    assert known.turn == 3
    assert known.session is None
    assert not known.starts_session


def test_a_cookie_continues_a_session_and_its_absence_starts_one() -> None:
    known = known_at(head("Cookie: serving-session=abc"), site(affinity="cookie"), turn=0)
    assert (known.session, known.starts_session) == (session_number(b"abc"), False)
    known = known_at(head(), site(affinity="cookie"), turn=0)
    assert (known.session, known.starts_session) == (None, True)


def test_prefix_affinity_uses_no_session_cookie() -> None:
    known = known_at(head("Cookie: serving-session=abc"), site(affinity="prefix"), turn=0)
    assert (known.session, known.starts_session) == (None, False)


def test_missing_affinity_header_starts_no_session() -> None:
    assert known_at(head("X-User: ada"), site(affinity="header:X-User"), turn=0).session == session_number(b"ada")
    known = known_at(head(), site(affinity="header:X-User"), turn=0)
    assert (known.session, known.starts_session) == (None, False)


def test_traceparent_and_user_agent_are_read() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    read = head("User-Agent: curl", f"traceparent: {trace}")
    assert known_at(read, site(), turn=0).traceparent == trace.encode()
    assert marks_of(read)[1] == b"curl"
    assert marks_of(head())[1] == b""


def test_grpc_request_is_recognized_by_its_content_type() -> None:
    assert known_at(head("Content-Type: application/grpc+proto"), site(), turn=0).is_grpc
    assert not known_at(head("Content-Type: application/json"), site(), turn=0).is_grpc
