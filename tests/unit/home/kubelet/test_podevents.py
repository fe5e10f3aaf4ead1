from serving.home.kubelet.podevents import pod_event

POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}}


def test_an_event_says_what_happened_to_whom() -> None:
    event = pod_event(POD, reason="OOMKilled", message="too much", now="now")
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "n", "uid": "u"}
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "OOMKilled", "too much")


def test_the_same_words_are_said_once_and_others_again() -> None:
    names = {pod_event(POD, reason="r", message=one, now=now)["metadata"]["name"] for one, now in ("a1", "a2", "b3")}
    assert len(names) == 2
