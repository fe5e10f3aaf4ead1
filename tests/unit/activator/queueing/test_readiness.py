"""Readiness probes of pods listed as not ready."""

import random
from collections.abc import Iterable

import pytest

from serving.activator.queueing.readiness import PodProbe, UnreadyPods
from serving.activator.queueing.slices import ServedPod

KEY = ("default", "hello-00001")
OTHER = ("default", "other-00001")


def pod(address: str, name: str = "") -> ServedPod:
    return ServedPod(address=address, namespace="default", name=name or f"pod-{address}")


def unready(*addresses: str) -> UnreadyPods:
    unready_pods = UnreadyPods()
    unready_pods.set_pods(KEY, {address: pod(address) for address in addresses}, 0.0)
    return unready_pods


def addresses(probes: Iterable[PodProbe]) -> list[str]:
    return [probe.pod.address for probe in probes]


def record_reply(unready_pods: UnreadyPods, address: str, now_s: float, *, is_ready: bool) -> bool:
    return unready_pods.record_reply(PodProbe(key=KEY, pod=pod(address)), now_s, is_ready=is_ready)


def test_pod_is_probed_immediately_while_requests_are_queued() -> None:
    unready_pods = unready("p", "q")
    assert unready_pods.probe_due_s(KEY, is_waiting=True) == 0.0
    assert addresses(unready_pods.due(KEY, 0.0, is_waiting=True)) == ["p", "q"]
    assert unready_pods.probe_due_s(KEY, is_waiting=True) is None


def test_announced_pod_is_probed_immediately_and_at_short_intervals() -> None:
    unready_pods, now_s = unready("p", "q"), 0.0
    unready_pods.hurry(OTHER, "p", 0.0)
    unready_pods.hurry(KEY, "unknown", 0.0)
    for now_s in (0.0, 3.0):
        unready_pods.due(KEY, now_s, is_waiting=True)
        for address in ("p", "q"):
            record_reply(unready_pods, address, now_s, is_ready=False)
    assert unready_pods.due(KEY, 3.05, is_waiting=True) == []
    unready_pods.hurry(KEY, "p", 3.05)
    assert addresses(unready_pods.due(KEY, 3.05, is_waiting=True)) == ["p"]
    # A probe in flight during the announcement is followed by another one shortly.
    record_reply(unready_pods, "p", 3.06, is_ready=False)
    assert unready_pods.probe_due_s(KEY, is_waiting=True) == pytest.approx(3.07)


def test_pods_are_not_probed_without_waiting_requests() -> None:
    unready_pods = unready("p")
    assert unready_pods.due(KEY, 0.0, is_waiting=False) == []
    assert unready_pods.probe_due_s(KEY, is_waiting=False) is None
    assert unready_pods.due(OTHER, 0.0, is_waiting=True) == []


def test_probe_interval_grows_from_10_ms_to_1_s() -> None:
    unready_pods, now_s, pauses = unready("p"), 0.0, []
    while now_s < 11.0:
        assert addresses(unready_pods.due(KEY, now_s, is_waiting=True)) == ["p"]
        record_reply(unready_pods, "p", now_s, is_ready=False)
        due_s = unready_pods.probe_due_s(KEY, is_waiting=True)
        assert due_s is not None
        pauses.append(due_s - now_s)
        assert unready_pods.due(KEY, now_s + 0.001, is_waiting=True) == []
        now_s = due_s
    assert pauses[:10] == pytest.approx([0.01] * 10)
    found_s = [sum(pauses[:count]) for count in range(1, len(pauses))]
    before_s = [at_s for at_s in found_s if at_s < 1.0]
    assert (sum(at_s < 0.3 for at_s in found_s), len(before_s)) == (21, 34)
    assert pauses[30] == pytest.approx(0.1 * found_s[29])
    assert max(pause for pause in pauses if pause < 1.0) == pytest.approx(0.1)
    assert pauses[-1] == pytest.approx(1.0)


def test_confirmed_pod_is_probed_each_second_until_a_probe_fails() -> None:
    unready_pods = unready("p")
    unready_pods.due(KEY, 0.0, is_waiting=True)
    assert record_reply(unready_pods, "p", 0.1, is_ready=True)
    assert unready_pods.confirmed(KEY) == {"p": pod("p")}
    assert unready_pods.probe_due_s(KEY, is_waiting=False) == 1.1
    assert addresses(unready_pods.due(KEY, 1.1, is_waiting=False)) == ["p"]
    assert not record_reply(unready_pods, "p", 1.2, is_ready=True)
    unready_pods.due(KEY, 2.2, is_waiting=False)
    assert record_reply(unready_pods, "p", 2.3, is_ready=False)
    assert unready_pods.confirmed(KEY) == {}


def test_confirmation_ends_when_the_pod_is_unlisted() -> None:
    unready_pods = unready("p")
    unready_pods.due(KEY, 0.0, is_waiting=True)
    record_reply(unready_pods, "p", 0.0, is_ready=True)
    unready_pods.set_pods(KEY, {}, 0.1)
    unready_pods.set_pods(KEY, {"p": pod("p")}, 0.2)
    assert unready_pods.confirmed(KEY) == {}


def test_confirmation_ends_when_another_pod_gets_the_address() -> None:
    unready_pods = unready("p")
    unready_pods.due(KEY, 0.0, is_waiting=True)
    record_reply(unready_pods, "p", 0.0, is_ready=True)
    unready_pods.set_pods(KEY, {"p": pod("p", "successor")}, 0.1)
    assert unready_pods.confirmed(KEY) == {}
    assert addresses(unready_pods.due(KEY, 0.1, is_waiting=True)) == ["p"]


@pytest.mark.parametrize("after", [{}, {"p": pod("p", "successor")}])
def test_late_probe_reply_of_a_replaced_pod_is_ignored(after: dict[str, ServedPod]) -> None:
    unready_pods = unready("p")
    unready_pods.due(KEY, 0.0, is_waiting=True)
    unready_pods.set_pods(KEY, after, 0.1)
    assert not record_reply(unready_pods, "p", 0.2, is_ready=True)
    assert (unready_pods.confirmed(KEY), unready_pods.probe_count) == ({}, 0)


def test_repeated_pod_list_preserves_probe_state() -> None:
    unready_pods = unready("p", "q")
    unready_pods.due(KEY, 0.0, is_waiting=True)
    record_reply(unready_pods, "p", 0.0, is_ready=True)
    unready_pods.set_pods(KEY, {"p": pod("p"), "q": pod("q")}, 0.1)
    assert unready_pods.confirmed(KEY) == {"p": pod("p")}
    assert unready_pods.due(KEY, 0.1, is_waiting=True) == []


def test_forget_removes_the_pods_of_a_revision() -> None:
    unready_pods = unready("p")
    unready_pods.forget(KEY)
    unready_pods.forget(OTHER)
    assert not unready_pods._pods


def test_probes_of_a_revision_are_bounded_and_the_rest_is_delayed() -> None:
    unready_pods = unready(*(f"p{place:02}" for place in range(20)))
    assert len(unready_pods.due(KEY, 0.0, is_waiting=True)) == 16
    assert unready_pods.due(KEY, 0.05, is_waiting=True) == []
    assert unready_pods.probe_due_s(KEY, is_waiting=True) == pytest.approx(0.1)
    record_reply(unready_pods, "p00", 0.1, is_ready=False)
    assert addresses(unready_pods.due(KEY, 0.1, is_waiting=True)) == ["p16"]


def test_probes_of_all_revisions_are_bounded() -> None:
    unready_pods = UnreadyPods()
    count = 0
    for place in range(12):
        key = ("default", f"r{place}")
        unready_pods.set_pods(
            key, {f"{place}.{pod_place}": pod(f"{place}.{pod_place}") for pod_place in range(16)}, 0.0
        )
        count += len(unready_pods.due(key, 0.0, is_waiting=True))
    assert (count, unready_pods.probe_count) == (128, 128)


def test_probe_count_is_exact_and_only_listed_pods_are_confirmed() -> None:
    draw = random.Random(7)
    unready_pods, flying, listed = UnreadyPods(), list[PodProbe](), dict[str, ServedPod]()
    for step in range(2000):
        now_s = step * 0.05
        match draw.randrange(4):
            case 0:
                listed = {f"p{n}": pod(f"p{n}", f"{n}-{draw.randrange(2)}") for n in range(3) if draw.random() < 0.7}
                unready_pods.set_pods(KEY, listed, now_s)
            case 1 if flying:
                unready_pods.record_reply(flying.pop(draw.randrange(len(flying))), now_s, is_ready=draw.random() < 0.5)
            case _:
                flying += unready_pods.due(KEY, now_s, is_waiting=draw.random() < 0.8)
        assert unready_pods.probe_count == len(flying)
        assert unready_pods.confirmed(KEY).items() <= listed.items()
