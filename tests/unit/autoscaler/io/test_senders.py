from serving.autoscaler.io.senders import LATE_AFTER_S, LatenessState, ServerCounts, is_late


def late(*frames: tuple[float, float]) -> list[bool]:
    state, found = LatenessState(), []
    for sent_s, received_s in frames:
        state, one = is_late(state, sent_s=sent_s, received_s=received_s)
        found.append(one)
    return found


def test_clocks_that_differ_make_no_frame_late() -> None:
    assert late((1e9, 5.0), (1e9 + 1, 6.01), (1e9 + 2, 7.0)) == [False, False, False]


def test_a_frame_that_lay_somewhere_is_late() -> None:
    assert late((100.0, 7.0), (101.0, 12.1)) == [False, True]
    assert late((100.0, 7.0), (101.0, 8.0 + LATE_AFTER_S)) == [False, False]


def test_a_burst_after_a_standstill_is_late_but_for_the_newest() -> None:
    frames = [(100.0 + second, 107.0) for second in range(8)]
    assert late((99.0, 99.0), *frames) == [False, True, True, True, True, False, False, False, False]


def test_what_was_late_once_is_forgotten() -> None:
    assert late((0.0, 0.0), (1.0, 9.0), (9.1, 9.1), (2.0, 9.2), (9.3, 9.3)) == [False, True, False, True, False]


def test_a_clock_that_was_set_back_is_believed_after_a_while() -> None:
    frames = [(float(second - 3600), float(second)) for second in range(1, 8)]
    assert late((0.0, 0.0), *frames) == [False, True, True, True, True, False, False, False]


def test_a_clock_that_was_set_forward_is_believed_at_once() -> None:
    assert late((0.0, 0.0), (3601.0, 1.0), (3602.0, 2.0)) == [False, False, False]


def test_counts_are_named_as_metrics() -> None:
    assert ServerCounts(frames=3).numbers["stats_frames_total"] == 3
