"""Columns of text, aligned, without lines between them; what people pipe into other tools."""

import datetime as dt
from collections.abc import Iterable, Sequence

_GAP = "  "
_SCREEN = (80, 24)
_UNITS = (("d", 86400), ("h", 3600), ("m", 60))
# Below this many of a unit the next smaller unit is shown as well.
_FEW = 10
_SHORT_S = 120


def aligned(rows: Iterable[Sequence[object]], *, indent: str = "") -> list[str]:
    """Lines in which all cells of a column begin at the same place; None is an empty cell."""
    texts = [["" if cell is None else " ".join(str(cell).split("\n")) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)] if texts else []
    return [
        (indent + _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in texts
    ]


def wrapped(text: str, *, indent: str) -> list[str]:
    """A text in lines no wider than the screen; its own lines stay apart."""
    # Most commands print no long text; shutil imports the compression modules.
    import shutil  # noqa: PLC0415 - as above
    import textwrap  # noqa: PLC0415 - as above

    width = max(40, min(120, shutil.get_terminal_size(_SCREEN).columns))
    return [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(
            part,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def age_text(age_s: float | None) -> str:
    """45s, 3m20s, 2h5m, 3d4h, 12d."""
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
    """12:03:02 of today, or with its date, in this place's time; ``at_s`` is in seconds since the epoch."""
    moment = dt.datetime.fromtimestamp(at_s).astimezone()
    is_today = moment.date() == dt.datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
