import struct

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.model.routehosts import named_address
from serving.home.containers.nameserver import NameResponses, failure, question_of, servers_of

ANSWERS = NameResponses(inner="10.138.1.2", public="10.139.1.2")
A, AAAA = 1, 28


def query(name: str, kind: int = A) -> bytes:
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def outcome(response: bytes | None) -> tuple[int, str]:
    """Code, and the address if there is one."""
    assert response is not None
    number, flags, questions, responses, *_ = struct.unpack_from("!HHHHHH", response)
    assert (number, questions, flags & 0x8000) == (7, 1, 0x8000)
    return flags & 0xF, ".".join(map(str, response[-4:])) if responses else ""


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("hello.default.svc.cluster.local", A, (0, "10.138.1.2")),
        ("Hello.Default.SVC.cluster.local", A, (0, "10.138.1.2")),
        ("hello.default.svc.cluster.local", AAAA, (0, "")),
        ("hello.default.svc.cluster.local.default.svc.cluster.local", A, (3, "")),
        ("example.org.svc.cluster.local", A, (0, "10.138.1.2")),
        ("hello.svc.cluster.local", A, (3, "")),
        ("cluster.local", A, (3, "")),
        ("hello.default.localhost", A, (0, "10.139.1.2")),
        ("shop.example.com", A, (0, "10.139.1.2")),
    ],
)
def test_names_of_services_lead_to_the_gateway(name: str, kind: int, expected: tuple[int, str]) -> None:
    assert outcome(ANSWERS.respond(query(name, kind), {"shop.example.com"})) == expected


def test_a_named_service_leads_to_the_address_of_its_namespace() -> None:
    named = {"api.default.svc.cluster.local"}
    expected = (0, named_address("10.138.1.2", "default"))
    assert outcome(ANSWERS.respond(query("api.default.svc.cluster.local"), (), named)) == expected
    assert outcome(ANSWERS.respond(query("web.default.svc.cluster.local"), (), named)) == (0, "10.138.1.2")


def test_other_names_are_asked_elsewhere() -> None:
    assert ANSWERS.respond(query("example.org"), {"shop.example.com"}) is None
    assert outcome(failure(query("example.org"))) == (2, "")


@pytest.mark.parametrize(
    "damaged",
    [b"", b"x", query("a.b")[:-3], query("a.b").replace(b"\x01a", b"\xc0a"), query("a")[:2] + b"\x80" + query("a")[3:]],
)
def test_what_is_no_query_is_refused(damaged: bytes) -> None:
    with pytest.raises(InvalidValue):
        question_of(damaged)


def test_servers_are_those_of_resolv_conf() -> None:
    assert servers_of("# x\nsearch a\nnameserver 1.2.3.4\nnameserver\nnameserver ::1\n") == ["1.2.3.4", "::1"]
