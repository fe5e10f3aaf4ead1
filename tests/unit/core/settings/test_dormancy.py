"""When pods become dormant, and the calls of apps with their own sleep mode."""

import pytest

from serving.core.model.errors import InvalidValue
from serving.core.settings.dormancy import (
    CALLS,
    DORMANT,
    CallPair,
    DormantMode,
    HttpCall,
    read_calls,
    read_dormant,
    written,
)


@pytest.mark.parametrize(
    ("text", "mode", "canonical"),
    [
        ("never", DormantMode(), "never"),
        ("only", DormantMode(after_s=10.0, is_only=True), "only,after=10s"),
        ("after=100ms", DormantMode(after_s=0.1), "after=100ms"),
        ("after=24h", DormantMode(after_s=86400.0), "after=24h"),
        ("only, after=1m", DormantMode(after_s=60.0, is_only=True), "only,after=60s"),
        ("after=2s,only", DormantMode(after_s=2.0, is_only=True), "only,after=2s"),
    ],
)
def test_dormant_mode_is_parsed_and_canonicalized(text: str, mode: DormantMode, canonical: str) -> None:
    assert read_dormant(text) == mode
    assert DORMANT.read(text) == canonical
    assert read_dormant(written(mode)) == mode


@pytest.mark.parametrize(
    "text",
    [
        "",
        "after",
        "after=",
        "after=99ms",
        "after=25h",
        "after=1s,after=2s",
        "only,never",
        "always",
        "only,only",
        "after=-1s",
    ],
)
def test_invalid_dormant_mode_is_rejected_with_example(text: str) -> None:
    with pytest.raises(InvalidValue, match="after=10s"):
        read_dormant(text)


def test_sleep_and_wake_calls_are_parsed() -> None:
    sleep, wake = HttpCall(method="POST", target="/sleep?level=1"), HttpCall(method="POST", target="/wake_up")
    assert read_calls("POST /sleep?level=1, POST /wake_up") == CallPair(sleep=sleep, wake=wake)
    assert CALLS.read("PUT /a,GET /b") == "PUT /a,GET /b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "POST /sleep",
        "POST /a, POST /b, POST /c",
        "POST sleep, POST /b",
        "DELETE /a, POST /b",
        "POST /a b, POST /b",
        "POST /a\r\nX: y, POST /b",
    ],
)
def test_invalid_calls_are_rejected_with_example(text: str) -> None:
    with pytest.raises(InvalidValue, match="wake_up"):
        read_calls(text)
