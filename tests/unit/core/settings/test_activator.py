"""Derived values of the settings of the activator."""

from serving.core.settings.activator import ActivatorSettings


def test_defaults_are_those_of_knative_except_queue_bytes() -> None:
    settings = ActivatorSettings()
    assert (settings.queue_depth_max, settings.queue_wait_max_s, settings.first_free_concurrency_max) == (10000, 300, 3)
    assert settings.queue_bytes_limit == 67108864


def test_queue_bytes_0_means_no_limit() -> None:
    assert ActivatorSettings(queue_bytes_max=0).queue_bytes_limit is None


def test_several_activators_require_index_below_count_and_a_peer_folder() -> None:
    clashes = [clash.fields for clash in ActivatorSettings(count=2, index=2).check()]
    assert clashes == [("index", "count"), ("peer_folder",)]
    assert not list(ActivatorSettings(count=2, index=1, peer_folder="/run/serving").check())
