"""Open requests: one address leaves slots to others, and nothing is lost or forgotten."""

import string

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serving.activator.queueing.outcome import Dispatch, Rejection, RejectionReason
from serving.activator.queueing.throttler import RevisionThrottler
from serving.core.settings.activator import ActivatorSettings
from serving.core.traffic.admission import Admission, AdmissionTerms
from serving.core.traffic.openrequests import OpenRequests, RequestView
from serving.core.traffic.places import ADMITTED, Granted, Queued
from tests.invariants import validate
from tests.unit.activator.queueing.test_throttler import Held, pods_at, shown

KEY = ("default", "hello-00001")
SETTINGS = ActivatorSettings(open_share_max=0.75, queue_depth_max=100, queue_wait_max_s=10.0)


class Stage(Held):
    """A throttler whose requests are open unless they stand in ``whole``."""

    def __init__(self, settings: ActivatorSettings = SETTINGS, *, slots: int = 4, pods: str = "p") -> None:
        self.whole: set[str] = set()
        self.sender: dict[str, str] = {}
        self.read: dict[str, int | None] = {}
        view = RequestView[str](
            is_open=lambda one: one not in self.whole,
            client_of=self.sender.get,
            read_bytes_of=lambda one: self.read.get(one, 0),
        )
        super().__init__(KEY, settings, random=lambda: 0.0, now_s=0.0, view=view)
        if pods:
            self.listed(*pods, slots=slots)

    def open(self, *requests: str, client: str = "a", now_s: float = 0.0) -> list[str]:
        """Open requests arrive; those that begin."""
        responses = [self.arrive(request, now_s, client=client) for request in requests]
        return shown(self, [response for response in responses if isinstance(response, Dispatch)])

    @property
    def parked(self) -> list[str]:
        return [request for request in "abcdefgh" if self.admission.is_parked(request)]


def test_open_requests_of_one_address_leave_slots_to_others() -> None:
    made = Stage()
    assert made.open("a", "b", "c", "d") == ["a@p", "b@p", "c@p"]
    assert made.come("e") == ["e@p"]
    assert (made.parked, made.level, made.waiting_count) == (["d"], 5, 0)


def test_two_addresses_have_a_share_each() -> None:
    made = Stage(slots=8)
    assert made.open(*"abcdefg") == [f"{one}@p" for one in "abcdef"]
    assert made.open("h", client="b") == ["h@p"]


def test_an_address_has_one_slot_at_least() -> None:
    made = Stage(slots=1)
    assert made.open("a", "b") == ["a@p"]


def test_without_a_pod_one_waits_in_the_queue_and_wakes_the_revision() -> None:
    made = Stage(pods="")
    assert made.open("a", "b", "c") == []
    assert (made.waiting_count, made.level, made.parked) == (1, 3, ["b", "c"])
    assert made.listed("p", slots=4) == ["a@p", "b@p", "c@p"]


def test_an_end_lets_the_oldest_parked_request_begin() -> None:
    made = Stage()
    made.open("a", "b", "c", "d", "e")
    run = made.finish("a", 2.0)
    assert run == [Dispatch(request="d", pod=pods_at("p")["p"], waited_s=2.0)]
    validate(made)


def test_a_request_that_is_whole_leaves_its_share() -> None:
    made = Stage()
    made.open("a", "b", "c")
    made.whole |= {"a"}
    assert made.open("d") == ["d@p"]


def test_queued_requests_go_before_parked_ones() -> None:
    made = Stage(slots=2)
    made.open("a", "b")
    made.come("c", "d")
    assert made.go("a") == ["d@p"]
    assert made.go("c") == ["b@p"]


def test_more_pods_let_parked_requests_begin() -> None:
    made = Stage()
    made.open(*"abcde")
    assert made.listed("p", "q", slots=4) == ["d@p", "e@q"]


def test_a_tick_lets_them_begin_when_others_became_whole() -> None:
    made = Stage()
    made.open(*"abcd")
    made.whole |= {"a"}
    assert shown(made, made.readmit(1.0)) == ["d@p"]


def test_a_parked_request_whose_client_leaves_is_forgotten() -> None:
    made = Stage()
    made.open(*"abcd")
    assert (made.go("d"), made.level, made.parked) == ([], 3, [])


def test_a_parked_request_that_leaves_lets_another_begin_where_one_became_whole() -> None:
    made = Stage()
    made.open(*"abcde")
    made.whole |= {"a"}
    assert (made.go("d"), made.parked) == (["e@p"], [])


def test_a_parked_request_waits_no_longer_than_the_queue() -> None:
    made = Stage()
    made.open(*"abc")
    made.open("d", now_s=1.0)
    assert made.admission.expires_s() == 11.0
    assert (made.sent_away(10.9), made.sent_away(11.0), made.level) == ([], ["d"], 3)


def test_all_that_wait_are_rejected_at_the_end() -> None:
    made = Stage(pods="")
    made.open(*"abc")
    assert (made.sent_away(0.0, is_late=False), made.level) == (["b", "c", "a"], 0)
    assert made.open("d") == []


def test_parked_requests_are_within_the_bounds_of_the_queue() -> None:
    small = ActivatorSettings(open_share_max=0.75, queue_depth_max=2, queue_bytes_max=100)
    made = Stage(small, slots=1)
    made.open("a", "b", "c")
    refused = made.arrive("d", 0.0, client="a")
    assert isinstance(refused, Rejection)
    assert refused.reason is RejectionReason.QUEUE_COUNT
    made = Stage(small, slots=1)
    made.open("a")
    assert isinstance(made.arrive("b", 0.0, client="a", weight_bytes=60), Queued)
    refused = made.arrive("c", 0.0, client="a", weight_bytes=60)
    assert isinstance(refused, Rejection)
    assert refused.reason is RejectionReason.QUEUE_BYTES


def test_without_a_share_or_without_slots_there_is_no_bound() -> None:
    assert len(Stage(ActivatorSettings(open_share_max=0.0)).open(*"abcd")) == 4
    assert len(Stage(slots=0).open(*"abcdefgh")) == 8


class Slow(Stage):
    """A throttler of two addresses: a letter for each request, in lower case of one, in upper case of the other."""

    def __init__(self, *, slots: int = 4, settings: ActivatorSettings = SETTINGS) -> None:
        super().__init__(settings, slots=slots)
        self.sender |= {one: "upper" if one.isupper() else "lower" for one in string.ascii_letters}
        self.whole |= set(string.ascii_letters)

    def unread(self, *requests: str, now_s: float = 0.0) -> None:
        for request in requests:
            self.admission.record_reading(request, now_s, is_unread=True)
            validate(self)

    def read_on(self, request: str, now_s: float) -> None:
        self.admission.record_reading(request, now_s, is_unread=False)


def test_an_address_that_reads_nothing_leaves_slots_to_others() -> None:
    made = Slow()
    assert made.come("a", "b") == ["a@p", "b@p"]
    made.unread("a")
    assert made.come("c", "d") == ["c@p"]
    assert made.parked == ["d"]
    assert made.come("A") == ["A@p"]


def test_queued_requests_of_an_address_that_reads_nothing_are_passed() -> None:
    made = Slow()
    made.come(*"abcdefgh")
    made.come("A")
    made.unread("a", "b", "c", "d")
    assert made.go("d") == ["A@p"]
    assert (made.parked, made.waiting_count, made.level) == (list("efgh"), 0, 8)


def test_a_queued_request_within_the_share_of_its_address_is_not_passed() -> None:
    made = Slow()
    made.come("A", "B", "a", "b", "c")
    made.unread("a")
    assert made.go("A") == ["c@p"]
    assert made.parked == []


def test_an_address_without_unread_responses_is_not_bounded() -> None:
    made = Slow()
    made.come("A")
    made.unread("A")
    assert made.come("a", "b", "c") == ["a@p", "b@p", "c@p"]


def test_beyond_its_share_those_that_read_nothing_are_cut_off_while_others_wait() -> None:
    made = Slow()
    made.come(*"abcdefgh")
    made.unread(*"abcd", now_s=1.0)
    assert made.admission.late_readers(9.0) == []
    made.come("A", now_s=9.0)
    assert made.admission.late_readers(9.0) == ["a"]
    assert made.go("a", 9.0) == ["A@p"]
    assert made.admission.late_readers(9.0) == []


def test_a_client_that_reads_is_not_cut_off() -> None:
    made = Slow()
    made.come(*"abcd")
    made.come("A")
    made.unread(*"abcd", now_s=1.0)
    made.read |= dict.fromkeys("abcd", 50_000)
    assert made.admission.late_readers(1.5) == []
    assert made.admission.late_readers(2.4) == []
    made.read |= dict.fromkeys("bcd", 60_000)
    assert made.admission.late_readers(2.5) == ["a"]


def test_a_client_that_reads_less_than_4_kib_a_second_reads_nothing() -> None:
    made = Slow()
    made.come(*"abcdA")
    made.unread(*"abcd", now_s=1.0)
    made.read |= {"a": 4000, "b": 4200, "c": 4200, "d": 4200}
    assert made.admission.late_readers(2.0) == ["a"]


def test_the_only_slot_is_abandoned_while_another_waits() -> None:
    made = Slow(slots=1)
    made.come("a")
    made.unread("a", now_s=1.0)
    assert made.admission.late_readers(5.0) == []
    made.come("A", now_s=5.0)
    assert made.admission.readers_check_s == 0.25
    assert made.admission.late_readers(5.0) == ["a"]
    assert shown(made, made.finish("a", 5.0, has_response=False)) == ["A@p"]


def test_who_was_cut_off_while_others_waited_has_a_twentieth_of_the_time_from_then_on() -> None:
    made = Slow(slots=1)
    made.come("a", "A")
    made.unread("a")
    made.finish("a", 1.0, has_response=False)
    made.go("A", 1.0)
    assert made.come("b", now_s=1.0) == ["b@p"]
    made.unread("b", now_s=1.0)
    made.come("B", now_s=1.0)
    assert made.admission.readers_check_s == 0.0125
    assert (made.admission.late_readers(1.04), made.admission.late_readers(1.05)) == ([], ["b"])
    made.read["b"] = 300
    assert made.admission.late_readers(1.06) == []


def test_who_left_while_none_waited_has_all_of_the_time() -> None:
    made = Slow(slots=1)
    made.come("a")
    made.unread("a")
    made.finish("a", 0.5, has_response=False)
    made.come("b", "B", now_s=1.0)
    made.unread("b", now_s=1.0)
    assert made.admission.late_readers(1.9) == []


def test_a_client_that_need_not_read_is_counted_and_not_cut_off() -> None:
    made = Slow()
    made.come(*"abcdA")
    made.read |= dict.fromkeys("abcd")
    made.unread(*"abcd", now_s=1.0)
    assert made.admission.late_readers(99.0) == []
    assert made.go("a") == ["A@p"]


def test_without_a_wait_none_is_cut_off() -> None:
    made = Slow(settings=msgspec.structs.replace(SETTINGS, unread_wait_max_s=0.0))
    made.come(*"abcdA")
    made.unread(*"abcd")
    assert made.admission.late_readers(99.0) == []


def test_an_address_that_was_cut_off_is_bounded_for_a_time() -> None:
    made = Slow()
    made.come("a", "b", "c", "d", "e")
    made.unread("a")
    assert shown(made, made.finish("a", 10.0, has_response=False)) == []
    assert made.parked == ["e"]
    made.admission.refresh(39.9)
    assert shown(made, made.readmit(39.9)) == []
    assert shown(made, made.readmit(40.0)) == ["e@p"]


def test_an_address_that_reads_on_is_soon_free() -> None:
    made = Slow()
    made.come("a", "b", "c")
    made.unread("a")
    made.come("d")
    made.read_on("a", 5.0)
    assert shown(made, made.readmit(5.9)) == []
    assert shown(made, made.readmit(6.0)) == ["d@p"]


def test_a_response_that_ends_unread_leaves_its_address_free() -> None:
    made = Slow()
    made.come("a", "b", "c")
    made.unread("a")
    made.come("d")
    made.go("a", 5.0)
    assert shown(made, made.readmit(5.0)) == []
    assert made.come("e", "f", now_s=5.0) == ["e@p"]


def test_what_does_not_run_and_who_is_unknown_is_not_counted() -> None:
    made = Slow(slots=1)
    made.come("a", "b")
    made.unread("b", "z")
    made.sender.pop("a")
    made.unread("a")
    made.read_on("a", 1.0)
    assert not made.admission.has_slow_clients


def test_without_a_bound_unread_responses_are_not_counted() -> None:
    made = Slow(slots=0)
    made.come("a")
    made.unread("a")
    assert (made.admission.has_slow_clients, made.admission.late_readers(9.0)) == (False, [])


def slots(capacity: int | None = 2) -> Admission[str]:
    view = RequestView[str](client_of=lambda one: one[0])
    terms = AdmissionTerms(share_max=0.5, unread_wait_max_s=1.0, depth_max=9, wait_max_s=9.0)
    return Admission(terms, capacity=capacity, view=view)


def test_the_end_of_a_request_gives_its_slot_to_a_parked_one() -> None:
    made = slots()
    assert made.arrive("a1", 0.0, client="a") is ADMITTED
    assert isinstance(made.arrive("a2", 1.0, client="a"), Queued)
    assert made.end("a1", 3.0, has_response=True) == [Granted(request_id="a2", waited_s=2.0)]
    assert made.end("a2", 3.0, has_response=False) == ()


def test_a_parked_request_that_ends_gives_no_slot() -> None:
    made = slots()
    made.arrive("a1", 0.0, client="a")
    made.arrive("a2", 0.0, client="a")
    assert made.end("a2", 1.0, has_response=False) == ()


def test_a_parked_request_that_becomes_whole_passes_the_share() -> None:
    made = slots()
    for one in ("a1", "a2", "a3"):
        made.arrive(one, 0.0, client="a")
    assert made.complete("a2", 1.0) is ADMITTED
    assert isinstance(made.complete("a3", 1.0), Queued)
    assert made.complete("a2", 1.0) is None


def test_parked_and_queued_requests_expire() -> None:
    made = slots(1)
    made.arrive("a1", 0.0, client="a")
    made.arrive("a2", 1.0, client="a")
    made.arrive("b1", 2.0)
    assert (made.expire(9.9), made.expire(11.0)) == ([], ["a2", "b1"])


def test_it_shows_its_requests() -> None:
    made = OpenRequests[str](share_max=0.75, unread_wait_max_s=1.0, view=RequestView())
    made.add("r", "a")
    assert (repr(made), made.next_allowed(4)) == ("OpenRequests(1 of 1 clients)", None)
    assert made.remove("unknown") is None


@given(st.lists(st.tuples(st.sampled_from("owfur"), st.integers(0, 15)), max_size=80), st.integers(1, 5))
def test_one_address_never_takes_all_slots_and_none_is_lost(steps: list[tuple[str, int]], slots: int) -> None:
    made: RevisionThrottler[int]
    whole: set[int] = set()
    view = RequestView[int](
        is_open=lambda one: one not in whole, client_of=lambda one: one % 2, read_bytes_of=lambda _: 0
    )
    made = RevisionThrottler(KEY, SETTINGS, random=lambda: 0.0, now_s=0.0, view=view)
    inside: set[int] = set()
    made.set_pods(pods_at("p", "q"), 0.0, container_concurrency=slots)
    for now_s, (step, number) in enumerate(steps):
        if step == "o" and number not in inside:
            inside.add(number)
            whole.discard(number)
            made.arrive(number, float(now_s) / 100, client=number % 2)
        elif step == "f":
            inside.discard(number)
            made.finish(number, float(now_s) / 100)
        elif step == "w":
            whole.add(number)
        elif step in "ur":
            made.admission.record_reading(number, float(now_s) / 100, is_unread=step == "u")
        validate(made)
        assert made.level == len(inside)
        for client in (0, 1):
            running = [one for one in made.address_of if one % 2 == client and one not in whole]
            assert len(running) <= max(1, int(2 * slots * 0.75)), steps
    for number in sorted(inside):
        made.finish(number, 1.0)
    assert (made.level, len(made.address_of)) == (0, 0)
    validate(made)
