"""The router of all requests and revisions: events in, outcomes out."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.queueing.outcome import Dispatch, Rejection, RejectionReason, RevisionWake, RoutingOutcome
from serving.activator.queueing.readiness import PodProbe
from serving.activator.queueing.revisions import ServedRevision, fallback_of
from serving.activator.queueing.router import RequestRouter, announce
from serving.activator.queueing.schedule import TickSchedule
from serving.activator.queueing.slices import ServedPod, ServedSlice
from serving.activator.queueing.throttler import RevisionThrottler
from serving.activator.queueing.wake import Poke, PokeReason, RevisionLoad
from serving.core.model.knative import ServingState
from serving.core.model.scaledworkload import PLACEHOLDER, ColdStart, PlaceholderResponse, WorkloadService
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.places import Queued
from serving.core.traffic.prefixes import Prompt
from tests.invariants import validate

KEY = ("default", "hello-00001")
SETTINGS = ActivatorSettings(queue_depth_max=3, queue_bytes_max=100, queue_wait_max_s=1.5)

A = ("default", "a")
B = ("default", "b")


def load_of(concurrency: float, count: float, *, windowed: tuple[float, float]) -> RevisionLoad:
    return RevisionLoad(
        concurrency=concurrency,
        request_count=count,
        window_concurrency=windowed[0],
        window_request_count=windowed[1],
    )


FIRST = Poke(load=load_of(1, 1, windowed=(0.0, 0.0)), reason=PokeReason.FIRST)
REJECTED = Poke(load=load_of(1, 1, windowed=(1.0, 1.0)), reason=PokeReason.FIRST)


def revision(
    state: ServingState = ServingState.ACTIVE,
    *,
    failure: str | None = None,
    delay: str | None = None,
    slots: int = 1,
    desired: int = 0,
    kubelet_decides: bool = False,
) -> ServedRevision:
    return ServedRevision(
        key=KEY,
        resource_version="7",
        serving_state=state,
        target_concurrency=0.7 * (slots or 100),
        container_concurrency=slots,
        failure=failure,
        delay=delay,
        kubelet_decides=kubelet_decides,
        desired_count=desired,
    )


def pod(address: str) -> ServedPod:
    return ServedPod(address=address, namespace="default", name=f"pod-{address}")


def pods(*addresses: str, name: str = "s", unready: str = "") -> ServedSlice:
    key = f"default/{name}"
    return ServedSlice(key=key, revision=KEY, pods=tuple(map(pod, addresses)), unready=tuple(map(pod, unready)))


def probe(address: str) -> PodProbe:
    return PodProbe(key=KEY, pod=pod(address))


def new_router(*addresses: str, facts: ServedRevision | None = None, is_known: bool = True) -> RequestRouter[str]:
    router = RequestRouter[str](SETTINGS, random=lambda: 0.0)
    if is_known:
        router.set_revision(facts or revision(), 0.0)
    if addresses:
        router.set_slice(pods(*addresses), 0.0)
    return router


def arrive_all(router: RequestRouter[str], *requests: str, now_s: float = 0.0) -> list[str]:
    responses = [router.arrive(KEY, request, now_s) for request in requests]
    return shown(router, [response for response in responses if isinstance(response, Dispatch)])


def shown(router: RequestRouter[str], go: Iterable[Dispatch[str]]) -> list[str]:
    validate(router)
    return [f"{dispatch.request}@{dispatch.pod.address}" for dispatch in go]


def level_of(router: RequestRouter[str]) -> int:
    return sum(level for _, level, _ in router.inside())


def rejected(outcome: RoutingOutcome[str]) -> list[tuple[str, RejectionReason]]:
    return [(rejection.request, rejection.reason) for rejection in outcome.rejections]


def test_request_is_dispatched_to_a_ready_pod() -> None:
    assert new_router("p").arrive(KEY, "a", 0.0) == Dispatch(request="a", pod=pod("p"))


def test_request_without_a_pod_is_queued() -> None:
    router = new_router()
    assert isinstance(router.arrive(KEY, "a", 0.0), Queued)
    assert router.schedule.has_pending_work


def test_workload_lowers_its_queue_depth_and_wait() -> None:
    router = new_router(facts=msgspec.structs.replace(revision(), waiting_max=1, wait_max_s=0.5))
    arrive_all(router, "a")
    rejection = router.arrive(KEY, "b", 0.1)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is RejectionReason.QUEUE_COUNT
    assert [each_rejection.text for each_rejection in router.tick(0.6).rejections] == ["no pod was free within 0.5 s"]


def test_workload_queue_bounds_never_exceed_the_activators() -> None:
    facts = msgspec.structs.replace(revision(), waiting_max=9, wait_max_s=9.0)
    assert facts.bounded(SETTINGS) == SETTINGS == revision().bounded(SETTINGS)


def test_first_queued_request_pokes_and_flips() -> None:
    router = new_router(facts=revision(ServingState.RESERVE))
    arrive_all(router, "a")
    assert router.tick(0.0).wakes == [RevisionWake(key=KEY, flip=True, poke=FIRST, resource_version="7")]


def test_simultaneous_requests_are_reported_in_one_poke() -> None:
    router = new_router()
    arrive_all(router, "a", "b", "c")
    (woken,) = router.tick(0.0).wakes
    assert woken.poke is not None
    assert woken.poke.load == load_of(3, 3, windowed=(0.0, 0.0))


def test_flip_is_retried_when_due() -> None:
    router = new_router(facts=revision(ServingState.RESERVE))
    arrive_all(router, "a")
    router.tick(0.0)
    assert router.schedule.next_due_s() == 0.1
    assert router.tick(0.05).wakes == []
    assert [woken.flip for woken in router.tick(0.1).wakes] == [True]


def test_new_pods_receive_queued_requests_oldest_first() -> None:
    router = new_router()
    arrive_all(router, "a", "b", "c")
    outcome = router.set_slice(pods("p", "q"), 0.5)
    assert shown(router, outcome.dispatches) == ["a@p", "b@q"]
    assert [dispatch.waited_s for dispatch in outcome.dispatches] == [0.5, 0.5]


def test_incomplete_requests_of_one_client_leave_slots_to_others() -> None:
    router = new_router("a", "b")
    arrived = [router.arrive(KEY, request, 0.0, client="10.0.0.1") for request in ("r0", "r1")]
    assert [isinstance(admission, Dispatch) for admission in arrived] == [True, False]
    assert isinstance(router.arrive(KEY, "other", 0.0, client="10.0.0.2"), Dispatch)


def test_a_parked_request_with_a_complete_body_is_dispatched_and_counts_once() -> None:
    router = new_router("a", "b")
    for request in ("r0", "r1"):
        router.arrive(KEY, request, 0.0, client="10.0.0.1")
    assert isinstance(router.complete(KEY, "r1", 0.0), Dispatch)
    assert router.complete(KEY, "r1", 0.0) is None
    assert router.complete(("default", "gone"), "r1", 0.0) is None
    assert [load.request_count for _, load in router.report(1.0)] == [2]


def test_directory_maps_a_revision_to_its_configuration() -> None:
    directory = new_router("p").directory
    directory.set_revision(msgspec.structs.replace(revision(), configuration="hello"))
    assert directory.configuration_of(KEY) == "hello"
    assert directory.configuration_of(("default", "gone")) == ""


def test_an_unread_response_is_recorded_for_a_known_revision_only() -> None:
    router_of_one = new_router("p")
    arrive_all(router_of_one, "a")
    router_of_one.tick(0.0)
    router_of_one.record_reading_pause(("default", "gone"), "a", 0.1, is_held=True)
    assert not router_of_one.schedule.has_pending_work
    router_of_one.record_reading_pause(KEY, "a", 0.1, is_held=True)
    assert router_of_one.schedule.has_pending_work


def test_finished_request_frees_its_slot_for_the_next() -> None:
    router = new_router("p")
    arrive_all(router, "a", "b")
    assert shown(router, router.finish(KEY, "a", 0.1)) == ["b@p"]


def test_finish_and_requeue_of_unknown_request_have_no_effect() -> None:
    router = new_router("p")
    assert [router.finish(KEY, "a", 0.0), router.requeue(KEY, "a", 0.0)] == [(), ()]


def test_request_queued_after_an_empty_queue_pokes_as_first() -> None:
    router = new_router("p")
    arrive_all(router, "a", "b")
    router.tick(0.0)
    router.finish(KEY, "a", 0.1)
    arrive_all(router, "c", now_s=0.2)
    assert [woken.poke is not None and woken.poke.reason for woken in router.tick(0.2).wakes] == [PokeReason.FIRST]


def test_load_above_target_pokes_without_queued_requests() -> None:
    router = new_router("p", facts=revision(slots=10))
    arrive_all(router, *"abcdefg")
    router.tick(0.0)
    assert not router.schedule.has_pending_work
    arrive_all(router, "h")
    assert [woken.poke is not None and woken.poke.reason for woken in router.tick(0.1).wakes] == [PokeReason.EXCEEDED]


def test_removed_slice_removes_its_pods() -> None:
    router = new_router("p")
    arrive_all(router, "a")
    router.remove_slice("default/s", 0.0)
    assert (arrive_all(router, "b"), router.directory.pods_of(KEY), level_of(router)) == ([], {}, 2)


def test_removing_an_unknown_slice_has_no_effect() -> None:
    assert new_router().remove_slice("default/s", 0.0) == RoutingOutcome()


def test_directory_lists_pods_without_requests() -> None:
    assert [new_router("p").directory.pods_of(KEY), new_router().directory.pods_of(KEY)] == [{"p": pod("p")}, {}]


@pytest.mark.parametrize("requests", ["", "a"])
def test_session_pod_is_known_with_and_without_requests(requests: str) -> None:
    router = new_router("p")
    arrive_all(router, *requests)
    assert [router.has_pod(KEY, "p"), router.has_pod(KEY, "q")] == [True, False]


def test_the_queue_is_bounded_in_count() -> None:
    router = new_router()
    arrive_all(router, "a", "b", "c")
    response = router.arrive(KEY, "d", 0.0)
    assert response == Rejection(
        request="d",
        reason=RejectionReason.QUEUE_COUNT,
        text="pending request queue full: 3 requests with 0 bytes wait already",
    )


def test_the_queue_is_bounded_in_bytes() -> None:
    response = new_router().arrive(KEY, "a", 0.0, weight_bytes=101)
    assert isinstance(response, Rejection)
    assert response.reason is RejectionReason.QUEUE_BYTES


def test_request_is_rejected_after_the_maximum_wait() -> None:
    router = new_router()
    arrive_all(router, "a")
    router.tick(0.0)
    assert router.schedule.next_due_s() == 1.5
    assert rejected(router.tick(1.5)) == [("a", RejectionReason.WAITED)]


def test_exception_in_one_revision_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    router, other, readmitted = new_router(), ("default", "other-00001"), RevisionThrottler.readmit

    def readmit(throttler: RevisionThrottler[str], now_s: float) -> Sequence[Dispatch[str]]:
        if throttler.key == other:
            raise OverflowError("a fault")
        return readmitted(throttler, now_s)

    router.arrive(other, "b", 0.0)
    arrive_all(router, "a")
    monkeypatch.setattr(RevisionThrottler, "readmit", readmit)
    outcome = router.tick(1.5)
    assert rejected(outcome) == [("a", RejectionReason.WAITED)]
    assert [(key, type(error)) for key, error in outcome.failures] == [(other, OverflowError)]


def test_requeued_request_is_dispatched_to_another_pod() -> None:
    router = new_router("p", "q")
    arrive_all(router, "a")
    assert shown(router, router.requeue(KEY, "a", 0.0)) == ["a@q"]


def test_ejected_pod_is_retried_when_due() -> None:
    router = new_router("p")
    arrive_all(router, "a")
    assert list(router.requeue(KEY, "a", 0.0)) == []
    router.tick(0.0)
    assert router.schedule.next_due_s() == 0.05
    assert shown(router, router.tick(0.05).dispatches) == ["a@p"]


def test_app_without_readiness_probe_receives_requests_once_it_listens() -> None:
    router = new_router(facts=msgspec.structs.replace(revision(slots=0), is_workload=True))
    app = msgspec.structs.replace(pod("p"), scheme="http")
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=(app,)), 0.0)
    arrive_all(router, "a")
    router.requeue(KEY, "a", 1.0)
    router.tick(1.0)
    assert router.schedule.next_due_s() == 1.01
    connection = PodProbe(key=KEY, pod=app)
    assert router.tick(1.01).probes == [connection]
    assert router.probed(connection, 1.02, is_ready=False).dispatches == ()
    # A tenth of the time since the first failure, at least 10 ms.
    router.tick(1.02)
    assert router.schedule.next_due_s() == 1.03
    assert router.tick(1.03).probes == [connection]
    assert shown(router, router.probed(connection, 1.04, is_ready=True).dispatches) == ["a@p"]
    router.finish(KEY, "a", 1.1)
    # A pod that has responded is not starting.
    arrive_all(router, "b", now_s=2.0)
    router.requeue(KEY, "b", 2.0)
    assert router.tick(2.04).probes == []
    assert shown(router, router.tick(2.05).dispatches) == ["b@p"]
    assert router.probed(PodProbe(key=("default", "gone"), pod=app), 3.0, is_ready=True).dispatches == ()


def test_failed_revision_rejects_with_its_message_and_is_poked() -> None:
    router = new_router(facts=revision(failure="ExitCode1: it died"))
    response = router.arrive(KEY, "a", 0.0)
    assert response == Rejection(
        request="a",
        reason=RejectionReason.FAILED,
        text="revision hello-00001 cannot serve",
        detail="ExitCode1: it died",
    )
    assert router.tick(0.0).wakes == [RevisionWake(key=KEY, flip=False, poke=REJECTED, resource_version="7")]


def test_failed_revision_uses_its_remaining_pods() -> None:
    assert arrive_all(new_router("p", facts=revision(failure="one of two pods died")), "a") == ["a@p"]


def test_queued_requests_are_rejected_when_the_revision_fails() -> None:
    router = new_router()
    arrive_all(router, "a", "b")
    outcome = router.set_revision(revision(failure="it died"), 0.1)
    assert rejected(outcome) == [("a", RejectionReason.FAILED), ("b", RejectionReason.FAILED)]


def test_requests_wait_for_a_node_and_time_out_with_the_reason() -> None:
    delayed = revision(delay="Unschedulable: 0/1 nodes are available")
    router = new_router(facts=delayed)
    arrive_all(router, "a")
    assert rejected(router.set_revision(delayed, 0.1)) == []
    turned = router.tick(1.5).rejections
    text, detail = "no pod was free within 1.5 s", "Unschedulable: 0/1 nodes are available"
    assert turned == [Rejection(request="a", reason=RejectionReason.WAITED, text=text, detail=detail)]


def test_retired_revision_rejects_requests_and_is_not_woken() -> None:
    router = new_router(facts=revision(ServingState.RETIRED))
    response = router.arrive(KEY, "a", 0.0)
    assert isinstance(response, Rejection)
    assert (response.reason, router.tick(0.0).wakes) == (RejectionReason.RETIRED, [])


def test_request_for_a_revision_not_yet_known_is_queued() -> None:
    router = new_router("p", is_known=False)
    arrive_all(router, "a")
    assert router.tick(0.0) == RoutingOutcome(dispatches=[], rejections=[], wakes=[], probes=[])
    assert shown(router, router.set_revision(revision(), 0.2).dispatches) == ["a@p"]


def test_request_for_deleted_revision_is_rejected_until_it_exists_again() -> None:
    router = new_router()
    router.set_revision(revision(), 0.0)
    router.remove_revision(KEY, 0.0)
    rejection = router.arrive(KEY, "a", 0.1)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.text) == (RejectionReason.UNKNOWN, "there is no revision hello-00001")
    router.set_revision(revision(), 0.2)
    assert isinstance(router.arrive(KEY, "b", 0.3), Queued)


def test_later_request_for_an_unknown_revision_is_rejected_immediately() -> None:
    router = new_router(is_known=False)
    assert isinstance(router.arrive(KEY, "a", 0.0), Queued)
    assert [rejection.request for rejection in router.tick(60.0).rejections] == ["a"]
    assert isinstance(router.arrive(KEY, "b", 60.0), Rejection)


def test_remembered_deleted_revisions_are_bounded() -> None:
    router = new_router()
    for number in range(1025):
        router.remove_revision(("default", f"r{number}"), 0.0)
    assert [router.directory.is_gone(("default", f"r{number}")) for number in (0, 1, 1024)] == [False, True, True]


def test_request_for_unknown_revision_is_rejected_after_its_wait() -> None:
    settings = msgspec.structs.replace(SETTINGS, queue_wait_max_s=300.0, revision_wait_max_s=1.0)
    router = RequestRouter[str](settings, random=lambda: 0.0)
    router.arrive(KEY, "a", 0.0)
    router.tick(0.0)
    assert router.schedule.next_due_s() == 1.0
    assert rejected(router.tick(1.0)) == [("a", RejectionReason.UNKNOWN)]


def test_the_wait_for_an_unknown_revision_can_change_while_requests_wait() -> None:
    router = RequestRouter[str](SETTINGS, random=lambda: 0.0)
    router.settings = msgspec.structs.replace(SETTINGS, revision_wait_max_s=0.5)
    router.arrive(KEY, "a", 0.0)
    router.tick(0.0)
    assert router.schedule.next_due_s() == 0.5
    assert rejected(router.tick(0.5)) == [("a", RejectionReason.UNKNOWN)]


def test_removed_revision_rejects_queued_requests_and_finishes_running_ones() -> None:
    router = new_router("p")
    arrive_all(router, "a", "b")
    outcome = router.remove_revision(KEY, 0.1)
    assert (rejected(outcome), level_of(router), router.directory.revision(KEY)) == (
        [("b", RejectionReason.UNKNOWN)],
        1,
        None,
    )
    assert not router.finish(KEY, "a", 0.2)


def test_removing_a_revision_without_requests_rejects_nothing() -> None:
    router = new_router()
    assert [router.remove_revision(KEY, 0.0), router.remove_revision(KEY, 0.0)] == [RoutingOutcome(), RoutingOutcome()]


def test_removal_of_an_unknown_revision_leaves_its_requests_queued() -> None:
    router = new_router(is_known=False)
    arrive_all(router, "a")
    assert (router.remove_revision(KEY, 0.0), level_of(router)) == (RoutingOutcome(), 1)


def test_a_report_reports_the_load_of_each_revision() -> None:
    router = new_router("p")
    arrive_all(router, "a")
    assert router.report(1.0) == [(KEY, load_of(1.0, 1.0, windowed=(1.0, 1.0)))]


def test_report_excludes_load_reported_by_a_poke() -> None:
    router = new_router()
    arrive_all(router, "a", "b")
    router.tick(0.0)
    assert router.report(1.0) == [(KEY, load_of(0.0, 0.0, windowed=(2.0, 2.0)))]
    assert router.report(2.0) == [(KEY, load_of(2.0, 0.0, windowed=(2.0, 0.0)))]


def test_idle_revision_is_removed_after_its_last_report() -> None:
    router = new_router("p")
    arrive_all(router, "a")
    router.finish(KEY, "a", 0.5)
    assert (len(router.report(1.0)), router.report(2.0)) == (1, [])
    assert repr(router) == "RequestRouter(1 revisions, 0 with requests, 0 run, 0 wait)"


def test_due_tick_of_a_removed_revision_has_no_effect() -> None:
    router = new_router()
    arrive_all(router, "a")
    router.tick(0.0)
    router.finish(KEY, "a", 0.0)
    router.report(0.0)
    router.report(1.0)
    assert router.tick(2.0) == RoutingOutcome(dispatches=[], rejections=[], wakes=[], probes=[])


def test_resend_all_reports_the_full_load_again() -> None:
    router = new_router()
    arrive_all(router, "a", "b")
    router.tick(0.0)
    router.resend_all()
    (woken,) = router.tick(0.01).wakes
    assert woken.poke is not None
    assert woken.poke.load.concurrency == 2


def test_reject_all_rejects_queued_requests() -> None:
    router = new_router("p")
    arrive_all(router, "a", "b")
    assert router.reject_all(0.1, "shutting down") == [
        Rejection(request="b", reason=RejectionReason.SHUT_DOWN, text="shutting down")
    ]


def test_pod_change_of_an_idle_revision_schedules_no_work() -> None:
    router = new_router()
    assert (router.set_slice(pods("p"), 0.0).dispatches, router.schedule.has_pending_work) == ([], False)


def test_unready_pod_is_probed_and_receives_the_queued_request() -> None:
    router = new_router()
    router.set_slice(pods(unready="p"), 0.0)
    arrive_all(router, "a", "b")
    assert router.tick(0.0).probes == [probe("p")]
    assert shown(router, router.probed(probe("p"), 0.1, is_ready=False).dispatches) == []
    assert router.tick(0.1).probes == []
    assert router.schedule.next_due_s() == pytest.approx(0.11)
    assert router.tick(0.13).probes == [probe("p")]
    assert shown(router, router.probed(probe("p"), 0.2, is_ready=True).dispatches) == ["a@p"]
    assert router.directory.pods_of(KEY) == {"p": pod("p")}


def test_confirmed_pod_listed_as_ready_remains_available() -> None:
    router = new_router()
    router.set_slice(pods(unready="p"), 0.0)
    arrive_all(router, "a")
    router.tick(0.0)
    router.probed(probe("p"), 0.1, is_ready=True)
    router.set_slice(pods("p"), 0.2)
    assert shown(router, router.finish(KEY, "a", 0.3)) == []
    assert arrive_all(router, "b", now_s=0.4) == ["b@p"]


def test_confirmed_pod_that_stops_responding_receives_no_new_requests() -> None:
    router = new_router()
    router.set_slice(pods(unready="p"), 0.0)
    arrive_all(router, "a")
    router.tick(0.0)
    router.probed(probe("p"), 0.1, is_ready=True)
    assert router.tick(1.1).probes == [probe("p")]
    router.probed(probe("p"), 1.2, is_ready=False)
    router.finish(KEY, "a", 1.3)
    assert isinstance(router.arrive(KEY, "b", 1.3), Queued)


def test_revision_with_kubelet_readiness_probe_is_not_probed() -> None:
    router = new_router(facts=revision(kubelet_decides=True))
    router.set_slice(pods(unready="p"), 0.0)
    arrive_all(router, "a")
    assert router.tick(0.0).probes == []


def test_unready_pods_are_not_probed_when_disabled() -> None:
    router = RequestRouter[str](msgspec.structs.replace(SETTINGS, probe_unready_pods=False), random=lambda: 0.0)
    router.set_revision(revision(), 0.0)
    router.set_slice(pods(unready="p"), 0.0)
    arrive_all(router, "a")
    assert router.tick(0.0).probes == []


def test_probe_reply_of_a_removed_revision_is_ignored() -> None:
    router = new_router()
    router.set_slice(pods(unready="p"), 0.0)
    arrive_all(router, "a")
    router.tick(0.0)
    router.remove_revision(KEY, 0.1)
    assert router.probed(probe("p"), 0.2, is_ready=True) == RoutingOutcome()
    assert router.directory.pods_of(KEY) == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["arrive", "finish", "back"]), st.integers(0, 30)),
        st.tuples(st.just("pods"), st.integers(0, 7)),
        st.tuples(st.sampled_from(["tick", "report", "fail", "heal", "reserve", "remove"]), st.just(0)),
    ),
    max_size=60,
)


@given(steps=STEPS, slots=st.integers(0, 2))
def test_requests_are_conserved(steps: list[tuple[str, int]], slots: int) -> None:
    router = RequestRouter[str](SETTINGS, random=random.Random(1).random)
    router.set_revision(revision(slots=slots), 0.0)
    inside: set[str] = set()
    for place, (step, value) in enumerate(steps):
        now_s, request = place * 0.3, str(value)
        outcome: RoutingOutcome[str] = RoutingOutcome()
        if step == "arrive" and request not in inside:
            response = router.arrive(KEY, request, now_s)
            if not isinstance(response, Rejection):
                inside.add(request)
        elif step == "finish":
            router.finish(KEY, request, now_s)
            inside.discard(request)
        elif step == "back":
            router.requeue(KEY, request, now_s)
        elif step == "pods":
            addresses = [f"p{place}" for place in range(3) if value >> place & 1]
            outcome = router.set_slice(pods(*addresses), now_s)
        elif step in {"fail", "heal", "reserve"}:
            state = ServingState.RESERVE if step == "reserve" else ServingState.ACTIVE
            failure = "it died" if step == "fail" else None
            outcome = router.set_revision(revision(state, failure=failure, slots=slots), now_s)
        elif step == "remove":
            outcome = router.remove_revision(KEY, now_s)
        elif step == "report":
            router.report(now_s)
        else:
            outcome = router.tick(now_s)
        inside -= {rejection.request for rejection in outcome.rejections}
        validate(router)
        assert level_of(router) == len(inside)


PROBED_STEPS = st.lists(
    st.tuples(st.sampled_from(["arrive", "finish", "pods", "well", "badly", "tick"]), st.integers(0, 63)), max_size=60
)


@given(steps=PROBED_STEPS)
def test_requests_are_conserved_while_pods_are_probed(steps: list[tuple[str, int]]) -> None:
    router = RequestRouter[str](SETTINGS, random=lambda: 0.0)
    router.set_revision(revision(), 0.0)
    inside: set[str] = set()
    flying: list[PodProbe] = []
    for place, (step, value) in enumerate(steps):
        now_s, outcome = place * 0.1, RoutingOutcome[str]()
        if step == "arrive":
            response = router.arrive(KEY, str(place), now_s)
            inside |= set() if isinstance(response, Rejection) else {str(place)}
        elif step == "finish" and inside:
            request = min(inside)
            router.finish(KEY, request, now_s)
            inside.remove(request)
        elif step == "pods":
            ready, unready = ("".join(name for bit, name in enumerate("pqr", at) if value >> bit & 1) for at in (0, 3))
            outcome = router.set_slice(pods(*ready, unready=unready), now_s)
        elif step in {"well", "badly"} and flying:
            outcome = router.probed(flying.pop(value % len(flying)), now_s, is_ready=step == "well")
        else:
            outcome = router.tick(now_s)
        flying += outcome.probes
        inside -= {rejection.request for rejection in outcome.rejections}
        validate(router)
        assert level_of(router) == len(inside)


def test_requests_in_flight_are_reported_by_revision() -> None:
    router = RequestRouter[str](ActivatorSettings(), random=lambda: 0.0)
    router.arrive(("default", "hello-00001"), "a", 0.0)
    assert router.inside() == [(("default", "hello-00001"), 1, 1)]
    assert set(router.throttlers) == {("default", "hello-00001")}


def test_silent_pods_are_not_ejected_with_setting_0() -> None:
    router = RequestRouter[str](ActivatorSettings(eject_after_silence_s=0.0), random=lambda: 0.0)
    router.arrive(KEY, "a", 0.0)
    assert router.eject_silent(10.0, has_begun=lambda _: False) == []


def test_scheduled_tick_is_due_immediately_and_only_once() -> None:
    schedule = TickSchedule()
    schedule.schedule_tick(A)
    schedule.schedule_tick(A)
    assert schedule.has_pending_work
    assert schedule.pop_due(0.0) == {A}
    assert (schedule.has_pending_work, schedule.pop_due(0.0)) == (False, set())


def test_earliest_scheduled_time_is_used() -> None:
    schedule = TickSchedule()
    schedule.schedule_at(A, 2.0)
    schedule.schedule_at(A, 1.0)
    schedule.schedule_at(A, 3.0)
    assert schedule.next_due_s() == 1.0
    assert [schedule.pop_due(now_s) for now_s in (0.5, 1.0, 2.0, 3.0)] == [set(), {A}, set(), set()]
    assert schedule.next_due_s() is None


def test_forgotten_revision_is_not_due() -> None:
    schedule = TickSchedule()
    schedule.schedule_at(A, 1.0)
    schedule.schedule_at(B, 1.0)
    schedule.forget(A)
    schedule.forget(A)
    assert schedule.pop_due(1.0) == {B}


def test_a_silent_pod_is_ejected_and_its_revision_gets_a_tick() -> None:
    router = new_router("p", "q", facts=revision(slots=3))
    assert arrive_all(router, *"abc") == ["a@p", "b@p", "c@p"]
    router.eject_silent(0.0, has_begun=lambda _: False)
    assert arrive_all(router, "d", now_s=3.0) == ["d@q"]
    router.finish(KEY, "d", 3.0)
    router.tick(3.0)
    (silent,) = router.eject_silent(3.0, has_begun=lambda _: False)
    assert (silent.pod, silent.requests) == (pod("p"), ("a", "b", "c"))
    assert router.schedule.has_pending_work


def test_idle_workload_is_reported_only_while_it_has_pods() -> None:
    """Pods of a workload send no reports. Workloads without pods, and revisions, are not reported."""
    workload = msgspec.structs.replace(revision(), is_workload=True, kubelet_decides=True)
    router = new_router(facts=workload)
    assert router.report(1.0) == []
    router.set_slice(pods("p"), 1.0)
    idle = RevisionLoad(concurrency=0.0, request_count=0.0)
    assert router.report(2.0) == [(KEY, idle)]
    arrive_all(router, "r", now_s=2.0)
    ((_, load),) = router.report(3.0)
    assert (load.concurrency, load.pod_loads) == (1.0, {"pod-p": 1.0})
    router.finish(KEY, "r", 3.0)
    router.report(4.0)
    assert router.report(5.0) == [(KEY, idle)]
    router.set_revision(revision(), 5.0)
    assert router.report(6.0) == []
    router.set_revision(workload, 6.0)
    router.remove_revision(KEY, 6.0)
    assert router.report(7.0) == []


def test_pod_heats_are_reported_while_idle_until_the_pods_are_removed() -> None:
    router = new_router("p", facts=revision(slots=3))
    for request in "ab":
        router.arrive(KEY, request, 0.0, session=Prompt(prefixes=(1, 2), tokens=5))
        router.finish(KEY, request, 0.5)
    ((_, load),) = router.report(1.0)
    assert (load.request_count > 0, load.pod_heats) == (True, {"pod-p": 512.0})
    router.report(2.0)
    idle = RevisionLoad(concurrency=0.0, request_count=0.0, pod_heats={"pod-p": 512.0})
    assert router.report(3.0) == [(KEY, idle)]
    router.remove_slice("default/s", 4.0)
    assert router.report(4.0) == []
    assert KEY not in router.throttlers


def announced_pod(address: str = "p") -> ServedPod:
    return ServedPod(address=address, namespace="default", name=f"pod-{address}")


def announcing(settings: ActivatorSettings = SETTINGS, *, kubelet_decides: bool = False) -> RequestRouter[str]:
    router = RequestRouter[str](settings, random=random.Random(1).random)
    router.set_revision(revision(kubelet_decides=kubelet_decides), 0.0)
    return router


def test_announced_pod_receives_requests_after_a_probe_without_a_slice() -> None:
    router = announcing()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    probes = router.tick(1.0).probes
    assert [probe.pod for probe in probes] == [announced_pod()]
    outcome = router.probed(probes[0], 1.01, is_ready=True)
    assert [(dispatch.request, dispatch.pod) for dispatch in outcome.dispatches] == [("r", announced_pod())]


def test_announced_pod_with_a_failed_probe_receives_no_requests() -> None:
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


def test_announcement_before_the_first_request_is_used() -> None:
    router = announcing()
    announce(router, KEY, announced_pod(), now_s=1.0)
    router.arrive(KEY, "r", 2.0)
    assert [probe.pod for probe in router.tick(2.0).probes] == [announced_pod()]


@pytest.mark.parametrize(
    ("new_announcing", "why"),
    [
        (partial(announcing, ActivatorSettings(announced_pod_max_s=0.0)), "switched off"),
        (partial(announcing, ActivatorSettings(probe_unready_pods=False)), "nothing is probed"),
        (partial(announcing, kubelet_decides=True), "a probe alone does not say that it is ready"),
        (partial(new_router, is_known=False), "no such revision"),
    ],
)
def test_announcement_is_ignored_when_disabled_unprobed_or_unknown(
    new_announcing: Callable[[], RequestRouter[str]], why: str
) -> None:
    router = new_announcing()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    assert not router.tick(1.0).probes, why
    router.tick(1.1)
    assert not router.schedule.has_pending_work, f"{why}: ticks end"


def test_announcement_of_a_pod_listed_as_ready_is_not_stored() -> None:
    router = announcing()
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=(announced_pod(),)), 0.0)
    announce(router, KEY, announced_pod(), now_s=1.0)
    assert len(router.directory.announced) == 0


def test_removed_revision_drops_its_announcements() -> None:
    router = announcing()
    announce(router, KEY, announced_pod(), now_s=1.0)
    router.remove_revision(KEY, 1.5)
    assert len(router.directory.announced) == 0


READY = msgspec.structs.replace(announced_pod(), scheme="http")


def announcing_workload() -> RequestRouter[str]:
    router = RequestRouter[str](SETTINGS, random=random.Random(1).random)
    router.set_revision(msgspec.structs.replace(revision(kubelet_decides=True), is_workload=True), 0.0)
    return router


def test_ready_workload_pod_receives_requests_before_a_slice_lists_it() -> None:
    router = announcing_workload()
    router.arrive(KEY, "r", 0.0)
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=(), unready=(READY,)), 0.5)
    assert router.tick(0.5).dispatches == []
    announce(router, KEY, READY, now_s=1.0)
    outcome = router.tick(1.0)
    assert [(dispatch.request, dispatch.pod) for dispatch in outcome.dispatches] == [("r", READY)]
    router.tick(5.9)
    assert (router.directory.pods_of(KEY), router.tick(5.9).probes) == ({"p": READY}, [])
    # Once the slice lists the pod, only the slice counts.
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=(READY,)), 5.9)
    assert (len(router.directory.announced), router.directory.pods_of(KEY)) == (0, {"p": READY})
    router.set_slice(ServedSlice(key="default/s", revision=KEY, pods=()), 5.9)
    assert router.directory.pods_of(KEY) == {}


def test_ready_workload_pod_not_listed_in_time_is_dropped() -> None:
    router = announcing_workload()
    router.arrive(KEY, "r", 0.0)
    announce(router, KEY, READY, now_s=1.0)
    router.tick(1.0)
    router.tick(6.0)
    assert router.directory.pods_of(KEY) == {}


def test_only_ready_pods_of_workloads_are_announced_by_the_api() -> None:
    router = announcing_workload()
    announce(router, KEY, announced_pod(), now_s=1.0)
    assert len(router.directory.announced) == 0
    router = announcing()
    announce(router, KEY, READY, now_s=1.0)
    assert len(router.directory.announced) == 0


PAGE = PlaceholderResponse(body="soon")
FALLBACK = ("default", "hello-00001:fallback")


def with_cold_start(
    *addresses: str, waiting_max: int | None = None, failure: str | None = None, **fields: object
) -> RequestRouter[str]:
    """A router with a workload that has these cold start fields, and with its fallback, if any."""
    workload = msgspec.structs.replace(
        revision(failure=failure),
        cold_start=msgspec.convert(fields, ColdStart),
        is_workload=True,
        waiting_max=waiting_max,
    )
    router_of_it = new_router(*addresses, facts=workload)
    if (fallback := fallback_of(workload)) is not None:
        router_of_it.set_revision(fallback, 0.0)
    return router_of_it


def test_placeholder_is_sent_immediately_and_wakes_the_revision() -> None:
    cold = with_cold_start(placeholder=PAGE, failure="it crashes")
    rejection = cold.arrive(KEY, "a", 0.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.placeholder) == (RejectionReason.STARTING, PAGE)
    assert [wake.poke for wake in cold.tick(0.0).wakes] == [REJECTED]
    assert level_of(cold) == 0


def test_no_placeholder_is_sent_with_a_ready_pod() -> None:
    warm = with_cold_start("p", placeholder=PAGE, overflow=PLACEHOLDER, waiting_max=1)
    assert arrive_all(warm, "a") == ["a@p"]
    assert isinstance(warm.arrive(KEY, "b", 0.0), Queued)
    rejection = warm.arrive(KEY, "c", 0.0)
    assert isinstance(rejection, Rejection)
    assert rejection.placeholder is None


def test_overflow_sends_the_placeholder_only_beyond_the_queue_bound() -> None:
    cold = with_cold_start(placeholder=PAGE, overflow=PLACEHOLDER, waiting_max=1)
    assert isinstance(cold.arrive(KEY, "a", 0.0), Queued)
    rejection = cold.arrive(KEY, "b", 0.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.placeholder) == (RejectionReason.QUEUE_COUNT, PAGE)


def test_parked_request_beyond_the_queue_bound_gets_the_placeholder() -> None:
    router = with_cold_start("p", "q", placeholder=PAGE, overflow=PLACEHOLDER, waiting_max=1)
    for request in ("a", "parked"):
        router.arrive(KEY, request, 0.0, client="10.0.0.1")
    router.set_slice(pods(), 0.0)
    router.tick(0.0)
    assert isinstance(router.arrive(KEY, "b", 0.0), Queued)
    rejection = router.complete(KEY, "parked", 0.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.placeholder) == (RejectionReason.QUEUE_COUNT, PAGE)


def test_timed_out_request_is_routed_to_the_fallback() -> None:
    cold = with_cold_start(fallback=WorkloadService(name="maintenance"))
    cold.set_slice(ServedSlice(key="default/m", revision=FALLBACK, pods=(pod("m"),)), 0.0)
    arrive_all(cold, "a")
    (rejection,) = cold.tick(1.5).rejections
    assert (rejection.reason, rejection.fallback) == (RejectionReason.WAITED, FALLBACK)
    assert cold.arrive(FALLBACK, "a", 1.5) == Dispatch(request="a", pod=pod("m"))


def test_request_of_a_failed_workload_is_routed_to_the_fallback() -> None:
    cold = with_cold_start(fallback=WorkloadService(name="maintenance"), failure="it crashes")
    rejection = cold.arrive(KEY, "a", 0.0)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.fallback) == (RejectionReason.FAILED, FALLBACK)


def test_fallback_request_counts_as_load_of_its_workload() -> None:
    cold = with_cold_start("p", fallback=WorkloadService(name="maintenance"))
    cold.set_slice(ServedSlice(key="default/m", revision=FALLBACK, pods=(pod("m"),)), 0.0)
    assert isinstance(cold.arrive(FALLBACK, "a", 0.0), Dispatch)
    assert arrive_all(cold, "b") == ["b@p"]
    ((key, load),) = cold.report(1.0)
    assert (key, load.window_concurrency, load.request_count, set(load.pod_loads)) == (KEY, 2.0, 1.0, {"pod-p"})
    cold.finish(KEY, "b", 1.0)
    cold.report(2.0)
    cold.report(3.0)
    ((key, load),) = cold.report(4.0)
    assert (key, load.window_concurrency, load.request_count) == (KEY, 1.0, 0.0)


def test_fallback_without_pods_rejects_immediately_and_wakes_nothing() -> None:
    cold = with_cold_start(fallback=WorkloadService(name="maintenance"))
    rejection = cold.arrive(FALLBACK, "a", 0.0)
    assert isinstance(rejection, Rejection)
    assert rejection.detail == "the fallback Service maintenance has no ready pod"
    assert rejection.fallback is None
    cold.set_slice(ServedSlice(key="default/m", revision=FALLBACK, pods=(pod("m"),)), 0.0)
    assert isinstance(cold.arrive(FALLBACK, "b", 0.0), Dispatch)
    assert cold.tick(0.0).wakes == []
    assert cold.directory.idle_workloads(()) == []
