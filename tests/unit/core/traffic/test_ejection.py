"""Ejection and readmission of pods."""

from collections.abc import Collection
from itertools import pairwise

import msgspec
import pytest

from serving.core.traffic.ejection import EjectedPods, Ejection, EjectionReport, SilenceWatch


def listed(*addresses: str) -> EjectedPods[str]:
    ejected_pods = EjectedPods[str]()
    ejected_pods.set_listed(addresses)
    return ejected_pods


def test_failed_pod_is_ejected_until_pause_ends() -> None:
    ejected_pods = listed("p", "q")
    assert ejected_pods.failed("p", 1.0)
    assert (ejected_pods.addresses, ejected_pods.pause_ends_s()) == ({"p"}, 1.05)
    assert not ejected_pods.readmit(1.04)
    assert ejected_pods.readmit(1.05)
    assert (ejected_pods.addresses, ejected_pods.pause_ends_s()) == (set(), None)


def test_failure_during_pause_does_not_extend_it() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 1.0)
    assert not ejected_pods.failed("p", 1.04)
    assert ejected_pods.pause_ends_s() == 1.05


def test_pauses_double_up_to_1_s_and_reset_after_response() -> None:
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


def test_starting_pod_is_probed_after_a_tenth_of_its_downtime_for_10_s() -> None:
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


def test_successful_probe_readmits_starting_pod_once() -> None:
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


def test_response_during_pause_does_not_readmit_pod() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0)
    assert not ejected_pods.record_response("p", 0.01)
    assert not ejected_pods.record_response("q", 0.01)
    assert ejected_pods.addresses == {"p"}


def test_unlisted_pods_are_removed_from_ejections_and_responses() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0)
    ejected_pods.failed("q", 0.0)
    ejected_pods.record_response("p", 0.1)
    ejected_pods.set_listed({"q"})
    assert set(ejected_pods.ejections) == {"q"}
    assert ejected_pods.responded_s == {}


def test_unlisted_pod_is_not_ejected() -> None:
    ejected_pods = listed("p")
    assert not ejected_pods.failed("x", 0.0)
    assert ejected_pods.ejections == {}


def test_silent_pod_is_ejected_once_and_at_most_half_of_pods() -> None:
    ejected_pods = listed("p", "q")
    assert [ejected_pods.silent(pod, 0.0) for pod in ("p", "p", "q", "unknown")] == [True, False, False, False]
    assert ejected_pods.silent_addresses == {"p"}


def test_reports_have_pod_names_and_wall_clock_times() -> None:
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


def test_silent_pod_is_ejected_for_5_s_or_until_response() -> None:
    ejected_pods = listed("p", "q")
    assert ejected_pods.silent("p", 0.0)
    assert not ejected_pods.silent("p", 1.0)
    assert ejected_pods.pause_ends_s() == 5.0
    assert ejected_pods.record_response("p", 2.0)
    assert ejected_pods.addresses == set()


def test_pauses_of_silent_pod_double_up_to_60_s() -> None:
    ejected_pods, now_s, pauses_s = listed("p", "q"), 0.0, []
    for _ in range(6):
        ejected_pods.silent("p", now_s)
        due_s = ejected_pods.pause_ends_s()
        assert due_s is not None
        pauses_s.append(due_s - now_s)
        now_s = due_s
        ejected_pods.readmit(now_s)
    assert pauses_s == [5, 10, 20, 40, 60, 60]


def test_unreachable_pod_can_become_silent() -> None:
    ejected_pods = listed("p", "q")
    ejected_pods.failed("p", 0.0)
    assert ejected_pods.silent("p", 0.01)
    assert ejected_pods.pause_ends_s() == 5.01


def test_consecutive_failures_are_counted_per_kind() -> None:
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
def test_failing_pod_is_ejected_again_after_each_of_2500_pauses(is_silent: bool, longest_s: float) -> None:
    """Each pause lasts 1 s; a pause of 2^1024 would exceed a float."""
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


def test_pod_is_silent_if_requests_wait_while_another_pod_responds() -> None:
    watched = Watched()
    assert [watched.find_silent("abc", now_s) for now_s in (10.0, 11.0, 12.0, 13.0)] == [[], [], [], ["p"]]


def test_pod_with_two_waiting_requests_is_not_silent() -> None:
    watched = Watched()
    assert [watched.find_silent("ab", now_s) for now_s in (10.0, 13.0, 20.0)] == [[], [], []]


def test_pod_with_one_slot_is_silent_after_four_times_the_limit() -> None:
    watched = Watched(slots=1)
    assert [watched.find_silent("a", now_s) for now_s in (10.0, 13.0, 21.0, 22.0)] == [[], [], [], ["p"]]


def test_no_pod_is_silent_while_no_pod_responds() -> None:
    watched = Watched()
    assert [watched.find_silent("abc", now_s, q_responds=False) for now_s in (10.0, 13.0, 20.0)] == [[], [], []]


def test_pod_that_responded_recently_is_not_silent() -> None:
    watched = Watched()
    watched.find_silent("abc", 10.0)
    watched.responded_s["p"] = 12.0
    assert watched.find_silent("abc", 13.0) == []
    assert watched.find_silent("abc", 15.0) == ["p"]


def test_begun_response_resets_silence_only_once() -> None:
    watched = Watched()
    watched.find_silent("abcd", 10.0)
    assert watched.find_silent("abcd", 13.0, begun="d") == []
    assert watched.find_silent("abcd", 17.0, begun="d") == []
    # d waited for 3 s, so the silence limit is 6 s.
    assert watched.find_silent("abcd", 19.1, begun="d") == ["p"]


def test_late_response_extends_silence_limit() -> None:
    watched = Watched()
    watched.find_silent("abc", 10.0)
    watched.responded_s["p"] = 18.0
    watched.find_silent("", 18.0)
    watched.find_silent("def", 19.0)
    assert [watched.find_silent("def", now_s) for now_s in (23.0, 30.0, 35.0)] == [[], [], ["p"]]


def test_abandoned_requests_do_not_extend_silence_limit() -> None:
    watched = Watched()
    watched.find_silent("abc", 10.0)
    watched.find_silent("", 18.0)
    watched.find_silent("def", 19.0)
    assert watched.find_silent("def", 22.0) == ["p"]


def test_silent_pods_are_ejected_once() -> None:
    ejected_pods = listed("p", "q")
    results = []
    for now_s in (10.0, 13.0, 14.0):
        ejected_pods.record_response("q", now_s)
        in_flight = dict.fromkeys("abc", "p")
        results.append(
            ejected_pods.eject_silent(in_flight, now_s, has_begun=lambda _: False, slots_per_pod=0, after_s=3.0)
        )
    assert results == [set(), {"p"}, set()]
