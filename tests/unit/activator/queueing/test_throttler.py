"""Who runs on which pod, who waits, who is refused."""

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.queueing.pods import RevisionPods
from serving.activator.queueing.throttler import RevisionThrottler, Started
from serving.model.errors import IllegalTransition
from serving.settings.activator import ActivatorSettings
from serving.traffic.breaker import Queued, QueueLimit, Rejected

SMALL = ActivatorSettings(queue_depth_max=3, queue_bytes_max=100, queue_wait_max_s=10.0)


class Held(RevisionThrottler[str]):
    """A throttler that is validated after each step."""

    @property
    def running_count(self) -> int:
        return self.level - self.waiting_count

    @property
    def known_pods(self) -> RevisionPods:
        assert self.pods is not None
        return self.pods

    def listed(self, *addresses: str, now_s: float = 0.0, slots: int = 1) -> list[str]:
        return shown(self, self.set_pods(addresses, now_s, container_concurrency=slots))

    def come(self, *requests: str, now_s: float = 0.0) -> list[str]:
        answers = [self.arrive(request, now_s) for request in requests]
        return shown(self, [answer for answer in answers if isinstance(answer, Started)])

    def go(self, request: str, now_s: float = 0.0) -> list[str]:
        return shown(self, self.finish(request, now_s))

    def back(self, request: str, now_s: float = 0.0) -> list[str]:
        return shown(self, self.requeue(request, now_s))


def shown(holder: RevisionThrottler[str], runs: Iterable[Started[str]]) -> list[str]:
    """Runs as "request@pod"."""
    holder.validate()
    return [f"{run.request}@{run.address}" for run in runs]


def held(settings: ActivatorSettings = SMALL, *, pods: Sequence[str] = (), slots: int = 1) -> Held:
    made = Held(settings=settings, random=lambda: 0.0, now_s=0.0)
    if pods:
        made.listed(*pods, slots=slots)
    return made


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
    (run,) = made.set_pods(["p"], 3.5, container_concurrency=1)
    assert run == Started(request="a", address="p", waited_s=2.5)


def test_with_a_free_slot_a_request_runs_at_once() -> None:
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
    answer = made.arrive("d", 0.0)
    assert isinstance(answer, Rejected)
    assert (answer.limited_by, made.level) == (QueueLimit.COUNT, 3)


def test_the_queue_is_bounded_in_bytes() -> None:
    made = held()
    made.arrive("a", 0.0, weight_bytes=60)
    answer = made.arrive("b", 0.0, weight_bytes=60)
    assert isinstance(answer, Rejected)
    assert answer.limited_by is QueueLimit.BYTES


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
    assert made.next_due_s() == 0.05
    assert shown(made, made.readmit(0.04)) == []
    assert shown(made, made.readmit(0.05)) == ["a@p"]
    assert made.next_due_s() is None


def test_pauses_grow_up_to_a_second() -> None:
    made, now_s, pauses_s = held(pods=["p"]), 0.0, []
    made.come("a")
    for _ in range(7):
        made.back("a", now_s)
        due_s = made.next_due_s()
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
    assert made.next_due_s() == 0.3


def test_many_requests_on_a_pod_that_was_gone_make_one_failure() -> None:
    made = held(pods=["p"], slots=2)
    made.come("a", "b")
    made.back("a", 0.0)
    made.back("b", 0.03)
    assert made.next_due_s() == 0.05


def test_a_pod_that_is_off_the_list_is_not_tried_again() -> None:
    made = held(pods=["p", "q"])
    made.come("a")
    made.back("a")
    made.listed("q")
    assert made.next_due_s() is None


def test_a_request_that_comes_back_from_a_pod_off_the_list_leaves_no_pause() -> None:
    made = held(pods=["p"])
    made.come("a")
    made.listed()
    made.back("a")
    assert (made.next_due_s(), made.listed("q")) == (10.0, ["a@q"])


def test_who_has_waited_too_long_is_out() -> None:
    made = held()
    made.come("a")
    made.come("b", now_s=1.0)
    assert made.next_due_s() == 10.0
    assert (made.expire(10.0), made.level) == (["a"], 1)


def test_who_came_back_and_has_waited_too_long_is_out() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.listed()
    made.back("a", 1.0)
    assert made.expire(11.0) == ["a", "b"]
    made.validate()


def test_all_who_wait_can_be_sent_away_and_who_runs_stays() -> None:
    made = held(pods=["p", "q"])
    made.come("a", "b", "c")
    made.listed()
    made.back("b", 3.0)
    assert (made.expire(4.0, all_waiting=True), made.running_count, made.level) == (["b", "c"], 1, 1)
    made.validate()


def test_the_meter_sees_true_times_when_all_are_sent_away() -> None:
    made = held()
    made.come("a")
    made.expire(0.5, all_waiting=True)
    assert made.report(1.0).concurrency == 0.5


def test_a_client_that_leaves_after_its_pod_was_gone_frees_its_place() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.back("a")
    assert (made.go("a"), made.level) == ([], 1)


def test_load_is_what_runs_and_what_waits() -> None:
    made = held(pods=["p"])
    made.come("a", "b")
    made.go("a", 1.0)
    report = made.report(2.0)
    assert (report.concurrency, report.request_count) == (1.5, 2)


def test_a_throttler_shows_what_is_inside() -> None:
    made = held()
    made.come("a")
    assert repr(made) == "RevisionThrottler(0 run, 1 wait, None)"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 40)),
        st.tuples(st.sampled_from(["finish", "back"]), st.integers(0, 40)),
        st.tuples(st.just("pods"), st.frozensets(st.integers(0, 3))),
        st.tuples(st.sampled_from(["readmit", "expire", "give up"]), st.just(0)),
    ),
    max_size=60,
)


@given(steps=STEPS, slots=st.integers(0, 3), seed=st.integers(0, 100))
def test_every_request_is_in_one_place(steps: list[tuple[str, object]], slots: int, seed: int) -> None:
    settings = ActivatorSettings(queue_depth_max=10, queue_wait_max_s=5.0)
    made = Held(settings=settings, random=random.Random(seed).random, now_s=0.0)
    inside: set[str] = set()
    on_pod: dict[str, str] = {}
    listed: set[str] = set()
    for place, (step, value) in enumerate(steps):
        now_s, request = place * 0.5, str(value)
        ran: Sequence[Started[str]] = ()
        if step == "arrive" and request not in inside:
            answer = made.arrive(request, now_s)
            if not isinstance(answer, Rejected):
                inside.add(request)
            ran = [answer] if isinstance(answer, Started) else ()
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
            ran = made.set_pods(listed, now_s, container_concurrency=slots)
        elif step == "readmit":
            ran = made.readmit(now_s)
        elif step in {"expire", "give up"}:
            inside -= set(made.expire(now_s) if step == "expire" else made.expire(now_s, all_waiting=True))
        made.validate()
        for run in ran:
            assert run.address in listed
            assert run.request in inside - on_pod.keys()
            on_pod[run.request] = run.address
        assert made.level == len(inside)
        assert made.running_count == len(on_pod)
        assert made.waiting_count == len(inside) - len(on_pod)


def shared(*, slots: dict[str, int]) -> Held:
    made = Held(settings=SMALL, random=lambda: 0.0, now_s=0.0)
    made.set_pods(slots, 0.0, container_concurrency=2, slots=slots)
    return made


def test_where_account_is_kept_of_slots_a_pod_is_given_those_that_are_ours() -> None:
    made = shared(slots={"p": 1, "q": 0, "r": 2})
    assert made.come("a", "b", "c", "d") == ["a@p", "b@r", "c@r"]
    assert made.known_pods.in_flight == {"p": 1, "r": 2}
    assert made.known_pods.slots_per_pod == 2
    assert [made.address_of.get(request) for request in "ad"] == ["p", None]


def test_a_slot_that_becomes_ours_is_used_by_who_waits() -> None:
    made = shared(slots={"p": 0})
    made.come("a")
    assert shown(made, made.set_slots("p", 1, 1.0)) == ["a@p"]


def test_a_slot_that_is_ours_no_longer_is_used_by_nobody_once_its_request_ends() -> None:
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
    assert made.known_pods.ejected == {"p"}
    assert shown(made, made.set_slots("p", 2, 0.01)) == []
    assert shown(made, made.readmit(0.1)) == ["a@p", "b@p"]


def test_the_oldest_tells_since_when_it_waits() -> None:
    made = held()
    assert made.pods is None
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


def test_without_pods_none_is_ejected() -> None:
    assert not held().eject_silent("p", 0.0)


def test_a_silent_pod_is_ejected_once_and_never_more_than_half_of_the_pods() -> None:
    made = held(pods=["p", "q"])
    assert [made.eject_silent(pod, 0.0) for pod in ("p", "p", "q", "unknown")] == [True, False, False, False]
    assert made.known_pods.ejected == {"p"}


def test_a_session_keeps_its_pod_and_leaves_nothing_behind() -> None:
    made = held(pods=["a", "b", "c"], slots=2)
    first = made.arrive("1", 0.0, session=12345)
    assert isinstance(first, Started)
    assert [made.arrive(name, 0.0, session=12345) for name in "2"] == [Started(request="2", address=first.address)]
    third = made.arrive("3", 0.0, session=12345)
    assert isinstance(third, Started)
    assert third.address != first.address, "its pod is full"
    assert made.come("4") != []
    for name in "1234":
        made.go(name)
    assert made.level == 0
    made.validate()


def test_a_session_that_waits_goes_to_its_pod_and_one_that_waited_too_long_is_forgotten() -> None:
    made = held()
    made.arrive("1", 0.0, session=7)
    made.arrive("2", 5.0, session=7)
    assert made.expire(10.0) == ["1"]
    made.validate()
    (again,) = made.set_pods(["a", "b"], 11.0, container_concurrency=0)
    (same,) = [made.arrive("3", 12.0, session=7)]
    assert isinstance(same, Started)
    assert again.address == same.address
