"""The throttler: running, waiting and refused requests."""

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
        return [one.request for one in rejections]


def pods_at(*addresses: str) -> dict[str, ServedPod]:
    return {address: ServedPod(address=address, namespace="default", name=f"pod-{address}") for address in addresses}


def shown(holder: RevisionThrottler[str], runs: Iterable[Dispatch[str]]) -> list[str]:
    """Runs as "request@pod"."""
    validate(holder)
    return [f"{run.request}@{run.pod.address}" for run in runs]


def held(settings: ActivatorSettings = SMALL, *, pods: Sequence[str] = (), slots: int = 1) -> Held:
    made = Held(KEY, settings, random=lambda: 0.0, now_s=0.0)
    if pods:
        made.listed(*pods, slots=slots)
    return made


def test_a_request_whose_pod_is_gone_goes_to_another_node() -> None:
    nodes = {"p": "a", "q": "a", "r": "a", "s": "b"}
    pods = {name: ServedPod(address=name, namespace="default", name=name, node=node) for name, node in nodes.items()}
    for session in (None, 7):
        made = held()
        made.set_pods(pods, 0.0, container_concurrency=1)
        began = [made.arrive(str(number), 0.0, session=session) for number in range(3)]
        lost = next(one for one in began if isinstance(one, Dispatch) and one.pod.node == "a")
        for one in began:
            if isinstance(one, Dispatch) and one is not lost:
                made.go(one.request)
        assert made.back(lost.request) == [f"{lost.request}@s"]
        # Where no other node has a free pod, another pod of the node is better than none.
        on_a = made.come("again")
        assert made.back("again")[0] not in (*on_a, "again@s")


PROMPT = Prompt(prefixes=(1, 2, 3), tokens=10)


def test_a_prompt_goes_to_the_pod_that_knows_its_beginning_also_after_a_wait() -> None:
    made = held(pods=["p", "q"])
    began = [made.arrive("a", 0.0, session=PROMPT), made.arrive("b", 0.0, session=Prompt(prefixes=(7,)))]
    assert shown(made, [run for run in began if isinstance(run, Dispatch)]) == ["a@p", "b@q"]
    assert isinstance(made.arrive("c", 0.0, session=PROMPT), Queued)
    (run,) = made.finish("b", 1.0)
    # The pod that knows it has no free slot.
    assert (run.request, run.pod.address, run.prefix) == ("c", "q", PrefixMatch(known_count=0, block_count=3))
    for request in "ac":
        made.go(request)
    last = made.arrive("d", 2.0, session=Prompt(prefixes=(7,)))
    assert isinstance(last, Dispatch)
    assert (last.pod.address, last.prefix) == ("q", PrefixMatch(known_count=1, block_count=1))


def test_a_prompt_whose_pod_was_gone_goes_to_another_and_pods_that_are_gone_are_forgotten() -> None:
    made = held()
    assert made.pod_heats() == {}
    made.listed("p", "q", slots=0)
    for request in "ab":
        made.arrive(request, 0.0, session=PROMPT)
    assert made.go("a") == made.go("b") == []
    assert made.pod_heats().keys() == {"pod-p", "pod-q"}
    made.arrive("c", 1.0, session=PROMPT)
    address = made.address_of["c"]
    other = "q" if address == "p" else "p"
    assert made.back("c", 1.0) == [f"c@{other}"]
    made.listed(other, slots=0)
    assert made.pod_heats().keys() == {f"pod-{other}"}


def test_without_pods_all_wait() -> None:
    made = held()
    assert made.arrive("a", 0.0) == Queued(position=1, deadline_s=10.0)


def test_a_pod_takes_who_waits_oldest_first() -> None:
    made = held()
    made.come("a", "b", "c")
    assert made.listed("p", "q") == ["a@p", "b@q"]


def test_a_run_says_how_long_it_waited() -> None:
    made = held()
    made.arrive("a", 1.0)
    (run,) = made.set_pods(pods_at("p"), 3.5, container_concurrency=1)
    assert run == Dispatch(request="a", pod=pods_at("p")["p"], waited_s=2.5)


def test_with_a_free_slot_a_request_runs_immediately() -> None:
    assert held(pods=["p"]).come("a") == ["a@p"]


def test_an_end_lets_the_next_run() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    assert made.go("a") == ["b@p"]


def test_a_pod_without_limit_takes_all() -> None:
    made = held()
    made.come("a", "b", "c")
    assert made.listed("p", slots=0) == ["a@p", "b@p", "c@p"]


def test_when_the_last_pod_without_limit_goes_all_wait_again() -> None:
    made = held(pods=["p"], slots=0)
    made.come("a")
    made.listed(slots=0)
    assert (made.come("b"), made.running_count, made.waiting_count) == ([], 1, 1)


def test_nothing_goes_to_a_pod_that_is_no_longer_listed() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.listed()
    assert made.go("a") == []


def test_a_request_on_a_pod_that_drains_takes_no_slot_from_others() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    assert made.listed("q") == ["b@q"]


def test_the_queue_is_bounded_in_count() -> None:
    made = held()
    made.come("a", "b", "c")
    response = made.arrive("d", 0.0)
    assert isinstance(response, Rejection)
    assert (response.reason, made.level) == (RejectionReason.QUEUE_COUNT, 3)


def test_the_queue_is_bounded_in_bytes() -> None:
    made = held()
    made.arrive("a", 0.0, weight_bytes=60)
    response = made.arrive("b", 0.0, weight_bytes=60)
    assert isinstance(response, Rejection)
    assert response.reason is RejectionReason.QUEUE_BYTES


def test_a_request_cannot_come_twice() -> None:
    made = held()
    made.come("a")
    with pytest.raises(IllegalTransition):
        made.arrive("a", 0.0)


def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    made = held()
    made.come("a", "b", "c")
    made.go("b")
    assert isinstance(made.arrive("d", 0.0), Queued)


@pytest.mark.parametrize("never_was", ["finish", "requeue"])
def test_what_is_not_inside_changes_nothing(never_was: str) -> None:
    made = held(pods=["p"])
    made.come("a")
    assert (made.go("x") if never_was == "finish" else made.back("x")) == []
    assert made.level == 1


def test_a_request_whose_pod_was_gone_goes_to_another() -> None:
    made = held(pods=["p", "q"])
    made.come("a")
    assert made.back("a") == ["a@q"]


def test_a_request_whose_pod_was_gone_goes_before_all_who_wait() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.back("a")
    assert made.listed("q") == ["a@q"]


def test_requests_that_came_back_run_as_slots_come_free() -> None:
    made = held(pods=["p", "q"])
    made.come("a", "b", "c")
    made.back("a")
    assert made.waiting_count == 2
    assert made.go("b") == ["a@q"]
    assert made.go("a") == ["c@q"]


def test_a_pod_that_was_not_there_is_tried_again_after_a_pause() -> None:
    made = held(pods=["p"])
    made.come("a")
    made.back("a")
    assert made.ejected.pause_ends_s() == 0.05
    assert shown(made, made.readmit(0.04)) == []
    assert shown(made, made.readmit(0.05)) == ["a@p"]
    assert made.ejected.pause_ends_s() is None


def test_pauses_grow_up_to_a_second() -> None:
    made, now_s, pauses_s = held(pods=["p"]), 0.0, []
    made.come("a")
    for _ in range(7):
        made.back("a", now_s)
        due_s = made.ejected.pause_ends_s()
        assert due_s is not None
        pauses_s.append(round(due_s - now_s, 3))
        now_s = due_s
        made.readmit(now_s)
    assert pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_a_pod_that_answers_again_is_forgiven() -> None:
    made = held(pods=["p"])
    made.come("a")
    made.back("a")
    made.readmit(0.05)
    made.go("a", 0.1)
    made.come("b", now_s=0.2)
    made.back("b", 0.25)
    assert made.ejected.pause_ends_s() == 0.3


def test_many_requests_on_a_pod_that_was_gone_make_one_failure() -> None:
    made = held(pods=["p"], slots=2)
    made.come("a", "b")
    made.back("a", 0.0)
    made.back("b", 0.03)
    assert made.ejected.pause_ends_s() == 0.05


def test_a_pod_that_is_off_the_list_is_not_tried_again() -> None:
    made = held(pods=["p", "q"])
    made.come("a")
    made.back("a")
    made.listed("q")
    assert made.ejected.pause_ends_s() is None


def test_a_request_that_returns_from_a_pod_off_the_list_leaves_no_pause() -> None:
    made = held(pods=["p"])
    made.come("a")
    made.listed()
    made.back("a")
    assert (made.admission.expires_s(), made.listed("q")) == (10.0, ["a@q"])


def test_who_has_waited_too_long_is_out() -> None:
    made = held()
    made.come("a")
    made.come("b", now_s=1.0)
    assert made.admission.expires_s() == 10.0
    assert (made.sent_away(10.0), made.level) == (["a"], 1)


def test_who_came_back_and_has_waited_too_long_is_out() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.listed()
    made.back("a", 1.0)
    assert made.sent_away(11.0) == ["a", "b"]
    validate(made)


def test_all_who_wait_can_be_sent_away_and_who_runs_stays() -> None:
    made = held(pods=["p", "q"])
    made.come("a", "b", "c")
    made.listed()
    made.back("b", 3.0)
    assert (made.sent_away(4.0, is_late=False), made.running_count, made.level) == (["b", "c"], 1, 1)
    validate(made)


def test_the_meter_sees_true_times_when_all_are_sent_away() -> None:
    made = held()
    made.come("a")
    made.sent_away(0.5, is_late=False)
    report = made.report(1.0, period_s=1.0)
    assert report is not None
    assert report.concurrency == 0.5


def test_a_client_that_leaves_after_its_pod_was_gone_frees_its_place() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.back("a")
    assert (made.go("a"), made.level) == ([], 1)


def test_load_is_what_runs_and_what_waits() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.go("a", 1.0)
    report = made.report(2.0, period_s=2.0)
    assert report is not None
    assert (report.concurrency, report.request_count) == (1.5, 1)


@given(steps=STEPS, slots=st.integers(0, 3), seed=st.integers(0, 100))
def test_every_request_is_in_one_place(steps: list[tuple[str, object]], slots: int, seed: int) -> None:
    settings = ActivatorSettings(queue_depth_max=10, queue_wait_max_s=5.0)
    made = Held(KEY, settings, random=random.Random(seed).random, now_s=0.0)
    inside: set[str] = set()
    on_pod: dict[str, str] = {}
    listed: set[str] = set()
    for place, (step, value) in enumerate(steps):
        now_s, request = place * 0.5, str(value)
        ran: Sequence[Dispatch[str]] = ()
        if step == "arrive" and request not in inside:
            response = made.arrive(request, now_s)
            if not isinstance(response, Rejection):
                inside.add(request)
            ran = [response] if isinstance(response, Dispatch) else ()
        elif step == "finish":
            ran = made.finish(request, now_s)
            inside.discard(request)
            on_pod.pop(request, None)
        elif step == "back":
            ran = made.requeue(request, now_s)
            on_pod.pop(request, None)
        elif step == "pods":
            assert isinstance(value, frozenset)
            listed = {f"p{one}" for one in value}
            ran = made.set_pods(pods_at(*listed), now_s, container_concurrency=slots)
        elif step == "readmit":
            ran = made.readmit(now_s)
        elif step in {"expire", "give up"}:
            inside -= set(made.sent_away(now_s, is_late=step == "expire"))
        validate(made)
        for run in ran:
            assert run.pod.address in listed
            assert run.request in inside - on_pod.keys()
            on_pod[run.request] = run.pod.address
        assert made.level == len(inside)
        assert made.running_count == len(on_pod)
        assert made.waiting_count == len(inside) - len(on_pod)


def shared(*, slots: dict[str, int]) -> Held:
    made = Held(KEY, SMALL, random=lambda: 0.0, now_s=0.0)
    made.set_pods(pods_at(*slots), 0.0, container_concurrency=2, slots=slots)
    return made


def test_where_account_is_kept_of_slots_a_pod_is_given_those_that_are_ours() -> None:
    made = shared(slots={"p": 1, "q": 0, "r": 2})
    assert made.come("a", "b", "c", "d") == ["a@p", "b@r", "c@r"]
    assert made.balancer.in_flight_by_pod() == {"p": 1, "r": 2}
    assert made.slots_per_pod == 2
    assert [made.address_of.get(request) for request in "ad"] == ["p", None]


def test_a_slot_that_becomes_ours_is_used_by_who_waits() -> None:
    made = shared(slots={"p": 0})
    made.come("a")
    assert shown(made, made.set_slots("p", 1, 1.0)) == ["a@p"]


def test_a_slot_taken_away_is_not_reused_after_its_request() -> None:
    made = shared(slots={"p": 1})
    made.come("a", "b")
    assert shown(made, made.set_slots("p", 0, 1.0)) == []
    assert made.go("a") == []
    assert made.waiting_count == 1


def test_a_pod_that_is_not_listed_has_no_slots() -> None:
    made = shared(slots={"p": 0})
    made.come("a")
    assert made.set_slots("q", 1, 1.0) == ()


def test_a_slot_of_a_pod_that_is_left_alone_waits_until_it_is_tried_again() -> None:
    made = shared(slots={"p": 1})
    made.come("a", "b")
    made.back("a")
    assert made.ejected.addresses == {"p"}
    assert shown(made, made.set_slots("p", 2, 0.01)) == []
    assert shown(made, made.readmit(0.1)) == ["a@p", "b@p"]


def test_the_oldest_reports_since_when_it_waits() -> None:
    made = held()
    assert made.slots_per_pod is None
    assert made.waiting_since_s is None
    made.arrive("a", 3.0)
    made.arrive("b", 4.0)
    assert made.waiting_since_s == 3.0


def test_one_that_came_back_waits_since_then() -> None:
    made = held(pods=["p"])
    made.come("a")
    made.requeue("a", 5.0)
    made.arrive("b", 6.0)
    assert made.waiting_since_s == 5.0


def test_without_pods_none_is_silent() -> None:
    made = held()
    made.come("a")
    assert made.eject_silent(0.0, after_s=3.0, has_begun=lambda _: False) == []


def test_a_silent_pod_is_ejected_and_reported_with_its_requests() -> None:
    made = held(pods=["p", "q"], slots=3)
    assert made.come(*"abc") == ["a@p", "b@p", "c@p"]
    made.eject_silent(0.0, after_s=3.0, has_begun=lambda _: False)
    assert made.come("d", now_s=3.0) == ["d@q"]
    made.go("d", 3.0)
    (silent,) = made.eject_silent(3.0, after_s=3.0, has_begun=lambda _: False)
    assert (silent.pod.name, silent.is_new, silent.requests) == ("pod-p", True, ("a", "b", "c"))
    assert made.come("e", now_s=3.1) == ["e@q"]
    (again,) = made.eject_silent(4.0, after_s=3.0, has_begun=lambda request: request == "a")
    assert (again.is_new, again.requests) == (False, ("b", "c"))


def test_a_session_keeps_its_pod_and_leaves_nothing_behind() -> None:
    made = held(pods=["a", "b", "c"], slots=2)
    first = made.arrive("1", 0.0, session=12345)
    assert isinstance(first, Dispatch)
    assert [made.arrive(name, 0.0, session=12345) for name in "2"] == [Dispatch(request="2", pod=first.pod)]
    third = made.arrive("3", 0.0, session=12345)
    assert isinstance(third, Dispatch)
    assert third.pod != first.pod, "its pod is full"
    assert made.come("4") != []
    for name in "1234":
        made.go(name)
    assert made.level == 0
    validate(made)


def test_a_session_that_waits_goes_to_its_pod_and_one_that_waited_too_long_is_forgotten() -> None:
    made = held()
    made.arrive("1", 0.0, session=7)
    made.arrive("2", 5.0, session=7)
    assert made.sent_away(10.0) == ["1"]
    validate(made)
    (again,) = made.set_pods(pods_at("a", "b"), 11.0, container_concurrency=0)
    (same,) = [made.arrive("3", 12.0, session=7)]
    assert isinstance(same, Dispatch)
    assert again.pod == same.pod
