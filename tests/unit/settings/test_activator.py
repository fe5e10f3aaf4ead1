"""What follows from the settings of the activator."""

from serving.settings.activator import ORIGINAL, ActivatorSettings, ShareQuirks


def test_defaults_are_knatives_but_for_the_bound_in_bytes() -> None:
    settings = ActivatorSettings()
    assert (settings.queue_depth_max, settings.queue_wait_max_s, settings.first_free_concurrency_max) == (10000, 300, 3)
    assert settings.queue_bytes_limit == 67108864
    assert settings.quirks == ShareQuirks()


def test_0_bytes_mean_no_limit() -> None:
    assert ActivatorSettings(queue_bytes_max=0).queue_bytes_limit is None


def test_the_original_has_every_quirk() -> None:
    assert all(getattr(ORIGINAL, name) for name in ORIGINAL.__struct_fields__)


def test_a_poke_target_is_the_lower_of_limit_and_wish_in_part() -> None:
    settings = ActivatorSettings()
    assert [settings.poke_target(10, None), settings.poke_target(10, 5.0)] == [7.0, 3.5]


def test_a_poke_target_without_limit_and_wish_is_the_default_in_part() -> None:
    assert ActivatorSettings().poke_target(0, None) == 70.0


def test_one_of_two_activators_sees_half_of_the_requests() -> None:
    settings = ActivatorSettings(count=2, peer_folder="/run/serving")
    assert settings.poke_target(10, None) == 3.5


def test_several_activators_have_an_index_each_and_a_folder_for_their_sockets() -> None:
    clashes = [clash.fields for clash in ActivatorSettings(count=2, index=2).check()]
    assert clashes == [("index", "count"), ("peer_folder",)]
    assert not list(ActivatorSettings(count=2, index=1, peer_folder="/run/serving").check())
