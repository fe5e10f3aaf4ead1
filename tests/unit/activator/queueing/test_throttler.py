"""The throttler admits, queues and rejects requests."""

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.queueing.outcome import Dispatch, Rejection, RejectionReason
from serving.activator.queueing.slices import ServedPod
from serving.activator.queueing.throttler import RevisionThrottler
from serving.core.model.errors import IllegalTransition
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.places import Queued
from serving.core.traffic.prefixes import PrefixMatch, Prompt
from tests.invariants import validate

KEY = ("default", "hello-00001")
SMALL = ActivatorSettings(queue_depth_max=3, queue_bytes_max=100, queue_wait_max_s=10.0)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["finish", "back"]), st.integers(0, 40)),
        st.tuples(st.just("pods"), st.frozensets(st.integers(0, 3))),
        st.tuples(st.sampled_from(["readmit", "expire", "give up"]), st.just(0)),
    ),
    max_size=60,
)


class Held(RevisionThrottler[str]):
    """A throttler that is validated after each step."""

    @property
    def running_count(self) -> int:
        return self.level - self.waiting_count

    def listed(self, *addresses: str, now_s: float = 0.0, slots: int = 1) -> list[str]:
        return shown(self, self.set_pods(pods_at(*addresses), now_s, container_concurrency=slots))

    def come(self, *requests: str, now_s: float = 0.0) -> list[str]:
        responses = [self.arrive(request, now_s) for request in requests]
        return shown(self, [response for response in responses if isinstance(response, Dispatch)])

    def go(self, request: str, now_s: float = 0.0) -> list[str]:
        return shown(self, self.finish(request, now_s))

    def back(self, request: str, now_s: float = 0.0) -> list[str]:
        return shown(self, self.requeue(request, now_s))

    def sent_away(self, now_s: float, *, is_late: bool = True) -> list[str]:
        rejections = self.reject_waiting(now_s, reason=RejectionReason.WAITED, text="late", is_late=is_late)
        return [rejection.request for rejection in rejections]


def pods_at(*addresses: str) -> dict[str, ServedPod]:
    return {address: ServedPod(address=address, namespace="default", name=f"pod-{address}") for address in addresses}


def shown(holder: RevisionThrottler[str], runs: Iterable[Dispatch[str]]) -> list[str]:
    """Format dispatches as "request@pod"."""
    validate(holder)
    return [f"{run.request}@{run.pod.address}" for run in runs]


def new_throttler(settings: ActivatorSettings = SMALL, *, pods: Sequence[str] = (), slots: int = 1) -> Held:
    result = Held(KEY, settings, random=lambda: 0.0, now_s=0.0)
    if pods:
        result.listed(*pods, slots=slots)
    return result


def test_requeued_request_prefers_a_pod_on_another_node() -> None:
    nodes = {"p": "a", "q": "a", "r": "a", "s": "b"}
    pods = {name: ServedPod(address=name, namespace="default", name=name, node=node) for name, node in nodes.items()}
    for session in (None, 7):
        result = new_throttler()
        result.set_pods(pods, 0.0, container_concurrency=1)
        began = [result.arrive(str(number), 0.0, session=session) for number in range(3)]
        lost = next(outcome for outcome in began if isinstance(outcome, Dispatch) and outcome.pod.node == "a")
        for outcome in began:
            if isinstance(outcome, Dispatch) and outcome is not lost:
                result.go(outcome.request)
        assert result.back(lost.request) == [f"{lost.request}@s"]
        # Without a free pod on another node, another pod of the same node is used.
        on_a = result.come("again")
        assert result.back("again")[0] not in (*on_a, "again@s")


PROMPT = Prompt(prefixes=(1, 2, 3), tokens=10)


def test_prompt_is_routed_by_known_prefix_also_after_queueing() -> None:
    result = new_throttler(pods=["p", "q"])
    began = [result.arrive("a", 0.0, session=PROMPT), result.arrive("b", 0.0, session=Prompt(prefixes=(7,)))]
    assert shown(result, [run for run in began if isinstance(run, Dispatch)]) == ["a@q", "b@p"]
    assert isinstance(result.arrive("c", 0.0, session=PROMPT), Queued)
    (run,) = result.finish("b", 1.0)
    # The pod that knows the prefix has no free slot.
    assert (run.request, run.pod.address, run.prefix) == ("c", "p", PrefixMatch(known_count=0, block_count=3))
    for request in "ac":
        result.go(request)
    last = result.arrive("d", 2.0, session=Prompt(prefixes=(7,)))
    assert isinstance(last, Dispatch)
    assert (last.pod.address, last.prefix) == ("p", PrefixMatch(known_count=1, block_count=1))


def test_requeued_prompt_changes_pod_and_unlisted_pods_lose_their_heat() -> None:
    result = new_throttler()
    assert result.pod_heats() == {}
    result.listed("p", "q", slots=0)
    for request in "ab":
        result.arrive(request, 0.0, session=PROMPT)
    assert result.go("a") == result.go("b") == []
    assert result.pod_heats().keys() == {"pod-p", "pod-q"}
    result.arrive("c", 1.0, session=PROMPT)
    address = result.address_of["c"]
    other = "q" if address == "p" else "p"
    assert result.back("c", 1.0) == [f"c@{other}"]
    result.listed(other, slots=0)
    assert result.pod_heats().keys() == {f"pod-{other}"}


def test_request_without_pods_is_queued_with_position_and_deadline() -> None:
    result = new_throttler()
    assert result.arrive("a", 0.0) == Queued(position=1, deadline_s=10.0)


def test_new_pods_receive_queued_requests_oldest_first() -> None:
    result = new_throttler()
    result.come("a", "b", "c")
    assert result.listed("p", "q") == ["a@p", "b@q"]


def test_dispatch_reports_the_wait() -> None:
    result = new_throttler()
    result.arrive("a", 1.0)
    (run,) = result.set_pods(pods_at("p"), 3.5, container_concurrency=1)
    assert run == Dispatch(request="a", pod=pods_at("p")["p"], waited_s=2.5)


def test_request_is_dispatched_immediately_to_a_free_slot() -> None:
    assert new_throttler(pods=["p"]).come("a") == ["a@p"]


def test_finished_request_frees_its_slot_for_the_next() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    assert result.go("a") == ["b@p"]


def test_pod_without_concurrency_limit_receives_all_requests() -> None:
    result = new_throttler()
    result.come("a", "b", "c")
    assert result.listed("p", slots=0) == ["a@p", "b@p", "c@p"]


def test_requests_are_queued_after_the_last_unlimited_pod_is_removed() -> None:
    result = new_throttler(pods=["p"], slots=0)
    result.come("a")
    result.listed(slots=0)
    assert (result.come("b"), result.running_count, result.waiting_count) == ([], 1, 1)


def test_unlisted_pod_receives_no_requests() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    result.listed()
    assert result.go("a") == []


def test_request_on_a_draining_pod_uses_no_slot_of_other_pods() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    assert result.listed("q") == ["b@q"]


def test_the_queue_is_bounded_in_count() -> None:
    result = new_throttler()
    result.come("a", "b", "c")
    response = result.arrive("d", 0.0)
    assert isinstance(response, Rejection)
    assert (response.reason, result.level) == (RejectionReason.QUEUE_COUNT, 3)


def test_parked_request_is_rejected_when_the_queue_is_full() -> None:
    throttler = new_throttler(pods=["a"], slots=2)
    for request in ("first", "parked"):
        throttler.arrive(request, 0.0, client="10.0.0.1")
    throttler.come("running", *(f"waiting-{number}" for number in range(SMALL.queue_depth_max)))
    rejection = throttler.complete("parked", 0.0)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is RejectionReason.QUEUE_COUNT
    assert throttler.complete("parked", 0.0) is None


def test_the_queue_is_bounded_in_bytes() -> None:
    result = new_throttler()
    result.arrive("a", 0.0, weight_bytes=60)
    response = result.arrive("b", 0.0, weight_bytes=60)
    assert isinstance(response, Rejection)
    assert response.reason is RejectionReason.QUEUE_BYTES


def test_second_arrival_of_a_request_raises() -> None:
    result = new_throttler()
    result.come("a")
    with pytest.raises(IllegalTransition):
        result.arrive("a", 0.0)


def test_canceled_queued_request_frees_its_place() -> None:
    result = new_throttler()
    result.come("a", "b", "c")
    result.go("b")
    assert isinstance(result.arrive("d", 0.0), Queued)


@pytest.mark.parametrize("never_was", ["finish", "requeue"])
def test_finish_and_requeue_of_unknown_request_have_no_effect(never_was: str) -> None:
    result = new_throttler(pods=["p"])
    result.come("a")
    assert (result.go("x") if never_was == "finish" else result.back("x")) == []
    assert result.level == 1


def test_requeued_request_is_dispatched_to_another_pod() -> None:
    result = new_throttler(pods=["p", "q"])
    result.come("a")
    assert result.back("a") == ["a@q"]


def test_requeued_request_precedes_all_queued_requests() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    result.back("a")
    assert result.listed("q") == ["a@q"]


def test_requeued_requests_run_as_slots_become_free() -> None:
    result = new_throttler(pods=["p", "q"])
    result.come("a", "b", "c")
    result.back("a")
    assert result.waiting_count == 2
    assert result.go("b") == ["a@q"]
    assert result.go("a") == ["c@q"]


def test_ejected_pod_is_readmitted_after_a_pause() -> None:
    result = new_throttler(pods=["p"])
    result.come("a")
    result.back("a")
    assert result.ejected.pause_ends_s() == 0.05
    assert shown(result, result.readmit(0.04)) == []
    assert shown(result, result.readmit(0.05)) == ["a@p"]
    assert result.ejected.pause_ends_s() is None


def test_ejection_pauses_double_up_to_1_s() -> None:
    result, now_s, pauses_s = new_throttler(pods=["p"]), 0.0, []
    result.come("a")
    for _ in range(7):
        result.back("a", now_s)
        due_s = result.ejected.pause_ends_s()
        assert due_s is not None
        pauses_s.append(round(due_s - now_s, 3))
        now_s = due_s
        result.readmit(now_s)
    assert pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_successful_request_resets_the_ejection_pause() -> None:
    result = new_throttler(pods=["p"])
    result.come("a")
    result.back("a")
    result.readmit(0.05)
    result.go("a", 0.1)
    result.come("b", now_s=0.2)
    result.back("b", 0.25)
    assert result.ejected.pause_ends_s() == 0.3


def test_failures_during_one_ejection_count_once() -> None:
    result = new_throttler(pods=["p"], slots=2)
    result.come("a", "b")
    result.back("a", 0.0)
    result.back("b", 0.03)
    assert result.ejected.pause_ends_s() == 0.05


def test_unlisted_ejected_pod_is_not_readmitted() -> None:
    result = new_throttler(pods=["p", "q"])
    result.come("a")
    result.back("a")
    result.listed("q")
    assert result.ejected.pause_ends_s() is None


def test_requeue_from_an_unlisted_pod_leaves_no_ejection_pause() -> None:
    result = new_throttler(pods=["p"])
    result.come("a")
    result.listed()
    result.back("a")
    assert (result.admission.expires_s(), result.listed("q")) == (10.0, ["a@q"])


def test_queued_request_is_rejected_after_the_maximum_wait() -> None:
    result = new_throttler()
    result.come("a")
    result.come("b", now_s=1.0)
    assert result.admission.expires_s() == 10.0
    assert (result.sent_away(10.0), result.level) == (["a"], 1)


def test_requeued_request_is_rejected_after_the_maximum_wait() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    result.listed()
    result.back("a", 1.0)
    assert result.sent_away(11.0) == ["a", "b"]
    validate(result)


def test_all_queued_requests_are_rejected_and_running_ones_remain() -> None:
    result = new_throttler(pods=["p", "q"])
    result.come("a", "b", "c")
    result.listed()
    result.back("b", 3.0)
    assert (result.sent_away(4.0, is_late=False), result.running_count, result.level) == (["b", "c"], 1, 1)
    validate(result)


def test_meter_uses_the_time_of_the_rejection() -> None:
    result = new_throttler()
    result.come("a")
    result.sent_away(0.5, is_late=False)
    report = result.report(1.0, period_s=1.0)
    assert report is not None
    assert report.concurrency == 0.5


def test_canceled_requeued_request_frees_its_place() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    result.back("a")
    assert (result.go("a"), result.level) == ([], 1)


def test_load_counts_running_and_queued_requests() -> None:
    result = new_throttler(pods=["p"])
    result.come("a", "b")
    result.go("a", 1.0)
    report = result.report(2.0, period_s=2.0)
    assert report is not None
    assert (report.concurrency, report.request_count) == (1.5, 1)


@given(steps=STEPS, slots=st.integers(0, 3), seed=st.integers(0, 100))
def test_every_request_is_either_running_or_queued(steps: list[tuple[str, object]], slots: int, seed: int) -> None:
    settings = ActivatorSettings(queue_depth_max=10, queue_wait_max_s=5.0)
    result = Held(KEY, settings, random=random.Random(seed).random, now_s=0.0)
    inside: set[str] = set()
    on_pod: dict[str, str] = {}
    listed: set[str] = set()
    for place, (step, value) in enumerate(steps):
        now_s, request = place * 0.5, str(value)
        ran: Sequence[Dispatch[str]] = ()
        if step == "arrive" and request not in inside:
            response = result.arrive(request, now_s)
            if not isinstance(response, Rejection):
                inside.add(request)
            ran = [response] if isinstance(response, Dispatch) else ()
        elif step == "finish":
            ran = result.finish(request, now_s)
            inside.discard(request)
            on_pod.pop(request, None)
        elif step == "back":
            ran = result.requeue(request, now_s)
            on_pod.pop(request, None)
        elif step == "pods":
            assert isinstance(value, frozenset)
            listed = {f"p{number}" for number in value}
            ran = result.set_pods(pods_at(*listed), now_s, container_concurrency=slots)
        elif step == "readmit":
            ran = result.readmit(now_s)
        elif step in {"expire", "give up"}:
            inside -= set(result.sent_away(now_s, is_late=step == "expire"))
        validate(result)
        for run in ran:
            assert run.pod.address in listed
            assert run.request in inside - on_pod.keys()
            on_pod[run.request] = run.pod.address
        assert result.level == len(inside)
        assert result.running_count == len(on_pod)
        assert result.waiting_count == len(inside) - len(on_pod)


def shared(*, slots: dict[str, int]) -> Held:
    result = Held(KEY, SMALL, random=lambda: 0.0, now_s=0.0)
    result.set_pods(pods_at(*slots), 0.0, container_concurrency=2, slots=slots)
    return result


def test_pod_receives_at_most_the_slots_of_this_activator() -> None:
    result = shared(slots={"p": 1, "q": 0, "r": 2})
    assert result.come("a", "b", "c", "d") == ["a@p", "b@r", "c@r"]
    assert result.balancer.in_flight_by_pod() == {"p": 1, "r": 2}
    assert result.slots_per_pod == 2
    assert [result.address_of.get(request) for request in "ad"] == ["p", None]


def test_added_slot_is_used_by_a_queued_request() -> None:
    result = shared(slots={"p": 0})
    result.come("a")
    assert shown(result, result.set_slots("p", 1, 1.0)) == ["a@p"]


def test_revoked_slot_is_not_reused_after_its_request() -> None:
    result = shared(slots={"p": 1})
    result.come("a", "b")
    assert shown(result, result.set_slots("p", 0, 1.0)) == []
    assert result.go("a") == []
    assert result.waiting_count == 1


def test_a_pod_that_is_not_listed_has_no_slots() -> None:
    result = shared(slots={"p": 0})
    result.come("a")
    assert result.set_slots("q", 1, 1.0) == ()


def test_added_slot_of_an_ejected_pod_is_unused_until_readmission() -> None:
    result = shared(slots={"p": 1})
    result.come("a", "b")
    result.back("a")
    assert result.ejected.addresses == {"p"}
    assert shown(result, result.set_slots("p", 2, 0.01)) == []
    assert shown(result, result.readmit(0.1)) == ["a@p", "b@p"]


def test_waiting_since_is_the_arrival_of_the_oldest_queued_request() -> None:
    result = new_throttler()
    assert result.slots_per_pod is None
    assert result.waiting_since_s is None
    result.arrive("a", 3.0)
    result.arrive("b", 4.0)
    assert result.waiting_since_s == 3.0


def test_waiting_since_of_a_requeued_request_is_its_requeue_time() -> None:
    result = new_throttler(pods=["p"])
    result.come("a")
    result.requeue("a", 5.0)
    result.arrive("b", 6.0)
    assert result.waiting_since_s == 5.0


def test_no_pod_is_ejected_as_silent_without_pods() -> None:
    result = new_throttler()
    result.come("a")
    assert result.eject_silent(0.0, after_s=3.0, has_begun=lambda _: False) == []


def test_a_silent_pod_is_ejected_and_reported_with_its_requests() -> None:
    result = new_throttler(pods=["p", "q"], slots=3)
    assert result.come(*"abc") == ["a@p", "b@p", "c@p"]
    result.eject_silent(0.0, after_s=3.0, has_begun=lambda _: False)
    assert result.come("d", now_s=3.0) == ["d@q"]
    result.go("d", 3.0)
    (silent,) = result.eject_silent(3.0, after_s=3.0, has_begun=lambda _: False)
    assert (silent.pod.name, silent.is_new, silent.requests) == ("pod-p", True, ("a", "b", "c"))
    assert result.come("e", now_s=3.1) == ["e@q"]
    (again,) = result.eject_silent(4.0, after_s=3.0, has_begun=lambda request: request == "a")
    assert (again.is_new, again.requests) == (False, ("b", "c"))


def test_session_returns_to_its_pod_unless_the_pod_is_full() -> None:
    result = new_throttler(pods=["a", "b", "c"], slots=2)
    first = result.arrive("1", 0.0, session=12345)
    assert isinstance(first, Dispatch)
    assert [result.arrive(name, 0.0, session=12345) for name in "2"] == [Dispatch(request="2", pod=first.pod)]
    third = result.arrive("3", 0.0, session=12345)
    assert isinstance(third, Dispatch)
    assert third.pod != first.pod, "its pod is full"
    assert result.come("4") != []
    for name in "1234":
        result.go(name)
    assert result.level == 0
    validate(result)


def test_queued_session_request_is_dispatched_to_the_session_pod() -> None:
    result = new_throttler()
    result.arrive("1", 0.0, session=7)
    result.arrive("2", 5.0, session=7)
    assert result.sent_away(10.0) == ["1"]
    validate(result)
    (again,) = result.set_pods(pods_at("a", "b"), 11.0, container_concurrency=0)
    (same,) = [result.arrive("3", 12.0, session=7)]
    assert isinstance(same, Dispatch)
    assert again.pod == same.pod
