"""Apps that should run the queue-proxy in their process, but do not."""

import pytest

from serving.controller.revisions.deployment import desired_deployment
from serving.controller.revisions.inprocess import is_own_proxy, missing_queue_proxy, proxy_wait_s
from serving.controller.revisions.revision import RevisionContext, reconcile_revision
from serving.controller.revisions.revision_status import RevisionChildren
from serving.core.model.objects import Object, timestamp_s
from tests.unit.controller.builders import NOW, SCALING, a_pod, a_revision, condition_values, stored, with_ready
from tests.unit.controller.revisions.test_revision_status import status_of
from tests.unit.controller.revisions.test_sidecar import SIDECAR
from tests.unit.controller.revisions.test_sidecar_in_process import INSIDE

LONG_AGO, JUST_NOW = "2026-11-21T04:00:01Z", "2026-11-21T04:00:50Z"
WAIT_S = 30.0


def own_proxy() -> Object:
    deployment = desired_deployment(
        a_revision(metadata=INSIDE), replica_count=1, progress_deadline_s=600.0, sidecar=SIDECAR
    )
    return stored({**deployment, "status": {"replicas": 1}})


def running(started_at: str = LONG_AGO, *, name: str = "user-container", ready: bool = False) -> Object:
    return a_pod(containerStatuses=[{"name": name, "ready": ready, "state": {"running": {"startedAt": started_at}}}])


def missing(deployment: Object | None, *pods: Object) -> str:
    return missing_queue_proxy(deployment, pods, wait_s=WAIT_S, now_s=timestamp_s(NOW))


def test_long_running_unready_container_reports_missing_queue_proxy() -> None:
    text = missing(own_proxy(), running())
    assert text.startswith("container user-container runs, and no queue-proxy in its process was ready within 30 s.")
    assert "`python -m serving.asgi MODULE:APP`" in text
    assert "serving.dev/queue-proxy=in-process" in text


@pytest.mark.parametrize(
    "pod",
    [
        running(JUST_NOW),
        running(ready=True),
        running(name="side"),
        a_pod(containerStatuses=[{"name": "user-container", "state": {"waiting": {}}}]),
        a_pod(),
    ],
)
def test_recent_ready_or_other_container_is_not_reported(pod: Object) -> None:
    assert missing(own_proxy(), pod) == ""


def test_sidecar_queue_proxy_is_not_reported_missing() -> None:
    beside = desired_deployment(a_revision(), replica_count=1, progress_deadline_s=1.0, sidecar=SIDECAR)
    assert not is_own_proxy(beside)
    assert not is_own_proxy(None)
    assert missing(beside, running()) == missing(None, running()) == ""
    assert missing_queue_proxy(own_proxy(), [running()], wait_s=WAIT_S, now_s=None) == ""


@pytest.mark.parametrize(("deadline_s", "wait_s"), [(600.0, 60.0), (1800.0, 180.0), (20.0, 10.0)])
def test_queue_proxy_wait_scales_with_progress_deadline(deadline_s: float, wait_s: float) -> None:
    assert proxy_wait_s(deadline_s) == wait_s


def test_missing_queue_proxy_fails_new_but_not_ready_revision() -> None:
    revision, now = a_revision(metadata=INSIDE), "2026-11-21T04:01:05Z"
    status = status_of(revision, own_proxy(), running(), now=now)
    assert condition_values(status, "Ready")[:2] == ("False", "NoQueueProxy")
    assert condition_values(status, "ContainerHealthy")[:2] == ("False", "NoQueueProxy")
    assert condition_values(status_of(revision, own_proxy(), running()), "Ready")[0] == "Unknown"
    assert (
        condition_values(status_of(with_ready(revision, "True"), own_proxy(), running(), now=now), "Ready")[0] == "True"
    )


@pytest.mark.parametrize(("is_own", "again_s"), [(True, 61), (False, 601)])
def test_revision_is_reconciled_again_after_queue_proxy_wait(is_own: bool, again_s: float) -> None:
    revision = a_revision(metadata=INSIDE if is_own else {})
    deployment = desired_deployment(revision, replica_count=1, progress_deadline_s=600.0, sidecar=SIDECAR)
    children = RevisionChildren(deployment=stored({**deployment, "status": {}}))
    context = RevisionContext(children=children, private_service=None)
    assert reconcile_revision(revision, context, scaling=SCALING, now=NOW, sidecar=SIDECAR).again_after_s == again_s
