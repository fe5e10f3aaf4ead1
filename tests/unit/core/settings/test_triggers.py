"""Settings and quirks of triggers."""

import msgspec

from serving.core.settings.knob import fields_of
from serving.core.settings.triggers import ORIGINAL, TriggerQuirks, TriggerSettings


def test_all_quirks_are_off_by_default() -> None:
    assert set(msgspec.structs.astuple(TriggerQuirks())) == {False}


def test_original_has_all_quirks() -> None:
    assert set(msgspec.structs.astuple(ORIGINAL)) == {True}


def test_max_scale_up_amount_is_ten_times_max_scale_down_amount() -> None:
    settings = TriggerSettings()
    assert settings.max_scale_up_amount == 10 * settings.max_scale_down_amount == 300


def test_each_key_is_its_field_with_hyphens_and_without_unit() -> None:
    keys = {field.path[-1]: field.knob.key for field in fields_of(TriggerSettings)}
    assert keys["max_scale_up_amount"] == "max-scale-up-amount"
    assert keys == {name: name.removesuffix("_s").replace("_", "-") for name in keys}
