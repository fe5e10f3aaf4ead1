from typing import Any

from serving.tools.dashboard.marks import Mark, Marks

CREATED = "2026-11-27T10:00:00Z"
CREATED_S = 1795773600.0
KEY = "default/hello-00002"


def revision(ready: str = "Unknown", reason: str = "", created: str = CREATED) -> dict[str, Any]:
    conditions = [{"type": "Ready", "reason": reason}]
    return {"namespace": "default", "name": "hello-00002", "created": created, "ready": ready, "conditions": conditions}


def service(**shares: int) -> dict[str, Any]:
    traffic = [{"revision": name, "percent": percent} for name, percent in shares.items()]
    return {"namespace": "default", "name": "hello", "traffic": traffic}


def pod(restarts: int = 0, reason: str = "", oom_kills: int = 0) -> dict[str, Any]:
    return {
        "namespace": "default",
        "name": "hello-00002-a",
        "revision": "hello-00002",
        "restarts": restarts,
        "oom_kills": oom_kills,
        "reason": reason,
    }


def marked(kind: str, before: dict[str, Any] | None, after: dict[str, Any]) -> list[Mark]:
    marks = Marks()
    marks.change(kind, KEY, before=before, after=after)
    new_marks = marks.drain(5.0)
    assert marks.drain(6.0) == []
    return new_marks


def test_revision_creation_is_marked() -> None:
    assert marked("revision", None, revision()) == [
        Mark(key=KEY, at_s=CREATED_S, kind="deploy", text="hello-00002 is created")
    ]
    assert marked("revision", None, revision(created="")) == []


def test_revision_that_starts_to_fail_is_marked() -> None:
    failed = revision("False", "ExitCode1")
    assert marked("revision", revision("True"), failed) == [
        Mark(key=KEY, at_s=5.0, kind="failure", text="hello-00002 fails: ExitCode1")
    ]
    assert marked("revision", failed, failed) == []
    assert marked("revision", failed, revision("True")) == []
    assert marked("revision", revision("True"), revision("False"))[0].text == "hello-00002 fails"


def test_traffic_change_is_marked_at_all_its_revisions() -> None:
    marks = marked("service", service(a=100), service(a=90, b=10))
    assert [(mark.key, mark.kind, mark.text) for mark in marks] == [
        ("default/a", "deploy", "traffic: 90 % to a, 10 % to b"),
        ("default/b", "deploy", "traffic: 90 % to a, 10 % to b"),
    ]
    assert marked("service", service(a=100), service(a=100, b=0)) == []
    assert [mark.text for mark in marked("service", service(a=100), service())] == ["traffic: none"]


def test_container_restarts_and_oom_kills_are_marked() -> None:
    assert [mark.text for mark in marked("pod", pod(), pod(1, "OOMKilled"))] == [
        "a container of hello-00002-a restarts",
        "hello-00002-a: OOMKilled",
    ]
    (killed,) = marked("pod", pod(1), pod(2, oom_kills=2))
    assert killed.text == "hello-00002-a ran out of memory"
    assert marked("pod", pod(1), pod(1)) == []
    assert marked("pod", pod(), pod(reason="ContainerCreating")) == []


def test_decision_mark_uses_the_decision_time() -> None:
    marks = Marks()
    marks.decide({"key": KEY, "at_s": 2.0, "sentence": "1 → 2: panic", "wanted": 2})
    assert marks.drain(9.0) == [Mark(key=KEY, at_s=2.0, kind="decision", text="1 → 2: panic")]
