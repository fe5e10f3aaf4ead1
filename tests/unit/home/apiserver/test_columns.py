import pytest

from serving.home.apiserver.tables import age, duration


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (599, "9m59s"),
        (600, "10m"),
        (7300, "121m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 120, "3h2m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (48 * 3600, "2d"),
        (51 * 3600, "2d3h"),
        (8 * 86400, "8d"),
        (729 * 86400, "729d"),
        (730 * 86400, "2y"),
        (731 * 86400, "2y1d"),
        (8 * 365 * 86400, "8y"),
        (-1, "0s"),
        (-2, "<invalid>"),
    ],
)
def test_duration_is_formatted_as_by_kubectl(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def test_age_is_time_since_the_timestamp() -> None:
    assert age("1970-01-01T00:01:00Z", now_s=102) == "42s"


@pytest.mark.parametrize("stamp", [None, 5, "", "yesterday"])
def test_age_of_invalid_timestamp_is_unknown(stamp: object) -> None:
    assert age(stamp, now_s=0) == "<unknown>"
