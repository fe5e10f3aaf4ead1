import msgspec

from serving.cluster.kinds import SERVING_SERVICE
from serving.cluster.kubeclient import error_of
from serving.home.apiserver.paths import RequestTarget
from serving.home.apiserver.status import Fault, refusal, refusal_code, success
from serving.model.errors import AlreadyExists, Gone, Invalid, NotFound, Problem

TARGET = RequestTarget(kind=SERVING_SERVICE, namespace="default", name="hello")


def test_an_error_says_what_it_is_about() -> None:
    assert refusal(NotFound("no"), TARGET) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "no",
        "reason": "NotFound",
        "code": 404,
        "details": {"name": "hello", "group": "serving.knative.dev", "kind": "services"},
    }


def test_every_breach_is_a_cause() -> None:
    problems = [Problem(where="spec.a", what="wrong", expected="right")]
    details = refusal(Invalid("no", problems), TARGET)["details"]
    assert details["causes"] == [{"reason": "FieldValueInvalid", "message": "wrong", "field": "spec.a"}]
    assert details["kind"] == "Service"


def test_an_error_about_nothing_has_no_details() -> None:
    assert "details" not in refusal(Gone("old"))


def test_a_fault_has_the_reason_of_its_code() -> None:
    status = refusal(Fault(415, "what?"))
    assert (status["reason"], status["code"]) == ("UnsupportedMediaType", 415)


def test_a_fault_of_a_rare_code_has_its_phrase() -> None:
    assert refusal(Fault(418, "no"))["reason"] == "I'm a Teapot"


def test_what_is_gone_is_named() -> None:
    assert success(TARGET, "u")["details"] == {
        "name": "hello",
        "group": "serving.knative.dev",
        "kind": "services",
        "uid": "u",
    }


def test_errors_survive_the_way_to_the_client() -> None:
    for error in (
        NotFound("a"),
        AlreadyExists("b"),
        Gone("c"),
        Invalid("d", [Problem(where="e", what="f", expected="g")]),
    ):
        back = error_of(refusal_code(error), msgspec.json.encode(refusal(error, TARGET)))
        assert (type(back), str(back)) == (type(error), str(error))
