"""The table that the router and the slot broker work on."""

from serving.activator.queueing.table import RevisionTable, TickSchedule
from serving.activator.slots.broker import SlotBroker
from serving.settings.activator import ActivatorSettings

KEY = ("default", "hello-00001")


def test_everything_shows_what_is_inside() -> None:
    table = RevisionTable[str](ActivatorSettings(), random=lambda: 0.0)
    active = table.open(KEY, 0.0)
    active.throttler.set_pods(["p"], 0.0, container_concurrency=1)
    assert repr(active) == (
        "ActiveRevision(hello-00001, RevisionThrottler(0 run, 0 wait, RevisionPods(Balancer(first-free, 1 pods, 1 free, "
        "0 draining, in flight 0, free slots 1), EjectedPods(none))))"
    )
    assert repr(table) == (
        "RevisionTable(1 active, RevisionDirectory(0 revisions, SliceIndex(0 of 0 revisions), "
        "UnreadyPods(0 pods of 0 revisions, 0 probes)), TickSchedule(0 pending, 0 due later))"
    )
    broker = SlotBroker[str](table, first_round=1, send=lambda peer, message: None)  # noqa: ARG005 - it has no peers
    assert repr(broker) == "SlotBroker(Ledger(0 of (), frozen, 0 pods with loans), asks for 0 revisions)"


def test_a_revision_is_open_while_it_has_requests() -> None:
    table = RevisionTable[str](ActivatorSettings(), random=lambda: 0.0)
    table.open(KEY, 0.0).throttler.arrive("a", 0.0)
    assert (set(table.keys), table.inside(), table.level) == ({KEY}, [(KEY, 1, 1)], 1)
    table.close(KEY)
    assert (set(table.keys), table.inside(), table.throttler(KEY), table.in_flight(KEY)) == (set(), [], None, {})


def test_a_revision_without_pods_has_no_silent_pods() -> None:
    table = RevisionTable[str](ActivatorSettings(), random=lambda: 0.0)
    table.open(KEY, 0.0).throttler.arrive("a", 0.0)
    assert table.eject_silent(10.0, has_begun=lambda _: False) == []


def test_silent_pods_are_not_ejected_where_the_setting_is_0() -> None:
    table = RevisionTable[str](ActivatorSettings(eject_after_silence_s=0.0), random=lambda: 0.0)
    table.open(KEY, 0.0).throttler.set_pods(["p"], 0.0, container_concurrency=1)
    assert table.eject_silent(10.0, has_begun=lambda _: False) == []


A = ("default", "a")
B = ("default", "b")


def test_revisions_with_news_are_due_at_once_and_once() -> None:
    made = TickSchedule()
    made.schedule_tick(A)
    made.schedule_tick(A)
    assert made.has_pending_work
    assert made.take_due(0.0) == {A}
    assert (made.has_pending_work, made.take_due(0.0)) == (False, set())


def test_the_earlier_of_two_times_counts() -> None:
    made = TickSchedule()
    made.schedule_at(A, 2.0)
    made.schedule_at(A, 1.0)
    made.schedule_at(A, 3.0)
    assert made.next_due_s() == 1.0
    assert [made.take_due(now_s) for now_s in (0.5, 1.0, 2.0, 3.0)] == [set(), {A}, set(), set()]
    assert made.next_due_s() is None


def test_a_revision_that_was_forgotten_is_not_due() -> None:
    made = TickSchedule()
    made.schedule_at(A, 1.0)
    made.schedule_at(B, 1.0)
    made.forget(A)
    made.forget(A)
    assert repr(made) == "TickSchedule(0 pending, 1 due later)"
    assert made.take_due(1.0) == {B}
