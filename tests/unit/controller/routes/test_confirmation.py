"""The activators that a Route waits for."""

from serving.controller.routes.confirmation import SILENT_S, ActivatorReplies, retry_delay_s


def test_silent_activator_is_skipped_after_timeout() -> None:
    responses = ActivatorReplies()
    responses.record_silence("a", now_s=100.0)
    responses.record_silence("a", now_s=105.0)
    assert not responses.is_skipped("a", now_s=100.0 + SILENT_S - 0.1)
    assert responses.is_skipped("a", now_s=100.0 + SILENT_S)
    assert not responses.is_skipped("b", now_s=1000.0)


def test_responding_activator_is_no_longer_skipped() -> None:
    responses = ActivatorReplies()
    responses.record_silence("a", now_s=100.0)
    responses.record_reply("a")
    assert not responses.is_skipped("a", now_s=1000.0)


def test_removed_activator_is_dropped() -> None:
    responses = ActivatorReplies()
    responses.record_silence("a", now_s=100.0)
    responses.record_silence("b", now_s=100.0)
    responses.retain(["b"])
    assert list(responses._silences) == ["b"]
    assert not responses.is_skipped("a", now_s=1000.0)


def test_retry_delay_doubles_up_to_1_s() -> None:
    assert [retry_delay_s(tries) for tries in (0, 1, 2, 7, 1000)] == [0.01, 0.02, 0.04, 1.0, 1.0]
