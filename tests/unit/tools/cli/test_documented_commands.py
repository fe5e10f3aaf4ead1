"""Each `serving` command in README, docs and examples parses; none is executed."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from serving.tools.cli.main import main
from tests.tidy.sources import ROOT

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").glob("**/README.md"),
    ]
)
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(serving [^`]*)`")
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_PREFIX = re.compile(r"^(\$ |sudo |export |[A-Z_]+=\S+ )+")
# Shell operators that end a command.
_END = re.compile(r"\s(?:\||\|\||&&?|;|>|<)(?:\s|$)")
# A synopsis with optional or alternative words.
_IS_FORM = re.compile(r"[\[\]|]|\.\.\.|\bCOMMAND\b")


def typed_commands(page: str) -> Iterator[str]:
    """The commands in code blocks, without prompt, variables, comment and what follows a pipe."""
    for language, block in _FENCE.findall(page):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if language == "console" and not line.startswith("$ "):
                continue
            for nested in _SUBSTITUTION.findall(line):
                if nested.startswith("serving "):
                    yield nested
            command = _PREFIX.sub("", _SUBSTITUTION.sub("x", line.strip()))
            if command.startswith("serving "):
                yield _END.split(re.sub(r"\s+#\s.*", "", command))[0]


def inline_commands(page: str) -> Iterator[str]:
    """The commands in the text; parts may be missing."""
    for code in _INLINE.findall(_FENCE.sub("", page)):
        if not _IS_FORM.search(code):
            yield _END.split(code)[0]


def problem_of(text: str, *, is_whole: bool) -> str | None:
    """The parse error of a command, or None. A partial command may lack arguments."""
    words = shlex.split(text)[1:]
    command: click.Command = main
    try:
        while isinstance(command, click.Group):
            context = click.Context(command, info_name="serving", **command.context_settings)
            command.parse_args(context, words)
            words = [*context._protected_args, *context.args]
            if not words:
                return None
            _, result, words = command.resolve_command(context, words)
            assert result is not None
            command = result
        context = click.Context(command, **command.context_settings)
        values, rest, _ = command.make_parser(context).parse_args(words)
        for parameter in command.params:
            value = values.get(parameter.name or "")
            if isinstance(value, str) and (is_whole or isinstance(parameter, click.Option)):
                _check(parameter, value, context)
            if is_whole and parameter.required and parameter.value_is_missing(value):
                return f"{parameter.name} is missing"
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):
        # `--help` and the like.
        return None
    except click.BadOptionUsage as error:
        return error.format_message() if is_whole else None
    except click.UsageError as error:
        return error.format_message()
    return f"unexpected argument {rest[0]}" if is_whole and rest and not context.allow_extra_args else None


def _check(parameter: click.Parameter, value: str, context: click.Context) -> None:
    """Check choices and ranges; other types may read files."""
    if isinstance(parameter.type, click.Choice | click.IntRange | click.FloatRange):
        parameter.type_cast_value(context, value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_of_a_page_parse(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = [(command, True) for command in typed_commands(text)]
    commands += [(command, False) for command in inline_commands(text)]
    problems = [
        f"{command}: {problem}"
        for command, is_whole in commands
        if (problem := problem_of(command, is_whole=is_whole)) is not None
    ]
    assert problems == [], "\n".join(problems)


def test_pages_contain_more_than_100_commands() -> None:
    assert sum(1 for page in PAGES for _ in typed_commands(page.read_text(encoding="utf-8"))) > 100


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("serving deploy hello ./app --command 'python3 app.py'", None),
        ("serving simulate --stable-window 30s", None),
        ("serving deploy hello --comand x", "No such option"),
        ("serving deplo hello", "No such command"),
        ("serving up now", "unexpected argument"),
        ("serving url", "missing"),
    ],
)
def test_problem_of_detects_an_invalid_command(command: str, problem: str | None) -> None:
    text = problem_of(command, is_whole=True)
    assert (text is None) if problem is None else (problem in (text or "")), text
