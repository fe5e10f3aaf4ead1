"""Announced pods in the router."""

import random

import pytest

from serving.activator.queueing.router import RequestRouter, announce
from serving.activator.queueing.slices import ServedPod, ServedSlice
from serving.core.settings.activator import ActivatorSettings
from tests.unit.activator.queueing.test_router import KEY, SETTINGS, revision


def announced_pod(address: str = "p") -> ServedPod:
    return ServedPod(address=address, namespace="default", name=f"pod-{address}")


def announcing(settings: ActivatorSettings = SETTINGS, *, kubelet_decides: bool = False) -> RequestRouter[str]:
    router = RequestRouter[str](settings, random=random.Random(1).random)
    router.set_revision(revision(kubelet_decides=kubelet_decides), 0.0)
    return router


def test_an_announced_pod_is_probed_and_then_gets_requests_without_a_slice() -> None:
    router = announcing()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    probes = router.tick(1.0).probes
    assert [probe.pod for probe in probes] == [announced_pod()]
    outcome = router.probed(probes[0], 1.01, is_ready=True)
    assert [(one.request, one.pod) for one in outcome.dispatches] == [("r", announced_pod())]


def test_an_announced_pod_without_the_proof_gets_nothing() -> None:
    router = announcing()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    [probe] = router.tick(1.0).probes
    assert router.probed(probe, 1.01, is_ready=False).dispatches == ()


def test_an_announced_pod_that_no_slice_lists_is_dropped() -> None:
    router = announcing()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    [probe] = router.tick(1.0).probes
    router.probed(probe, 1.01, is_ready=True)
    assert router.directory.pods_of(KEY)
    for at_s in (2.0, 3.0, 4.0, 5.0, 5.9):
        router.report(at_s)
        router.tick(at_s)
    assert router.directory.pods_of(KEY)
    assert router.schedule.next_due_s() == 6.0, "its end is a due time"
    router.tick(6.0)
    assert router.directory.pods_of(KEY) == {}


def test_a_slice_confirms_an_announced_pod() -> None:
    router = announcing()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    [probe] = router.tick(1.0).probes
    router.probed(probe, 1.01, is_ready=True)
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=(), unready=(announced_pod(),)), 2.0)
    router.tick(60.0)
    assert router.directory.pods_of(KEY) == {"p": announced_pod()}, "it stays confirmed beyond its time"
    assert len(router.directory.announced) == 0


def test_an_announcement_comes_before_the_first_request() -> None:
    router = announcing()
    announce(router, KEY, announced_pod(), now_s=1.0)
    router.arrive(KEY, "r", 2.0)
    assert [probe.pod for probe in router.tick(2.0).probes] == [announced_pod()]


@pytest.mark.parametrize(
    ("router", "why"),
    [
        (announcing(ActivatorSettings(announced_pod_max_s=0.0)), "switched off"),
        (announcing(ActivatorSettings(probe_unready_pods=False)), "nothing is probed"),
        (announcing(kubelet_decides=True), "a probe alone does not say that it is ready"),
        (RequestRouter[str](SETTINGS, random=random.Random(1).random), "no such revision"),
    ],
)
def test_announcements_without_effect(router: RequestRouter[str], why: str) -> None:
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    assert not router.tick(1.0).probes, why


def test_a_pod_that_a_slice_lists_as_ready_needs_no_announcement() -> None:
    router = announcing()
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=(announced_pod(),)), 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    assert len(router.directory.announced) == 0


def test_a_revision_that_goes_takes_its_announcements_with_it() -> None:
    router = announcing()
    announce(router, KEY, announced_pod(), now_s=1.0)
    router.remove_revision(KEY, 1.5)
    assert len(router.directory.announced) == 0
