"""Open requests: an address cannot occupy all slots, and no request is lost."""

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
    """A throttler whose requests are open unless ``whole`` has them."""

    def __init__(self, settings: ActivatorSettings = SETTINGS, *, slots: int = 4, pods: str = "p") -> None:
        self.whole: set[str] = set()
        self.sender: dict[str, str] = {}
        self.read: dict[str, int | None] = {}
        view = RequestView[str](
            is_open=lambda text: text not in self.whole,
            client_of=self.sender.get,
            read_bytes_of=lambda text: self.read.get(text, 0),
        )
        super().__init__(KEY, settings, random=lambda: 0.0, now_s=0.0, view=view)
        if pods:
            self.listed(*pods, slots=slots)

    def open(self, *requests: str, client: str = "a", now_s: float = 0.0) -> list[str]:
        """Let open requests arrive; return the dispatched requests."""
        responses = [self.arrive(request, now_s, client=client) for request in requests]
        return shown(self, [response for response in responses if isinstance(response, Dispatch)])

    @property
    def parked(self) -> list[str]:
        return [request for request in "abcdefgh" if self.admission._clients.is_parked(request)]


def test_open_requests_of_one_address_leave_slots_to_others() -> None:
    stage = Stage()
    assert stage.open("a", "b", "c", "d") == ["a@p", "b@p", "c@p"]
    assert stage.come("e") == ["e@p"]
    assert (stage.parked, stage.level, stage.waiting_count) == (["d"], 5, 0)


def test_each_address_has_its_share() -> None:
    stage = Stage(slots=8)
    assert stage.open(*"abcdefg") == [f"{text}@p" for text in "abcdef"]
    assert stage.open("h", client="b") == ["h@p"]


def test_address_has_at_least_1_slot() -> None:
    stage = Stage(slots=1)
    assert stage.open("a", "b") == ["a@p"]


def test_first_open_request_without_pod_is_queued_and_others_are_parked() -> None:
    stage = Stage(pods="")
    assert stage.open("a", "b", "c") == []
    assert (stage.waiting_count, stage.level, stage.parked) == (1, 3, ["b", "c"])
    assert stage.listed("p", slots=4) == ["a@p", "b@p", "c@p"]


def test_finished_request_grants_slot_to_oldest_parked_request() -> None:
    stage = Stage()
    stage.open("a", "b", "c", "d", "e")
    run = stage.finish("a", 2.0)
    assert run == [Dispatch(request="d", pod=pods_at("p")["p"], waited_s=2.0)]
    validate(stage)


def test_complete_request_no_longer_counts_in_share() -> None:
    stage = Stage()
    stage.open("a", "b", "c")
    stage.whole |= {"a"}
    assert stage.open("d") == ["d@p"]


def test_queued_requests_precede_parked_requests() -> None:
    stage = Stage(slots=2)
    stage.open("a", "b")
    stage.come("c", "d")
    assert stage.go("a") == ["d@p"]
    assert stage.go("c") == ["b@p"]


def test_added_pods_admit_parked_requests() -> None:
    stage = Stage()
    stage.open(*"abcde")
    assert stage.listed("p", "q", slots=4) == ["d@p", "e@q"]


def test_readmit_admits_parked_request_after_another_is_complete() -> None:
    stage = Stage()
    stage.open(*"abcd")
    stage.whole |= {"a"}
    assert shown(stage, stage.readmit(1.0)) == ["d@p"]


def test_parked_request_whose_client_disconnects_is_removed() -> None:
    stage = Stage()
    stage.open(*"abcd")
    assert (stage.go("d"), stage.level, stage.parked) == ([], 3, [])


def test_parked_request_that_leaves_admits_next_one_within_share() -> None:
    stage = Stage()
    stage.open(*"abcde")
    stage.whole |= {"a"}
    assert (stage.go("d"), stage.parked) == (["e@p"], [])


def test_parked_request_expires_after_maximum_wait() -> None:
    stage = Stage()
    stage.open(*"abc")
    stage.open("d", now_s=1.0)
    assert stage.admission.expires_s() == 11.0
    assert (stage.sent_away(10.9), stage.sent_away(11.0), stage.level) == ([], ["d"], 3)


def test_all_waiting_requests_are_rejected_at_shutdown() -> None:
    stage = Stage(pods="")
    stage.open(*"abc")
    assert (stage.sent_away(0.0, is_late=False), stage.level) == (["b", "c", "a"], 0)
    assert stage.open("d") == []


def test_parked_requests_count_in_queue_limits() -> None:
    small = ActivatorSettings(open_share_max=0.75, queue_depth_max=2, queue_bytes_max=100)
    stage = Stage(small, slots=1)
    stage.open("a", "b", "c")
    rejection = stage.arrive("d", 0.0, client="a")
    assert isinstance(rejection, Rejection)
    assert rejection.reason is RejectionReason.QUEUE_COUNT
    stage = Stage(small, slots=1)
    stage.open("a")
    assert isinstance(stage.arrive("b", 0.0, client="a", weight_bytes=60), Queued)
    rejection = stage.arrive("c", 0.0, client="a", weight_bytes=60)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is RejectionReason.QUEUE_BYTES


def test_no_share_or_no_slot_limit_means_no_bound() -> None:
    assert len(Stage(ActivatorSettings(open_share_max=0.0)).open(*"abcd")) == 4
    assert len(Stage(slots=0).open(*"abcdefgh")) == 8


class Slow(Stage):
    """A throttler of two addresses: lower-case requests from one, upper-case from the other."""

    def __init__(self, *, slots: int = 4, settings: ActivatorSettings = SETTINGS) -> None:
        super().__init__(settings, slots=slots)
        self.sender |= {
            ascii_letter: "upper" if ascii_letter.isupper() else "lower" for ascii_letter in string.ascii_letters
        }
        self.whole |= set(string.ascii_letters)

    def unread(self, *requests: str, now_s: float = 0.0) -> None:
        for request in requests:
            self.admission.record_reading(request, now_s, is_unread=True)
            validate(self)

    def read_on(self, request: str, now_s: float) -> None:
        self.admission.record_reading(request, now_s, is_unread=False)


def test_address_with_unread_response_leaves_slots_to_others() -> None:
    slow = Slow()
    assert slow.come("a", "b") == ["a@p", "b@p"]
    slow.unread("a")
    assert slow.come("c", "d") == ["c@p"]
    assert slow.parked == ["d"]
    assert slow.come("A") == ["A@p"]


def test_queued_requests_of_address_with_unread_responses_are_skipped() -> None:
    slow = Slow()
    slow.come(*"abcdefgh")
    slow.come("A")
    slow.unread("a", "b", "c", "d")
    assert slow.go("d") == ["A@p"]
    assert (slow.parked, slow.waiting_count, slow.level) == (list("efgh"), 0, 8)


def test_queued_request_within_share_of_its_address_is_not_skipped() -> None:
    slow = Slow()
    slow.come("A", "B", "a", "b", "c")
    slow.unread("a")
    assert slow.go("A") == ["c@p"]
    assert slow.parked == []


def test_address_without_unread_responses_is_not_bounded() -> None:
    slow = Slow()
    slow.come("A")
    slow.unread("A")
    assert slow.come("a", "b", "c") == ["a@p", "b@p", "c@p"]


def test_unread_responses_beyond_share_are_late_while_others_wait() -> None:
    slow = Slow()
    slow.come(*"abcdefgh")
    slow.unread(*"abcd", now_s=1.0)
    assert slow.admission.late_readers(9.0) == []
    slow.come("A", now_s=9.0)
    assert slow.admission.late_readers(9.0) == ["a"]
    assert slow.go("a", 9.0) == ["A@p"]
    assert slow.admission.late_readers(9.0) == []


def test_client_that_reads_is_not_late() -> None:
    slow = Slow()
    slow.come(*"abcd")
    slow.come("A")
    slow.unread(*"abcd", now_s=1.0)
    slow.read |= dict.fromkeys("abcd", 50_000)
    assert slow.admission.late_readers(1.5) == []
    assert slow.admission.late_readers(2.4) == []
    slow.read |= dict.fromkeys("bcd", 60_000)
    assert slow.admission.late_readers(2.5) == ["a"]


def test_client_that_reads_below_4_kib_per_second_is_late() -> None:
    slow = Slow()
    slow.come(*"abcdA")
    slow.unread(*"abcd", now_s=1.0)
    slow.read |= {"a": 4000, "b": 4200, "c": 4200, "d": 4200}
    assert slow.admission.late_readers(2.0) == ["a"]


def test_reader_of_only_slot_is_late_while_another_request_waits() -> None:
    slow = Slow(slots=1)
    slow.come("a")
    slow.unread("a", now_s=1.0)
    assert slow.admission.late_readers(5.0) == []
    slow.come("A", now_s=5.0)
    assert slow.admission.readers_check_s == 0.25
    assert slow.admission.late_readers(5.0) == ["a"]
    assert shown(slow, slow.finish("a", 5.0, has_response=False)) == ["A@p"]


def test_address_aborted_while_others_waited_has_a_twentieth_of_the_wait() -> None:
    slow = Slow(slots=1)
    slow.come("a", "A")
    slow.unread("a")
    slow.finish("a", 1.0, has_response=False)
    slow.go("A", 1.0)
    assert slow.come("b", now_s=1.0) == ["b@p"]
    slow.unread("b", now_s=1.0)
    slow.come("B", now_s=1.0)
    assert slow.admission.readers_check_s == 0.0125
    assert (slow.admission.late_readers(1.04), slow.admission.late_readers(1.05)) == ([], ["b"])
    slow.read["b"] = 300
    assert slow.admission.late_readers(1.06) == []


def test_address_that_left_while_none_waited_has_whole_wait() -> None:
    slow = Slow(slots=1)
    slow.come("a")
    slow.unread("a")
    slow.finish("a", 0.5, has_response=False)
    slow.come("b", "B", now_s=1.0)
    slow.unread("b", now_s=1.0)
    assert slow.admission.late_readers(1.9) == []


def test_client_that_need_not_read_is_counted_but_never_late() -> None:
    slow = Slow()
    slow.come(*"abcdA")
    slow.read |= dict.fromkeys("abcd")
    slow.unread(*"abcd", now_s=1.0)
    assert slow.admission.late_readers(99.0) == []
    assert slow.go("a") == ["A@p"]


def test_no_reader_is_late_without_maximum_unread_wait() -> None:
    slow = Slow(settings=msgspec.structs.replace(SETTINGS, unread_wait_max_s=0.0))
    slow.come(*"abcdA")
    slow.unread(*"abcd")
    assert slow.admission.late_readers(99.0) == []


def test_aborted_address_is_bounded_for_30_s() -> None:
    slow = Slow()
    slow.come("a", "b", "c", "d", "e")
    slow.unread("a")
    assert shown(slow, slow.finish("a", 10.0, has_response=False)) == []
    assert slow.parked == ["e"]
    slow.admission.refresh(39.9)
    assert shown(slow, slow.readmit(39.9)) == []
    assert shown(slow, slow.readmit(40.0)) == ["e@p"]


def test_address_that_reads_again_is_unbounded_after_1_s() -> None:
    slow = Slow()
    slow.come("a", "b", "c")
    slow.unread("a")
    slow.come("d")
    slow.read_on("a", 5.0)
    assert shown(slow, slow.readmit(5.9)) == []
    assert shown(slow, slow.readmit(6.0)) == ["d@p"]


def test_response_that_ends_unread_does_not_bound_its_address() -> None:
    slow = Slow()
    slow.come("a", "b", "c")
    slow.unread("a")
    slow.come("d")
    slow.go("a", 5.0)
    assert shown(slow, slow.readmit(5.0)) == []
    assert slow.come("e", "f", now_s=5.0) == ["e@p"]


def test_unread_responses_of_queued_or_unknown_requests_are_not_counted() -> None:
    slow = Slow(slots=1)
    slow.come("a", "b")
    slow.unread("b", "z")
    slow.sender.pop("a")
    slow.unread("a")
    slow.read_on("a", 1.0)
    assert not slow.admission.has_slow_clients


def test_unread_responses_are_not_counted_without_slot_limit() -> None:
    slow = Slow(slots=0)
    slow.come("a")
    slow.unread("a")
    assert (slow.admission.has_slow_clients, slow.admission.late_readers(9.0)) == (False, [])


def slots(capacity: int | None = 2) -> Admission[str]:
    view = RequestView[str](client_of=lambda text: text[0])
    terms = AdmissionTerms(share_max=0.5, unread_wait_max_s=1.0, depth_max=9, wait_max_s=9.0)
    return Admission(terms, capacity=capacity, view=view)


def test_ended_request_grants_slot_to_parked_request() -> None:
    admission = slots()
    assert admission.arrive("a1", 0.0, client="a") is ADMITTED
    assert isinstance(admission.arrive("a2", 1.0, client="a"), Queued)
    assert admission.end("a1", 3.0, has_response=True) == [Granted(request_id="a2", waited_s=2.0)]
    assert admission.end("a2", 3.0, has_response=False) == ()


def test_ended_parked_request_grants_no_slot() -> None:
    admission = slots()
    admission.arrive("a1", 0.0, client="a")
    admission.arrive("a2", 0.0, client="a")
    assert admission.end("a2", 1.0, has_response=False) == ()


def test_parked_request_that_becomes_complete_is_admitted_within_capacity() -> None:
    admission = slots()
    for request in ("a1", "a2", "a3"):
        admission.arrive(request, 0.0, client="a")
    assert admission.complete("a2", 1.0) is ADMITTED
    assert isinstance(admission.complete("a3", 1.0), Queued)
    assert admission.complete("a2", 1.0) is None


def test_complete_request_of_slow_client_remains_parked() -> None:
    view = RequestView[str](client_of=lambda request: request[0], read_bytes_of=lambda _: 0)
    terms = AdmissionTerms(depth_max=10, wait_max_s=10.0, share_max=0.5, unread_wait_max_s=1.0)
    admission = Admission[str](terms, capacity=2, view=view)
    for request in ("a1", "a2", "a3"):
        admission.arrive(request, 0.0, client="a")
    admission.record_reading("a1", 0.5, is_unread=True)
    assert admission.complete("a2", 1.0) is None
    assert admission.end("a1", 2.0, has_response=True) == [Granted(request_id="a2", waited_s=2.0)]


def test_parked_and_queued_requests_expire() -> None:
    admission = slots(1)
    admission.arrive("a1", 0.0, client="a")
    admission.arrive("a2", 1.0, client="a")
    admission.arrive("b1", 2.0)
    assert (admission.expire(9.9), admission.expire(11.0)) == ([], ["a2", "b1"])


def test_repr_shows_client_counts() -> None:
    open_requests = OpenRequests[str](share_max=0.75, unread_wait_max_s=1.0, view=RequestView())
    open_requests.add("r", "a")
    assert (repr(open_requests), open_requests.next_allowed(4)) == ("OpenRequests(1 of 1 clients)", None)
    assert open_requests.remove("unknown") is None


@given(st.lists(st.tuples(st.sampled_from("owfur"), st.integers(0, 15)), max_size=80), st.integers(1, 5))
def test_address_never_exceeds_its_share_and_no_request_is_lost(steps: list[tuple[str, int]], slots: int) -> None:
    throttler: RevisionThrottler[int]
    whole: set[int] = set()
    view = RequestView[int](
        is_open=lambda request: request not in whole, client_of=lambda request: request % 2, read_bytes_of=lambda _: 0
    )
    throttler = RevisionThrottler(KEY, SETTINGS, random=lambda: 0.0, now_s=0.0, view=view)
    inside: set[int] = set()
    throttler.set_pods(pods_at("p", "q"), 0.0, container_concurrency=slots)
    for now_s, (step, number) in enumerate(steps):
        if step == "o" and number not in inside:
            inside.add(number)
            whole.discard(number)
            throttler.arrive(number, float(now_s) / 100, client=number % 2)
        elif step == "f":
            inside.discard(number)
            throttler.finish(number, float(now_s) / 100)
        elif step == "w":
            whole.add(number)
        elif step in "ur":
            throttler.admission.record_reading(number, float(now_s) / 100, is_unread=step == "u")
        validate(throttler)
        assert throttler.level == len(inside)
        for client in (0, 1):
            running = [request for request in throttler.address_of if request % 2 == client and request not in whole]
            assert len(running) <= max(1, int(2 * slots * 0.75)), steps
    for number in sorted(inside):
        throttler.finish(number, 1.0)
    assert (throttler.level, len(throttler.address_of)) == (0, 0)
    validate(throttler)
