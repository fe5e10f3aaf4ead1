"""A group of commands that loads a command's module only when the command is asked for.

Input: tables of names, the location of each command, and its line in the help; ``--help`` imports no daemon. An unexpected
error ends as one line; ``SERVING_TRACEBACK=1`` shows its traceback.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click

Section = Mapping[str, tuple[str, str]]
"""Commands by name: "module:attribute", and the line that the help of the group shows."""

_EXIT_FAILED = 1
_EXIT_USAGE = 2
_EXIT_INTERRUPTED = 130
_TRACEBACK = "SERVING_TRACEBACK"


class LazyGroup(click.Group):
    """Commands in sections. A new command is one line in one of them."""

    def __init__(self, *args: Any, sections: Mapping[str, Section] | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **kwargs)
        self._sections = dict(sections or {})
        self._places = {name: place for section in self._sections.values() for name, (place, _) in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*self._places, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None if there is none of that name."""
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command), f"{place} is no command"
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The named command; the error for an unknown name suggests similar ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx)) if args else []
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help's sections, from the tables alone."""
        del ctx
        width = max(map(len, self._places), default=0)
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in section.items()])

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Run the command; an unexpected error becomes one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(_EXIT_INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # the outermost frame of the command line
            if os.environ.get(_TRACEBACK):
                raise
            _end_with(error)


def _end_with(error: Exception) -> NoReturn:
    """Print one line for an unexpected error; errors with a message for users are printed as they are."""
    # Only here, so that the help does not wait for the import.
    from serving.model.errors import ServingError, SettingsError  # noqa: PLC0415 - as said

    if isinstance(error, ServingError):
        click.echo(str(error), err=True)
        sys.exit(_EXIT_USAGE if isinstance(error, SettingsError) else _EXIT_FAILED)
    if isinstance(error, OSError):
        click.echo("".join(_os_error(error)), err=True)
    else:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        click.echo(f"internal error: {text}; {_TRACEBACK}=1 shows the traceback", err=True)
    sys.exit(_EXIT_FAILED)


def _os_error(error: OSError) -> Iterator[str]:
    if error.filename is not None:
        yield f"{error.filename}: "
    yield error.strerror or str(error) or type(error).__name__
