"""Prose is plain technical English: banned words are absent, and paragraphs of the docs are short.

Prose is docstrings, comments, the pages, and texts in the code that people read (with a space in them).
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.sources import ROOT, files_of_tests, named, parsed, product_files

PARAGRAPH_WORDS_MAX = 80
# Words and phrases that read as translated, or that say nothing. Use the component as the subject and a field verb.
_BANNED = re.compile(
    r"\b(told|nobody|whoever|somebody|anew|thereof|of ours|in the place of|what it is about)\b", re.IGNORECASE
)
_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]*`")


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Comments, docstrings and texts with a space in them, each with its first line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def banned_words(text: str) -> list[str]:
    """The banned words of a text, in their order."""
    return [match[0].lower() for match in _BANNED.finditer(text)]


def long_paragraphs(page: str) -> Iterator[tuple[int, int]]:
    """First line and number of words of each paragraph or list item that is too long; tables and code do not count."""
    text = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page)
    start, words = 0, 0
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        is_item = re.match(r"\s*([-*]|\d+\.)\s", line) is not None
        if not line.strip() or is_item or line.lstrip().startswith(("|", "#")):
            if words > PARAGRAPH_WORDS_MAX:
                yield start, words
            start, words = number, 0
        if line.strip() and not line.lstrip().startswith(("|", "#")):
            start = start if words else number
            words += len(line.split())


def first_lines(source: str) -> Iterator[tuple[int, str]]:
    """First lines of the docstrings of modules, classes, functions, constants and fields."""
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # Below a constant or field, a text documents it; in a function only the first statement is a docstring.
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else node.body[:1]
        for statement in body:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text.strip().partition("\n")[0]


def is_riddle(first_line: str) -> bool:
    """Whether a first line has more than one relative clause or indirect question."""
    return len(re.findall(r"\b(?:what|who|that|which)\b", first_line, re.IGNORECASE)) > 1


def code_files() -> list[Path]:
    """The Python files whose prose is checked."""
    return [*product_files(), *sorted((ROOT / "bench").rglob("*.py")), *sorted((ROOT / "release").glob("*.py"))]


def pages() -> list[Path]:
    """The pages that people read."""
    return [*(ROOT / name for name in _PAGES), *sorted((ROOT / "docs").glob("**/*.md"))]


def test_code_prose_has_no_banned_words() -> None:
    results = [
        f"{named(path)}:{line}: {', '.join(words)}"
        for path in code_files()
        for line, text in prose_of(path.read_text())
        if (words := banned_words(text))
    ]
    assert results == [], "\n".join(results)


def test_docstring_first_lines_have_one_clause() -> None:
    results = [
        f"{named(path)}:{line}: {text}"
        for path in [*code_files(), *files_of_tests()]
        for line, text in first_lines(path.read_text())
        if is_riddle(text)
    ]
    assert results == [], "\n".join(results)


def test_pages_have_no_banned_words() -> None:
    results = [
        f"{named(path)}:{number}: {', '.join(words)}"
        for path in pages()
        for number, line in enumerate(_INLINE_CODE.sub("", path.read_text()).splitlines(), start=1)
        if (words := banned_words(line))
    ]
    assert results == [], "\n".join(results)


def test_page_paragraphs_are_within_their_word_limit() -> None:
    results = [
        f"{named(path)}:{line}: {words} words, {PARAGRAPH_WORDS_MAX} are allowed"
        for path in pages()
        for line, words in long_paragraphs(path.read_text())
    ]
    assert results == [], "\n".join(results)
