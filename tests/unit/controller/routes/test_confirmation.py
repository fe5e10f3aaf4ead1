"""The activators that a Route waits for."""

from serving.controller.routes.confirmation import SILENT_S, ActivatorReplies, retry_delay_s


def test_an_activator_that_is_silent_for_too_long_is_skipped() -> None:
    responses = ActivatorReplies()
    responses.record_silence("a", now_s=100.0)
    responses.record_silence("a", now_s=105.0)
    assert not responses.is_skipped("a", now_s=100.0 + SILENT_S - 0.1)
    assert responses.is_skipped("a", now_s=100.0 + SILENT_S)
    assert not responses.is_skipped("b", now_s=1000.0)


def test_an_activator_that_answers_again_is_waited_for_again() -> None:
    responses = ActivatorReplies()
    responses.record_silence("a", now_s=100.0)
    responses.record_reply("a")
    assert not responses.is_skipped("a", now_s=1000.0)


def test_an_activator_that_leaves_is_forgotten() -> None:
    responses = ActivatorReplies()
    responses.record_silence("a", now_s=100.0)
    responses.record_silence("b", now_s=100.0)
    responses.retain(["b"])
    assert list(responses._silences) == ["b"]
    assert not responses.is_skipped("a", now_s=1000.0)


def test_questions_are_repeated_less_and_less_often() -> None:
    assert [retry_delay_s(tries) for tries in (0, 1, 2, 7, 1000)] == [0.01, 0.02, 0.04, 1.0, 1.0]
