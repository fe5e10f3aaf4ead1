import msgspec

from serving.core.settings.classic import ORIGINAL, ClassicQuirks, ClassicSettings


def test_defaults_are_those_of_june_2018_without_clash() -> None:
    settings = ClassicSettings()
    assert (settings.multi_concurrency_target, settings.single_concurrency_target) == (1.0, 0.9)
    assert (settings.stable_window_s, settings.panic_window_s, settings.max_scale_up_rate) == (60.0, 6.0, 10.0)
    assert settings.scale_to_zero_threshold_s == 300.0
    assert list(settings.check()) == []


def test_original_enables_all_quirks_and_default_none() -> None:
    assert all(msgspec.structs.astuple(ORIGINAL))
    assert not any(msgspec.structs.astuple(ClassicQuirks()))
