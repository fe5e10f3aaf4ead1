"""StartQueue: first pods start before additional pods, concurrent starts are limited, and no pod starves."""

from hypothesis import given
from hypothesis import strategies as st

from serving.home.pods.startqueue import BURST_S, LEAD_MAX_S, PATIENCE_S, SHARE_TURNS, PodStart, StartQueue

_TURNS = 3
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "end", "leave", "wait"]),
        st.integers(0, 5),
        st.sampled_from([0.0, 0.02, 0.3, 4.0]),
    ),
    max_size=120,
)


def _added(queue: StartQueue, *revisions: str, now_s: float = 0.0) -> list[PodStart]:
    pods = [PodStart(revision=revision) for revision in revisions]
    for pod in pods:
        queue.add(pod, now_s=now_s)
    return pods


def test_concurrent_starts_are_limited_to_turn_count() -> None:
    queue = StartQueue(2)
    a, b, c = _added(queue, "a", "b", "c")
    assert queue.begin(now_s=0.0) == [a, b]
    assert (queue.begin(now_s=9.0), queue.due_s(now_s=9.0)) == ([], None)
    queue.end(b)
    assert queue.begin(now_s=9.0) == [c]


def test_first_pods_start_before_additional_pods_in_arrival_order() -> None:
    queue = StartQueue(1)
    running, other, b, c = _added(queue, "a", "a", "b", "c")
    assert queue.begin(now_s=1.0) == [running]
    order = []
    for pod in (running, b, c):
        queue.end(pod)
        order += queue.begin(now_s=1.0)
    assert order == [b, c, other]
    assert [pod.is_first for pod in (running, b, c, other)] == [True, True, True, False]


def test_additional_pod_starts_after_first_pods_turn_or_lead_time() -> None:
    queue = StartQueue(_TURNS)
    first, other = _added(queue, "a", "a")
    assert queue.begin(now_s=0.0) == [first]
    assert queue.due_s(now_s=0.0) == LEAD_MAX_S
    queue.end(first)
    assert queue.begin(now_s=0.01) == [other]
    [third] = _added(queue, "a", now_s=1.0)
    assert queue.begin(now_s=1.0) == [third]

    slow, late = _added(queue, "b", "b", now_s=2.0)
    queue.end(third)
    queue.begin(now_s=2.0)
    assert slow.is_first
    assert queue.begin(now_s=2.0 + LEAD_MAX_S) == [late]


def test_revision_with_fewest_turns_starts_next() -> None:
    queue = StartQueue(1)
    _added(queue, "grows", "small")
    grows, small = queue.begin(now_s=0.0)[0], None
    queue.end(grows)
    [small] = queue.begin(now_s=0.0)
    more = _added(queue, "grows", "grows", "small", now_s=0.1)
    order, running = [], small
    for _ in more:
        queue.end(running)
        [running] = queue.begin(now_s=1.0)
        order.append(running)
    assert order == [more[0], more[2], more[1]]


def test_additional_pods_wait_until_burst_ends() -> None:
    queue = StartQueue(_TURNS)
    firsts = _added(queue, "a", "b", "c")
    others = _added(queue, "a", "b", "c")
    assert queue.begin(now_s=0.0) == firsts
    for pod in firsts:
        queue.end(pod)
    assert queue.begin(now_s=0.2) == []
    assert queue.due_s(now_s=0.2) == BURST_S
    assert queue.begin(now_s=BURST_S) == others


def test_removed_pods_never_start() -> None:
    queue = StartQueue(_TURNS)
    firsts = _added(queue, "a", "b", "c")
    others = _added(queue, "a", "b", "c")
    queue.begin(now_s=0.0)
    for pod in (*firsts, others[1]):
        queue.remove(pod)
    assert queue.waiting_count == 2
    # The remaining pods are now first pods.
    assert queue.begin(now_s=0.0) == [others[0], others[2]]
    assert others[0].is_first


def test_pod_is_additional_while_another_of_its_revision_exists() -> None:
    queue = StartQueue(_TURNS)
    adopted, first = PodStart(revision="a"), PodStart(revision="b")
    queue.adopt(adopted)
    queue.add(first, now_s=0.0)
    other, another = _added(queue, "a", "b")
    queue.begin(now_s=0.0)
    assert (other.is_first, another.is_first) == (False, False)
    queue.remove(adopted)
    queue.remove(first)
    [newer] = _added(queue, "a", now_s=1.0)
    assert newer.is_first is False
    queue.remove(other)
    queue.remove(newer)
    [newest] = _added(queue, "a", now_s=2.0)
    assert newest.is_first


def test_readded_pod_gets_another_turn() -> None:
    queue = StartQueue(1)
    [pod] = _added(queue, "a")
    queue.begin(now_s=0.0)
    queue.end(pod)
    queue.add(pod, now_s=1.0)
    assert pod.is_first
    assert queue.begin(now_s=1.0) == [pod]


def test_additional_pod_starts_within_share_turns_of_a_burst() -> None:
    queue, order = StartQueue(1), []
    [running] = _added(queue, "a")
    queue.begin(now_s=0.0)
    [other] = _added(queue, "a")
    now_s, number = PATIENCE_S, 0
    while other not in order:
        queue.end(running)
        _added(queue, f"r{number}", f"s{number}", now_s=now_s)
        [running] = queue.begin(now_s=now_s)
        order.append(running)
        number += 1
    assert len(order) <= SHARE_TURNS


@given(steps=_STEPS, turn_count=st.integers(1, 4))
def test_start_order_invariants_hold_for_any_arrivals(steps: list[tuple[str, int, float]], turn_count: int) -> None:
    queue, now_s = StartQueue(turn_count), 0.0
    waiting: list[PodStart] = []
    running: list[PodStart] = []
    gone: list[PodStart] = []
    for what, number, passed_s in steps:
        now_s += passed_s
        if what == "add":
            waiting += _added(queue, f"r{number}", now_s=now_s)
        elif what == "end" and running:
            queue.end(running.pop(number % len(running)))
        elif what == "leave" and (waiting or running):
            pod = [*waiting, *running][number % len([*waiting, *running])]
            queue.remove(pod)
            gone.append(pod)
            waiting, running = (
                [pod_start for pod_start in waiting if pod_start is not pod],
                [pod_start for pod_start in running if pod_start is not pod],
            )
        firsts = [pod_start for pod_start in waiting if pod_start.is_first]
        begun = queue.begin(now_s=now_s)
        assert not set(map(id, begun)) & set(map(id, gone))
        for pod in begun:
            waiting.remove(pod)
        running += begun
        assert len(running) <= turn_count
        # A first pod waits only for a turn; an additional pod precedes it only after PATIENCE_S.
        remaining = [pod_start for pod_start in firsts if pod_start not in begun]
        assert not remaining or len(running) == turn_count
        assert not remaining or all(
            pod_start.is_first or now_s >= pod_start.arrived_s + PATIENCE_S for pod_start in begun
        )
        assert [pod_start for pod_start in firsts if pod_start in begun] == firsts[: len(firsts) - len(remaining)]
        # due_s is the time at which a waiting pod may start.
        if waiting and len(running) < turn_count:
            due_s = queue.due_s(now_s=now_s)
            assert due_s is None or now_s < due_s <= now_s + PATIENCE_S
            assert due_s is not None or any(not pod_start.is_first for pod_start in running)
    # Without further arrivals, all pods start.
    for _ in range(len(waiting) + len(running)):
        for pod in running:
            queue.end(pod)
        now_s += PATIENCE_S
        running = queue.begin(now_s=now_s)
        waiting = [pod_start for pod_start in waiting if pod_start not in running]
    assert not waiting


@given(
    waiting_count=st.integers(1, 6),
    turn_count=st.integers(1, 4),
    arrivals=st.lists(st.integers(0, 3), min_size=60, max_size=60),
)
def test_additional_pods_do_not_starve_in_endless_burst(
    waiting_count: int, turn_count: int, arrivals: list[int]
) -> None:
    queue = StartQueue(turn_count)
    grows = PodStart(revision="grows")
    queue.adopt(grows)
    others = _added(queue, *["grows"] * waiting_count)
    running: list[PodStart] = []
    now_s, turns, begun = PATIENCE_S, 0, 0
    number = 0
    while begun < waiting_count:
        for _ in range(arrivals[number % len(arrivals)]):
            _added(queue, f"r{number}-{_}", now_s=now_s)
        new = queue.begin(now_s=now_s)
        turns += len(new)
        begun += sum(pod_start in others for pod_start in new)
        running += new
        if running:
            queue.end(running.pop(0))
        now_s += 0.05
        number += 1
        # The last pod waits for the shares of the pods before it, and for the running pods.
        assert turns <= (begun + 1) * (SHARE_TURNS + turn_count)
