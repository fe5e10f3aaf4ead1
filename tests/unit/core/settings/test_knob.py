from typing import Annotated

import msgspec
import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.knob import BYTES, COUNT, DURATION, FLAG, NUMBER, PERCENT, TEXT, Knob, Unit, fields_of

WINDOW = Knob(unit=DURATION, key="window", low=6, high=3600, whole=True)
BURST = Knob(unit=NUMBER, key="burst", low=0, also=(-1,))
RATE = Knob(unit=NUMBER, key="rate", above=1)
SHARE = Knob(unit=PERCENT, key="share", above=0, high=1)
KIND = Knob(unit=TEXT, key="kind", choices=("linear", "weighted"))


@pytest.mark.parametrize(
    ("knob", "text", "value"),
    [
        (WINDOW, "60s", 60.0),
        (WINDOW, " 6s ", 6.0),
        (BURST, "-1", -1.0),
        (RATE, "1.5", 1.5),
        (SHARE, "70", 0.7),
        (KIND, "linear", "linear"),
    ],
)
def test_value_in_range_is_read(knob: Knob, text: str, value: object) -> None:
    assert knob.read(text, plain=False) == value


@pytest.mark.parametrize(
    ("knob", "text", "expected"),
    [
        (WINDOW, "5s", "a duration from 6s to 1h, in whole seconds"),
        (WINDOW, "2h", "a duration from 6s to 1h, in whole seconds"),
        (WINDOW, "6.5s", "a duration from 6s to 1h, in whole seconds"),
        (WINDOW, "60", "a duration from 6s to 1h, in whole seconds"),
        (BURST, "-2", "a number of at least 0, or -1"),
        (RATE, "1", "a number above 1"),
        (SHARE, "0", "a percentage above 0 and up to 100"),
        (KIND, "cubic", "one of linear, weighted"),
        (Knob(unit=FLAG, key="on"), "yes", "true or false"),
        (Knob(unit=COUNT, key="n", high=3), "4", "a whole number and up to 3"),
    ],
)
def test_invalid_value_is_rejected_with_expected_form(knob: Knob, text: str, expected: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        knob.read(text, plain=False)
    assert caught.value.expected == expected


def test_environment_accepts_only_plain_unit() -> None:
    assert WINDOW.read("60", plain=True) == 60.0
    with pytest.raises(InvalidValue) as caught:
        WINDOW.read("60s", plain=True)
    assert caught.value.expected == "a duration from 6s to 1h, in whole seconds, written as plain seconds"


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    depth_max: Annotated[int, Knob(unit=COUNT, key="depth-max")] = 3
    is_original: bool = False


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    window_s: Annotated[float, WINDOW] = 60.0
    inner: Inner = Inner()


def test_nested_fields_have_dotted_names() -> None:
    fields = list(fields_of(Outer))
    assert [field.name for field in fields] == ["window_s", "inner.depth_max"]
    assert [field.knob.key for field in fields] == ["window", "inner.depth-max"]
    assert [field.variable for field in fields] == ["WINDOW_S", "INNER_DEPTH_MAX"]
    assert [field.default for field in fields] == [60.0, 3]


def test_field_without_knob_is_not_a_setting() -> None:
    assert Inner().is_original is False
    assert [field.name for field in fields_of(Inner)] == ["depth_max"]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (FLAG, True, "true"),
        (BYTES, 2**20, "1Mi"),
        (DURATION, 0.5, "500ms"),
        (PERCENT, 0.7, "70"),
        (COUNT, -1, "-1"),
        (TEXT, "a", "a"),
    ],
)
def test_written_value_parses_to_same_value(unit: Unit, value: object, text: str) -> None:
    assert unit.write(value) == text
    assert unit.read(text) == value
