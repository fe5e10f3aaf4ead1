import pytest

from serving.cli.client import progress as module
from serving.cli.client.progress import Progress, is_lively, paint, say_aside


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)


def due(progress: Progress) -> Progress:
    """The same when its time has come."""
    progress._timer.join()
    return progress


def test_what_is_over_soon_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 60.0)
    with Progress("waiting") as progress:
        progress.tell("still waiting")
    assert capsys.readouterr() == ("", "")


def test_each_new_state_is_a_plain_line_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("waiting") as progress:
        due(progress).tell("waiting")
        progress.tell("[bold]more[/]")
    assert capsys.readouterr().err == "waiting ...\n[bold]more[/] ...\n"


def test_what_an_inner_one_is_told_the_outer_one_says(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("outer") as outer, Progress("inner") as inner:
        due(outer)
        inner.tell("more")
    with Progress("another") as another:
        due(another)
    assert capsys.readouterr().err == "outer ...\nmore ...\nanother ...\n"


def test_on_a_terminal_it_is_one_line_that_goes_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "is_lively", lambda: True)
    with Progress("waiting [for it]") as progress:
        due(progress)
        say_aside("a word")
        progress.tell("again")
    assert "a word\n" in capsys.readouterr().err
    assert progress._shown is not None


def test_pipes_get_no_colour(monkeypatch: pytest.MonkeyPatch) -> None:
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
