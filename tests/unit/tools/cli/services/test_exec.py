from serving.core.model.objects import Object
from serving.tools.cli.services.exec import chosen_pod


def pod(revision: str, status: str) -> Object:
    return {
        "metadata": {"name": f"{revision}-{status}", "labels": {"serving.knative.dev/revision": revision}},
        "status": {"conditions": [{"type": "Ready", "status": status}]},
    }


def test_ready_pod_of_latest_ready_revision_is_chosen() -> None:
    old, new = pod("hello-00001", "True"), pod("hello-00002", "True")
    assert chosen_pod([old, new], revision="hello-00002") == new


def test_ready_pod_of_older_revision_precedes_unready_pod() -> None:
    old, new = pod("hello-00001", "True"), pod("hello-00002", "False")
    assert chosen_pod([old, new], revision="hello-00002") == old
    assert chosen_pod([new], revision="hello-00002") == new
