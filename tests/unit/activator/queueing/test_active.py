"""Pods that answer nothing although others do."""

from collections.abc import Collection

from serving.activator.queueing.active import SilenceWatch


class Watched:
    """Two pods, p and q, looked at once a second; q answers all the time."""

    def __init__(self, *, slots: int = 0) -> None:
        self.watch = SilenceWatch[str]()
        self.slots = slots
        self.answered_s = {"q": 0.0}

    def look(self, on_p: str, now_s: float, *, begun: Collection[str] = (), q_answers: bool = True) -> list[str]:
        if q_answers:
            self.answered_s["q"] = now_s
        return self.watch.look(
            dict.fromkeys(on_p, "p"),
            self.answered_s,
            now_s,
            has_begun=lambda request: request in begun,
            slots_per_pod=self.slots,
            after_s=3.0,
        )


def test_a_pod_whose_requests_wait_while_another_answers_is_silent() -> None:
    made = Watched()
    assert [made.look("abc", now_s) for now_s in (10.0, 11.0, 12.0, 13.0)] == [[], [], [], ["p"]]
    assert repr(made.watch) == "SilenceWatch(3 without an answer, slowest 0 s)"


def test_two_requests_are_not_enough() -> None:
    made = Watched()
    assert [made.look("ab", now_s) for now_s in (10.0, 13.0, 20.0)] == [[], [], []]


def test_a_pod_of_few_slots_is_given_four_times_as_long() -> None:
    made = Watched(slots=1)
    assert [made.look("a", now_s) for now_s in (10.0, 13.0, 21.0, 22.0)] == [[], [], [], ["p"]]


def test_while_no_pod_answers_none_is_silent() -> None:
    made = Watched()
    assert [made.look("abc", now_s, q_answers=False) for now_s in (10.0, 13.0, 20.0)] == [[], [], []]


def test_a_pod_that_answers_some_requests_is_not_silent() -> None:
    made = Watched()
    made.look("abc", 10.0)
    made.answered_s["p"] = 12.0
    assert made.look("abc", 13.0) == []
    assert made.look("abc", 15.0) == ["p"]


def test_an_answer_that_begins_counts_once() -> None:
    made = Watched()
    made.look("abcd", 10.0)
    assert made.look("abcd", 13.0, begun="d") == []
    assert made.look("abcd", 17.0, begun="d") == []
    # d waited for 3 s, so that others may wait for 6 s.
    assert made.look("abcd", 19.1, begun="d") == ["p"]


def test_answers_that_came_late_make_patient() -> None:
    made = Watched()
    made.look("abc", 10.0)
    made.answered_s["p"] = 18.0
    made.look("", 18.0)
    made.look("def", 19.0)
    assert [made.look("def", now_s) for now_s in (23.0, 30.0, 35.0)] == [[], [], ["p"]]


def test_requests_that_were_given_up_do_not() -> None:
    made = Watched()
    made.look("abc", 10.0)
    made.look("", 18.0)
    made.look("def", 19.0)
    assert made.look("def", 22.0) == ["p"]
