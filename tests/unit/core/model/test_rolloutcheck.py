import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import InvalidValue
from serving.core.model.rolloutcheck import CHECK_FORM, BrokenCheck, read_broken, read_rollout_check


def test_conditions_are_parsed_in_any_order() -> None:
    rollout_check = read_rollout_check(" p99<500ms , errors < 1.5% ,p50<20ms")
    assert rollout_check.error_share == 0.015
    assert [(slo.name, slo.limit_s) for slo in rollout_check.latencies] == [("p99", 0.5), ("p50", 0.02)]
    assert read_rollout_check("errors<0%").error_share == 0.0
    assert read_rollout_check("p95<1s").error_share is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "errors<1",
        "errors<1%,",
        "errors<101%",
        "errors<-1%",
        "errors>1%",
        "errors<1%,errors<2%",
        "p99<1s,p99<2s",
        "p99-wait<1s",
        "p99<1h",
        "p10<1s",
        "errors<1% p99<1s",
        "\uff45rrors<1%",
        ",".join(f"p{number}<1s" for number in range(50, 59)),
    ],
)
def test_invalid_check_is_rejected_with_expected_form(text: str) -> None:
    with pytest.raises(InvalidValue, match="up to 8 conditions with commas between them") as exception_info:
        read_rollout_check(text)
    assert exception_info.value.text == text


@given(st.from_regex(CHECK_FORM, fullmatch=True) | st.text("erosp9<.%,ms5 ", max_size=24))
def test_check_form_matches_every_valid_check(text: str) -> None:
    try:
        read_rollout_check(text)
    except InvalidValue:
        return
    assert re.fullmatch(CHECK_FORM, text)


def test_broken_checks_are_parsed_and_invalid_text_is_empty() -> None:
    text = '{"r2":{"check":"errors<1%","why":"3 of 9"}}'
    assert read_broken(text) == {"r2": BrokenCheck(check="errors<1%", why="3 of 9")}
    assert read_broken("") == read_broken("[") == read_broken('{"r2":1}') == {}
