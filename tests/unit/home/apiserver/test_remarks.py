from serving.cluster.kinds import EVENT, SERVING_SERVICE
from serving.home.apiserver.remarks import record_remarks, remark_event
from serving.home.store.memory import MemoryCluster
from serving.model.objects import Object

ABOUT: Object = {"metadata": {"name": "a" * 253, "namespace": "default", "uid": "u", "resourceVersion": "7"}}
SAID = "spec.x: accepted without effect: because"


def test_an_event_names_its_object_and_fits_into_the_api() -> None:
    event = remark_event(SERVING_SERVICE, ABOUT, SAID * 100, now="2026-11-21T08:00:00Z")
    assert (len(event["metadata"]["name"]), len(event["message"])) == (253, 1024)
    assert event["involvedObject"] == {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "name": "a" * 253,
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "7",
    }


async def test_what_is_told_again_is_counted() -> None:
    cluster = MemoryCluster()
    for texts in ((SAID, "other"), (SAID,)):
        await record_remarks(cluster, SERVING_SERVICE, ABOUT, texts=texts)
    found = (await cluster.list(EVENT, "default")).items
    assert {one["message"]: one["count"] for one in found} == {SAID: 2, "other": 1}


async def test_what_cannot_be_kept_is_no_reason_to_fail() -> None:
    nowhere = {"metadata": {**ABOUT["metadata"], "namespace": "Not A Namespace"}}
    await record_remarks(MemoryCluster(), SERVING_SERVICE, nowhere, texts=[SAID])
