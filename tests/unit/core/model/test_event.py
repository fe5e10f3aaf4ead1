from serving.core.model.event import About, EventText, about, digest, name_within, new_event, repeated

NOW = "2026-11-21T08:00:00Z"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"namespace": "default", "name": "hello", "uid": "u", "resourceVersion": "7"},
}


def test_event_has_all_fields_of_kubernetes() -> None:
    words = EventText(reason="Killed", message="too much", is_warning=True)
    assert new_event(about(POD), words, suffix="1", component="kubelet", now=NOW, instance="n1") == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "hello.1", "namespace": "default"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "hello",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "7",
        },
        "type": "Warning",
        "reason": "Killed",
        "message": "too much",
        "source": {"component": "kubelet"},
        "reportingComponent": "kubelet",
        "reportingInstance": "n1",
        "firstTimestamp": NOW,
        "lastTimestamp": NOW,
        "count": 1,
    }


def test_event_omits_unknown_fields_of_object() -> None:
    of = about({**POD, "metadata": {"namespace": "default", "name": "hello"}})
    assert of == About(api_version="v1", kind="Pod", namespace="default", name="hello")
    event = new_event(of, EventText(reason="Seen", message="so"), suffix="1", component="c", now=NOW)
    assert event["involvedObject"].keys() == {"apiVersion", "kind", "name", "namespace"}
    assert event["type"] == "Normal"


def test_event_name_and_message_are_truncated_to_api_limits() -> None:
    assert name_within("a" * 253, "b" * 16) == f"{'a' * 236}.{'b' * 16}"
    event = new_event(about(POD), EventText(reason="R", message="x" * 1024 + "y"), suffix="1", component="c", now=NOW)
    assert event["message"] == "x" * 1024


def test_digest_is_deterministic_and_separates_parts() -> None:
    assert digest("a", "b") == digest("a", "b")
    assert digest("ab", "") != digest("a", "b")
    assert len(digest()) == 16


def test_repeated_event_patch_has_version_and_incremented_count() -> None:
    text = {"metadata": {"name": "n", "resourceVersion": "7"}, "count": 2}
    assert repeated(text, now=NOW) == {"metadata": {"resourceVersion": "7"}, "count": 3, "lastTimestamp": NOW}
    assert repeated({"metadata": {}}, now=NOW)["count"] == 2
