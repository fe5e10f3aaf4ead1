"""Progress of a command that takes longer than a second.

A terminal shows one line that is updated and removed; elsewhere, and for ``TERM=dumb``, each new state is a line. Progress
goes to standard error, so that the output can be piped.
"""

import os
import sys
import threading
from types import TracebackType
from typing import ClassVar, Protocol, Self

import click

from serving.cli.client.table import wrapped

_PATIENCE_S = 1.0


class _StatusLine(Protocol):
    def stop(self) -> None: ...

    def update(self, status: str) -> None: ...


def is_lively() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def paint(text: str, color: str | None, *, bold: bool = False) -> str:
    """The text in a colour if standard output is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return text
    return click.style(text, fg=color, bold=bold)


def say_aside(text: str) -> None:
    """Print to standard error without disturbing the progress; on a terminal words stay whole."""
    Progress.hide()
    lines = text.splitlines() if text else [""]
    if sys.stderr.isatty():
        lines = [part for line in lines for part in wrapped(line, indent="") or [""]]
    click.echo("\n".join(lines), err=True)


class Progress:
    """Shows what a command waits for, after its first second. An inner one updates the text of the outermost."""

    _outermost: ClassVar["Progress | None"] = None

    def __init__(self, text: str) -> None:
        self._text = text
        self._told = ""
        self._shown: _StatusLine | None = None
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

    def tell(self, text: str) -> None:
        """Change the text."""
        outermost = Progress._outermost
        if outermost is not None and outermost is not self:
            outermost.tell(text)
            return
        with self._lock:
            self._text = text
            if self._is_due and not self._is_over:
                self._tell()

    @classmethod
    def hide(cls) -> None:
        """Remove the shown progress before other output. The next change of text shows it again."""
        if cls._outermost is not None:
            cls._outermost.clear()

    def clear(self) -> None:
        """Remove the line that this one shows."""
        with self._lock:
            if self._shown is not None:
                self._shown.stop()
                self._shown, self._told = None, ""

    def _show(self) -> None:
        with self._lock:
            self._is_due = True
            if not self._is_over:
                self._tell()

    def _tell(self) -> None:
        if self._told == self._text:
            return
        self._told = self._text
        if not is_lively():
            click.echo(f"{self._text} ...", err=True)
        elif self._shown is None:
            # Many modules, and most commands are done by now.
            from rich.console import Console  # noqa: PLC0415 - as said
            from rich.markup import escape  # noqa: PLC0415 - as above

            status = Console(stderr=True).status(escape(self._text))
            status.start()
            self._shown = status
        else:
            from rich.markup import escape  # noqa: PLC0415 - loaded by now

            self._shown.update(escape(self._text))
