import pytest

from serving.cli.client.table import age_text, aligned, wrapped


def test_cells_of_a_column_begin_at_one_place_and_lines_end_with_text() -> None:
    assert aligned([["A", "BB"], ["long", None], ["x", "two\nlines"]], indent=" ") == [
        " A     BB",
        " long",
        " x     two lines",
    ]
    assert aligned([]) == []


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (None, ""),
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (3600, "1h"),
        (7500, "2h5m"),
        (999_999, "11d"),
    ],
)
def test_ages_have_two_units_while_the_first_is_small(age_s: float | None, text: str) -> None:
    assert age_text(age_s) == text


def test_long_words_stay_whole_and_lines_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    url = "http://" + "x" * 60
    assert wrapped(f"see {url}\nsecond", indent="  ") == ["  see", f"  {url}", "  second"]
