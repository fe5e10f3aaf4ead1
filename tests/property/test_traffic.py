"""Admission and pod choice: requests are never lost, duplicated, reordered or above the limit."""

import random
from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from serving.core.traffic.admission import Admission, AdmissionTerms
from serving.core.traffic.balance import Balancer
from serving.core.traffic.places import Admitted, Granted, Queued, Rejected
from serving.core.traffic.policy import BalancingPolicy, policy_for
from tests.invariants import validate

Step = tuple[str, int]
CAPACITIES = st.one_of(st.none(), st.integers(0, 6))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 50)),
        st.tuples(st.sampled_from(["release", "cancel"]), st.integers(0, 20)),
        st.tuples(st.just("capacity"), st.integers(-1, 6)),
        st.tuples(st.just("expire"), st.integers(0, 8)),
    ),
    max_size=80,
)
WAIT_MAX_S = 10.0
DEPTH_MAX = 5
BYTES_MAX = 100

PODS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 4), max_size=6)
UNLIMITED_PODS = st.sets(st.sampled_from("abcdefgh"), max_size=6).map(lambda pods: dict.fromkeys(pods, None))
POD_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.just({}), st.integers(0, 20)),
        st.tuples(st.just("give_back"), st.just({}), st.integers(0, 20)),
        st.tuples(st.just("set_pods"), st.one_of(PODS, UNLIMITED_PODS), st.just(0)),
    ),
    max_size=60,
)
PodStep = tuple[str, dict[str, int | None], int]


TERMS = AdmissionTerms(depth_max=DEPTH_MAX, wait_max_s=WAIT_MAX_S, depth_bytes_max=BYTES_MAX)


class NaiveAdmission:
    """The same rules on plain lists, with the history of each request."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.running: list[int] = []
        self.waiting: list[tuple[int, float, int]] = []
        self.now_s = 0.0
        self.started: list[int] = []
        self.arrived = 0

    def grant(self) -> list[Granted[int]]:
        granted = []
        while self.waiting and (self.capacity is None or len(self.running) < self.capacity):
            request_id, since_s, _ = self.waiting.pop(0)
            self.running.append(request_id)
            self.started.append(request_id)
            granted.append(Granted(request_id=request_id, waited_s=self.now_s - since_s))
        return granted

    def admit(self, weight_bytes: int) -> type[Admitted | Queued | Rejected]:
        request_id = self.arrived
        self.arrived += 1
        if self.capacity is None or len(self.running) < self.capacity:
            self.running.append(request_id)
            self.started.append(request_id)
            return Admitted
        held_bytes = sum(weight for _, _, weight in self.waiting)
        if len(self.waiting) >= DEPTH_MAX or held_bytes + weight_bytes > BYTES_MAX:
            return Rejected
        self.waiting.append((request_id, self.now_s, weight_bytes))
        return Queued

    def pick(self, call: str, number: int) -> int | None:
        """A request for ``call``; None without one."""
        inside = [*self.running, *(place[0] for place in self.waiting if call == "cancel")]
        return inside[number % len(inside)] if inside else None

    def remove(self, request_id: int) -> list[Granted[int]]:
        self.running = [number for number in self.running if number != request_id]
        self.waiting = [place for place in self.waiting if place[0] != request_id]
        return self.grant()

    def expire(self) -> list[int]:
        late = [place for place in self.waiting if place[1] + WAIT_MAX_S <= self.now_s]
        self.waiting = [place for place in self.waiting if place not in late]
        return [place[0] for place in late]


def step(admission: Admission[int], naive: NaiveAdmission, call: str, number: int) -> None:
    """Make one call on both; assert equal results."""
    match call:
        case "admit":
            request_id = naive.arrived
            response = admission.arrive(request_id, naive.now_s, weight_bytes=number)
            assert type(response) is naive.admit(number)
            if isinstance(response, Queued):
                assert response == Queued(position=len(naive.waiting), deadline_s=naive.now_s + WAIT_MAX_S)
        case "release" | "cancel":
            picked = naive.pick(call, number)
            if picked is not None:
                granted = admission.end(picked, naive.now_s, has_response=call == "release")
                assert list(granted) == naive.remove(picked)
        case "capacity":
            naive.capacity = None if number < 0 else number
            assert list(admission.set_capacity(naive.capacity, naive.now_s)) == naive.grant()
        case _:
            naive.now_s += number
            assert admission.expire(naive.now_s) == naive.expire()


@given(capacity=CAPACITIES, steps=STEPS)
def test_admission_equals_the_naive_model(capacity: int | None, steps: list[Step]) -> None:
    admission = Admission[int](TERMS, capacity=capacity)
    naive = NaiveAdmission(capacity)
    for call, number in steps:
        step(admission, naive, call, number)
        validate(admission)
        assert (len(admission._running), admission.waiting_count) == (len(naive.running), len(naive.waiting))


@given(capacity=CAPACITIES, steps=STEPS)
def test_requests_start_once_in_arrival_order(capacity: int | None, steps: list[Step]) -> None:
    admission = Admission[int](TERMS, capacity=capacity)
    naive = NaiveAdmission(capacity)
    for call, number in steps:
        step(admission, naive, call, number)
    assert naive.started == sorted(set(naive.started))


@given(capacity=CAPACITIES, steps=STEPS)
def test_started_requests_never_exceed_the_capacity(capacity: int | None, steps: list[Step]) -> None:
    admission = Admission[int](TERMS, capacity=capacity)
    naive = NaiveAdmission(capacity)
    for call, number in steps:
        started_before = len(naive.started)
        step(admission, naive, call, number)
        if len(naive.started) > started_before and admission.capacity is not None:
            assert len(admission._running) <= admission.capacity


@given(capacity=CAPACITIES, steps=STEPS)
def test_admission_expiry_time_is_exact(capacity: int | None, steps: list[Step]) -> None:
    admission = Admission[int](TERMS, capacity=capacity)
    naive = NaiveAdmission(capacity)
    for call, number in steps:
        step(admission, naive, call, number)
    while (wake_s := admission.expires_s()) is not None:
        waiting_count = admission.waiting_count
        assert admission.expire(wake_s - 0.5) == []
        assert admission.expire(wake_s)
        assert admission.waiting_count < waiting_count


@given(policy=st.sampled_from(BalancingPolicy), source=st.randoms(), steps=POD_STEPS)
def test_balancer_picks_only_listed_pods_with_free_slots(
    policy: BalancingPolicy, source: random.Random, steps: list[PodStep]
) -> None:
    balancer = Balancer(policy, random=source.random)
    slots: dict[str, int | None] = {}
    results: list[str] = []
    for call, pods, number in steps:
        in_flight = Counter(results)
        if call == "set_pods":
            balancer.set_pods(pods)
            slots = pods
        elif call == "give_back" and results:
            balancer.release(results.pop(number % len(results)))
        elif call == "take":
            free = {pod for pod, own in slots.items() if own is None or in_flight[pod] < own}
            pod = balancer.pick()
            if pod is None:
                assert not free
            else:
                assert pod.address in free
                assert pod.in_flight == in_flight[pod.address] + 1
                results.append(pod.address)
        validate(balancer)


class Activator:
    """Admission and balancer, connected as in the activator."""

    def __init__(self, policy: BalancingPolicy, source: random.Random) -> None:
        self.balancer = Balancer(policy, random=source.random)
        self.admission: Admission[int] = Admission(AdmissionTerms(depth_max=1000, wait_max_s=WAIT_MAX_S), capacity=0)
        self.pod_of: dict[int, str] = {}
        self.arrived = 0

    def start(self, request_id: int) -> None:
        pod = self.balancer.pick()
        assert pod is not None
        self.pod_of[request_id] = pod.address

    def start_all(self, granted: Sequence[Granted[int]]) -> None:
        for grant in granted:
            self.start(grant.request_id)

    def arrive(self) -> None:
        request_id, self.arrived = self.arrived, self.arrived + 1
        if isinstance(self.admission.arrive(request_id, 0.0), Admitted):
            self.start(request_id)

    def finish(self, request_id: int) -> None:
        self.balancer.release(self.pod_of.pop(request_id))
        self.start_all(self.admission.set_capacity(self.balancer.capacity, 0.0))
        self.start_all(self.admission.release(request_id, 0.0))


@given(policy=st.sampled_from(BalancingPolicy), source=st.randoms(), steps=POD_STEPS)
def test_admitted_request_gets_a_pod_and_none_waits_with_a_free_slot(
    policy: BalancingPolicy, source: random.Random, steps: list[PodStep]
) -> None:
    activator = Activator(policy, source)
    for call, pods, number in steps:
        if call == "take":
            activator.arrive()
        elif call == "give_back" and activator.pod_of:
            activator.finish(sorted(activator.pod_of)[number % len(activator.pod_of)])
        elif call == "set_pods":
            activator.balancer.set_pods(pods)
            activator.start_all(activator.admission.set_capacity(activator.balancer.capacity, 0.0))
        validate(activator.admission)
        assert len(activator.admission._running) == len(activator.pod_of)
        if activator.admission.waiting_count:
            assert activator.balancer.pick() is None


@given(container_concurrency=st.integers(0, 1000), bound=st.integers(0, 1000))
def test_two_choices_policy_is_used_only_without_a_limit(container_concurrency: int, bound: int) -> None:
    policy = policy_for(container_concurrency, first_free_concurrency_max=bound)
    assert (policy is BalancingPolicy.TWO_CHOICES) == (container_concurrency == 0)
