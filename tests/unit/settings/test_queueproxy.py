"""What follows from the settings of the queue-proxy."""

from serving.settings.queueproxy import ORIGINAL, MeterQuirks, QueueProxySettings


def test_defaults_are_knatives() -> None:
    settings = QueueProxySettings()
    assert (settings.report_period_s, settings.queue_wait_max_s, settings.quirks) == (1.0, 300.0, MeterQuirks())


def test_10_requests_may_wait_for_each_slot() -> None:
    settings = QueueProxySettings(container_concurrency=3)
    assert (settings.slots, settings.queue_depth_max) == (3, 30)


def test_concurrency_0_means_no_limit_and_no_queue() -> None:
    settings = QueueProxySettings(container_concurrency=0)
    assert (settings.slots, settings.queue_depth_max) == (None, 0)


def test_the_original_has_every_quirk() -> None:
    assert all(getattr(ORIGINAL, name) for name in ORIGINAL.__struct_fields__)
