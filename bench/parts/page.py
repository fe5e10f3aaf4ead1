"""Writes measurements into a page of docs, between two comments."""

from collections.abc import Iterable, Mapping
from pathlib import Path

_END = "<!-- end -->\n"


def fill(path: Path, blocks: Mapping[str, Iterable[str]]) -> None:
    """Replace blocks of a page by their names. Raises ``SystemExit`` if the page has no place for one."""
    text = path.read_text()
    for name, lines in blocks.items():
        begin = f"<!-- measured: {name} -->\n"
        head, result, rest = text.partition(begin)
        _, ended, tail = rest.partition(_END)
        if not (result and ended):
            raise SystemExit(f"{path} has no place for {name!r}")
        block = "\n".join(lines).strip()
        text = f"{head}{begin}\n{block}\n\n{_END}{tail}"
    path.write_text(text)
