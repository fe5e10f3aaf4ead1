"""Output of the CLI: aligned columns, wrapped text, colours and a progress line."""

import datetime as dt
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import click

if TYPE_CHECKING:
    from rich.status import Status

_GAP = "  "
_SCREEN = (80, 24)
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))
# Below this count of a unit the output includes the next smaller unit.
_FEW = 10
_SHORT_S = 120

_PATIENCE_S = 1.0
# Control characters except line ends and tabs, as kubectl prints them: ESC is ^[. Latin 1 has further control
# characters.
_VISIBLE = {code: f"^{chr(code ^ 64)}" for code in (*range(9), *range(11, 32), 127)} | {
    code: f"\\x{code:02x}" for code in range(128, 160)
}


def output_option(*formats: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add ``-o`` with the given formats (default: text and json); the first is the default of the option."""
    choices = formats or ("text", "json")
    return click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], show_default=True, help="Output format."
    )


def printable(text: str) -> str:
    """A text from outside, without the characters that control the terminal."""
    return text.translate(_VISIBLE)


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 pod", "2 pods"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def aligned(rows: Iterable[Sequence[object]], *, indent: str = "") -> list[str]:
    """Align cells into columns; None is an empty cell."""
    texts = [["" if cell is None else " ".join(map(printable, str(cell).splitlines())) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)] if texts else []
    return [
        (indent + _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in texts
    ]


def shortened(rows: Sequence[Sequence[str]], width: int, leasts: Sequence[tuple[int, int]]) -> list[list[str]]:
    """Shorten cells so that the lines of ``aligned`` are at most ``width`` characters; a cut cell ends with "…".

    ``leasts`` has pairs of a column's index and its minimum width. Only these columns are shortened, in this order.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, least in leasts:
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        widths[place] = max(min(least, widths[place]), widths[place] - max(0, excess))
    return [
        [cell if len(cell) <= wide else f"{cell[: wide - 1]}…" for cell, wide in zip(row, widths, strict=True)]
        for row in rows
    ]


def wrapped(text: str, *, indent: str) -> list[str]:
    """Wrap a text at the width of the screen. Its own line breaks stay."""
    # Most commands print no long text; shutil imports the compression modules.
    import shutil  # noqa: PLC0415 - as above
    import textwrap  # noqa: PLC0415 - as above

    width = max(40, min(120, shutil.get_terminal_size(_SCREEN).columns))
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(
            printable(part),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def age_text(age_s: float | None) -> str:
    """Format an age with its largest units, as in 45s, 3m20s, 2h5m, 3d4h or 12d; "" for None."""
    if age_s is None:
        return ""
    rest = max(0, int(age_s))
    if rest < _SHORT_S:
        return f"{rest}s"
    for number, (unit, seconds) in enumerate(_UNITS):
        count, left = divmod(rest, seconds)
        if count:
            smaller, small_s = _UNITS[number + 1] if number + 1 < len(_UNITS) else ("s", 1)
            return f"{count}{unit}{left // small_s}{smaller}" if count < _FEW and left // small_s else f"{count}{unit}"
    return f"{rest}s"


def clock_text(at_s: float) -> str:
    """A local time of day such as 12:03:02, with the date if not today; ``at_s`` is seconds since the epoch."""
    moment = dt.datetime.fromtimestamp(at_s).astimezone()
    is_today = moment.date() == dt.datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def is_lively() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def paint(text: str, color: str | None, *, bold: bool = False) -> str:
    """The text in a colour if standard output is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return text
    return click.style(text, fg=color, bold=bold)


def print_aside(text: str) -> None:
    """Print to standard error above the progress line, wrapped at words on a terminal."""
    Progress.hide()
    lines = [printable(line) for line in text.splitlines()] if text else [""]
    if sys.stderr.isatty():
        lines = [part for line in lines for part in wrapped(line, indent="") or [""]]
    click.echo("\n".join(lines), err=True)


class Progress:
    """Shows the progress of a command after the first second. A nested progress updates the outermost one.

    Without a terminal each text is a separate line. ``terminal_only`` omits these lines, for a command that prints
    results early.
    """

    _outermost: ClassVar["Progress | None"] = None

    def __init__(self, text: str, *, terminal_only: bool = False) -> None:
        self._text = text
        self._terminal_only = terminal_only
        self._printed = ""
        self._shown: Status | None = None
        self._lock = threading.Lock()
        self._is_due = self._is_over = False
        self._timer = threading.Timer(_PATIENCE_S, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if Progress._outermost is None:
            Progress._outermost = self
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._shown is not None:
                self._shown.stop()
        if Progress._outermost is self:
            Progress._outermost = None

    def update(self, text: str) -> None:
        """Change the progress text."""
        outermost = Progress._outermost
        if outermost is not None and outermost is not self:
            outermost.update(text)
            return
        with self._lock:
            self._text = text
            if self._is_due and not self._is_over:
                self._draw()

    @classmethod
    def hide(cls) -> None:
        """Remove the visible progress before other output. It appears again with the next change of text."""
        if cls._outermost is not None:
            cls._outermost.clear()

    def clear(self) -> None:
        """Remove this progress line from the terminal."""
        with self._lock:
            if self._shown is not None:
                self._shown.stop()
                self._shown = None
                self._printed = ""

    def _show(self) -> None:
        with self._lock:
            self._is_due = True
            if not self._is_over:
                self._draw()

    def _draw(self) -> None:
        if self._printed == self._text:
            return
        self._printed = self._text
        if not is_lively():
            if not self._terminal_only:
                click.echo(f"{self._text} ...", err=True)
        elif self._shown is None:
            # The import loads many modules, and most commands have ended before.
            from rich.console import Console  # noqa: PLC0415 - as said
            from rich.markup import escape  # noqa: PLC0415 - as above

            status = Console(stderr=True).status(escape(self._text))
            status.start()
            self._shown = status
        else:
            from rich.markup import escape  # noqa: PLC0415 - loaded by now

            self._shown.update(escape(self._text))
