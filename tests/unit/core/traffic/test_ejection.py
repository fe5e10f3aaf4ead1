"""Pods that get no requests for a while."""

from collections.abc import Collection
from itertools import pairwise

import msgspec
import pytest

from serving.core.traffic.ejection import EjectedPods, Ejection, EjectionReport, SilenceWatch


def listed(*addresses: str) -> EjectedPods[str]:
    ejected_pods = EjectedPods[str]()
    ejected_pods.set_listed(addresses)
    return ejected_pods


def test_a_pod_that_fails_is_ejected_until_its_pause_is_over() -> None:
    ejected_pods = listed("p", "q")
    assert ejected_pods.failed("p", 1.0)
    assert (ejected_pods.addresses, ejected_pods.pause_ends_s()) == ({"p"}, 1.05)
    assert not ejected_pods.readmit(1.04)
    assert ejected_pods.readmit(1.05)
    assert (ejected_pods.addresses, ejected_pods.pause_ends_s()) == (set(), None)


def test_another_failure_during_the_pause_changes_nothing() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 1.0)
    assert not ejected_pods.failed("p", 1.04)
    assert ejected_pods.pause_ends_s() == 1.05


def test_pauses_double_up_to_a_second_until_the_pod_answers() -> None:
    ejected_pods, now_s, pauses_s = listed("p", "q"), 0.0, []
    for _ in range(7):
        ejected_pods.failed("p", now_s)
        due_s = ejected_pods.pause_ends_s()
        assert due_s is not None
        pauses_s.append(round(due_s - now_s, 3))
        now_s = due_s
        ejected_pods.readmit(now_s)
    assert pauses_s == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    ejected_pods.record_response("p", now_s)
    ejected_pods.failed("p", 10.0)
    assert ejected_pods.pause_ends_s() == 10.05


def test_a_starting_pod_is_tried_after_a_tenth_of_the_time_since_its_first_failure_for_ten_seconds() -> None:
    ejected_pods, now_s, times_s = listed("p"), 0.0, []
    ejected_pods.failed("p", now_s, may_start=True)
    while (due_s := ejected_pods.probe_due_s()) is not None and now_s < 20.0:
        assert ejected_pods.due_probes(due_s) == ["p"]
        times_s.append(due_s)
        now_s = due_s
        ejected_pods.ejections["p"] = msgspec.structs.replace(ejected_pods.ejections["p"], until_s=99.0)
        assert not ejected_pods.probed("p", now_s, is_open=False)
    assert times_s[0] == 0.01
    assert all(0.0099 <= after - before <= max(0.1001 * before, 0.0101) for before, after in pairwise(times_s))
    assert 10.0 <= times_s[-1] < 10.2
    assert not ejected_pods.probed("p", now_s, is_open=True)


def test_a_connection_ends_the_pause_of_a_starting_pod_once() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0, may_start=True)
    assert ejected_pods.due_probes(0.01) == ["p"]
    assert ejected_pods.due_probes(0.02) == []
    assert ejected_pods.probed("p", 0.03, is_open=True)
    assert ejected_pods.addresses == set()
    assert not ejected_pods.probed("p", 0.04, is_open=True)
    ejected_pods.failed("p", 0.05, may_start=True)
    ejected_pods.set_listed({"q"})
    assert ejected_pods.probe_due_s() is None
    assert not ejected_pods.probed("p", 0.06, is_open=True)


def test_a_response_during_the_pause_does_not_end_it() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0)
    assert not ejected_pods.record_response("p", 0.01)
    assert not ejected_pods.record_response("q", 0.01)
    assert ejected_pods.addresses == {"p"}


def test_pods_off_the_list_are_forgotten() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0)
    ejected_pods.failed("q", 0.0)
    ejected_pods.record_response("p", 0.1)
    ejected_pods.set_listed({"q"})
    assert set(ejected_pods.ejections) == {"q"}
    assert ejected_pods.responded_s == {}


def test_a_pod_off_the_list_is_not_ejected() -> None:
    ejected_pods = listed("p")
    assert not ejected_pods.failed("x", 0.0)
    assert ejected_pods.ejections == {}


def test_a_silent_pod_is_ejected_once_and_never_more_than_half_of_the_pods() -> None:
    ejected_pods = listed("p", "q")
    assert [ejected_pods.silent(pod, 0.0) for pod in ("p", "p", "q", "unknown")] == [True, False, False, False]
    assert ejected_pods.silent_addresses == {"p"}


def test_ejections_are_reported_with_names_in_time_of_the_wall() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 3.0)
    reports = ejected_pods.reports("r", {"p": "pod-p", "q": "pod-q"}, {"p": 2}, now_s=3.01, wall_s=1003.01)
    report = EjectionReport(
        revision="r",
        pod="pod-p",
        address="p",
        is_silent=False,
        failure_count=1,
        in_flight_count=2,
        since_wall_s=1003.0,
        until_wall_s=1003.05,
    )
    assert reports == [report]
    ejected_pods.readmit(3.05)
    (again,) = ejected_pods.reports("r", {"p": "pod-p"}, {}, now_s=4.0, wall_s=1004.0)
    assert (again.until_wall_s, again.in_flight_count) == (None, 0)


def test_a_silent_pod_is_ejected_for_longer_and_until_it_answers() -> None:
    ejected_pods = listed("p", "q")
    assert ejected_pods.silent("p", 0.0)
    assert not ejected_pods.silent("p", 1.0)
    assert ejected_pods.pause_ends_s() == 5.0
    assert ejected_pods.record_response("p", 2.0)
    assert ejected_pods.addresses == set()


def test_pauses_of_a_silent_pod_double_up_to_a_minute() -> None:
    ejected_pods, now_s, pauses_s = listed("p", "q"), 0.0, []
    for _ in range(6):
        ejected_pods.silent("p", now_s)
        due_s = ejected_pods.pause_ends_s()
        assert due_s is not None
        pauses_s.append(due_s - now_s)
        now_s = due_s
        ejected_pods.readmit(now_s)
    assert pauses_s == [5, 10, 20, 40, 60, 60]


def test_a_pod_that_was_unreachable_can_turn_out_to_be_silent() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0)
    assert ejected_pods.silent("p", 0.01)
    assert ejected_pods.pause_ends_s() == 5.01


def test_failures_in_a_row_count_from_the_first_and_one_of_another_kind_begins_again() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 1.0)
    ejected_pods.readmit(1.05)
    ejected_pods.failed("p", 2.0)
    assert ejected_pods.ejections["p"] == Ejection(failure_count=2, since_s=1.0, until_s=2.1, is_silent=False)
    ejected_pods.silent("p", 3.0)
    assert ejected_pods.ejections["p"] == Ejection(failure_count=1, since_s=3.0, until_s=8.0, is_silent=True)
    ejected_pods.readmit(8.0)
    ejected_pods.silent("p", 9.0)
    assert ejected_pods.ejections["p"] == Ejection(failure_count=2, since_s=3.0, until_s=19.0, is_silent=True)


@pytest.mark.parametrize(("is_silent", "longest_s"), [(False, 1.0), (True, 60.0)])
def test_a_pod_that_stays_listed_and_unreachable_for_hours_is_ejected_each_time(
    is_silent: bool, longest_s: float
) -> None:
    """A pause of 1 s each: after 1,024 of them 2^1024 exceeded a float."""
    ejected_pods, now_s = listed("p", "q"), 0.0
    for _ in range(2_500):
        assert ejected_pods.silent("p", now_s) if is_silent else ejected_pods.failed("p", now_s)
        assert ejected_pods.addresses == {"p"}
        due_s = ejected_pods.pause_ends_s()
        assert due_s is not None
        assert due_s - now_s <= longest_s + 1e-6
        now_s = due_s
        assert ejected_pods.readmit(now_s)
    assert ejected_pods.ejections["p"].failure_count == 2_500


class Watched:
    """Two pods, p and q, checked once a second; q always responds."""

    def __init__(self, *, slots: int = 0) -> None:
        self.watch = SilenceWatch[str]()
        self.slots = slots
        self.responded_s = {"q": 0.0}

    def find_silent(
        self, on_p: str, now_s: float, *, begun: Collection[str] = (), q_responds: bool = True
    ) -> list[str]:
        if q_responds:
            self.responded_s["q"] = now_s
        return self.watch.find_silent(
            dict.fromkeys(on_p, "p"),
            self.responded_s,
            now_s,
            has_begun=lambda request: request in begun,
            slots_per_pod=self.slots,
            after_s=3.0,
        )


def test_a_pod_whose_requests_wait_while_another_answers_is_silent() -> None:
    watched = Watched()
    assert [watched.find_silent("abc", now_s) for now_s in (10.0, 11.0, 12.0, 13.0)] == [[], [], [], ["p"]]


def test_two_requests_are_not_enough() -> None:
    watched = Watched()
    assert [watched.find_silent("ab", now_s) for now_s in (10.0, 13.0, 20.0)] == [[], [], []]


def test_a_pod_of_few_slots_is_given_four_times_as_long() -> None:
    watched = Watched(slots=1)
    assert [watched.find_silent("a", now_s) for now_s in (10.0, 13.0, 21.0, 22.0)] == [[], [], [], ["p"]]


def test_while_no_pod_answers_none_is_silent() -> None:
    watched = Watched()
    assert [watched.find_silent("abc", now_s, q_responds=False) for now_s in (10.0, 13.0, 20.0)] == [[], [], []]


def test_a_pod_that_answers_some_requests_is_not_silent() -> None:
    watched = Watched()
    watched.find_silent("abc", 10.0)
    watched.responded_s["p"] = 12.0
    assert watched.find_silent("abc", 13.0) == []
    assert watched.find_silent("abc", 15.0) == ["p"]


def test_a_response_that_begins_counts_once() -> None:
    watched = Watched()
    watched.find_silent("abcd", 10.0)
    assert watched.find_silent("abcd", 13.0, begun="d") == []
    assert watched.find_silent("abcd", 17.0, begun="d") == []
    # d waited for 3 s, so that others may wait for 6 s.
    assert watched.find_silent("abcd", 19.1, begun="d") == ["p"]


def test_answers_that_came_late_make_patient() -> None:
    watched = Watched()
    watched.find_silent("abc", 10.0)
    watched.responded_s["p"] = 18.0
    watched.find_silent("", 18.0)
    watched.find_silent("def", 19.0)
    assert [watched.find_silent("def", now_s) for now_s in (23.0, 30.0, 35.0)] == [[], [], ["p"]]


def test_requests_that_were_given_up_do_not() -> None:
    watched = Watched()
    watched.find_silent("abc", 10.0)
    watched.find_silent("", 18.0)
    watched.find_silent("def", 19.0)
    assert watched.find_silent("def", 22.0) == ["p"]


def test_pods_that_the_watch_finds_are_ejected_once() -> None:
    ejected_pods = listed("p", "q")
    results = []
    for now_s in (10.0, 13.0, 14.0):
        ejected_pods.record_response("q", now_s)
        in_flight = dict.fromkeys("abc", "p")
        results.append(
            ejected_pods.eject_silent(in_flight, now_s, has_begun=lambda _: False, slots_per_pod=0, after_s=3.0)
        )
    assert results == [set(), {"p"}, set()]
