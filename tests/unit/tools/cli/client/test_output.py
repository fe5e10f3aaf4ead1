import contextlib
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.tools.cli.client import output as module
from serving.tools.cli.client.output import (
    Progress,
    age_text,
    aligned,
    is_lively,
    paint,
    print_aside,
    shortened,
    wrapped,
)


def test_columns_are_aligned_without_trailing_spaces() -> None:
    assert aligned([["A", "BB"], ["long", None], ["x", "two\nlines"]], indent=" ") == [
        " A     BB",
        " long",
        " x     two lines",
    ]
    assert aligned([]) == []


@given(st.text(st.characters(categories=["Cc"]) | st.sampled_from("a\x1b[]0;\x07\x9b ")))
def test_app_text_prints_no_control_characters(text: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as aside:
        print_aside(text)
    shown = [*aligned([[text, text]]), *wrapped(text, indent=" "), *aside.getvalue().split("\n")]
    assert [line for line in shown if re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line)] == []


def test_control_characters_are_shown_as_kubectl_shows_them() -> None:
    assert aligned([["\x1b]0;x\x07\x7f\x9b31m\r\nb\rc"]]) == ["^[]0;x^G^?\\x9b31m b c"]


def test_columns_are_shortened_in_order_down_to_their_minimum() -> None:
    rows = [["NAME", "VALUE", "FROM"], ["one", "a long value", "here"]]
    assert shortened(rows, 80, [(1, 3)]) == rows
    assert shortened(rows, 20, [(1, 3)])[1] == ["one", "a long …", "here"]
    assert max(map(len, aligned(shortened(rows, 20, [(1, 3)])))) == 20
    assert shortened(rows, 10, [(1, 5), (2, 3)])[1] == ["one", "a lo…", "he…"]


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
def test_age_text_uses_kubectl_units(age_s: float | None, text: str) -> None:
    assert age_text(age_s) == text


def test_wrapping_preserves_long_words_and_line_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    url = "http://" + "x" * 60
    assert wrapped(f"see {url}\nsecond", indent="  ") == ["  see", f"  {url}", "  second"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)


def due(progress: Progress) -> Progress:
    """The progress line after its delay."""
    progress._timer.join()
    return progress


def test_progress_shorter_than_its_delay_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 60.0)
    with Progress("waiting") as progress:
        progress.update("still waiting")
    assert capsys.readouterr() == ("", "")


def test_progress_without_a_terminal_prints_each_new_state_as_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("waiting") as progress:
        due(progress).update("waiting")
        progress.update("[bold]more[/]")
    assert capsys.readouterr().err == "waiting ...\n[bold]more[/] ...\n"


def test_nested_progress_updates_the_outer_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("outer") as outer, Progress("inner") as inner:
        due(outer)
        inner.update("more")
    with Progress("another") as another:
        due(another)
    assert capsys.readouterr().err == "outer ...\nmore ...\nanother ...\n"


ERASE_LINE = "\x1b[2K"


def test_progress_on_a_terminal_prints_other_messages_beside_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "is_lively", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Progress("waiting [for it]") as progress:
        due(progress)
        print_aside("a word")
        progress.update("again")
    before, _, after = capsys.readouterr().err.partition("a word\n")
    assert "waiting [for it]" in before
    assert before.endswith(ERASE_LINE), "the line is removed before the message"
    assert "again" in after
    assert after.endswith(ERASE_LINE), "the line is removed at the end"


def test_colour_needs_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (paint("a", "red"), is_lively()) == ("a", False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert paint("a", "red", bold=True) == "\x1b[31m\x1b[1ma\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("a", "red") == "a"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert paint("a", "red") == "a"
