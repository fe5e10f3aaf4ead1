"""Types of option values that several commands share."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from serving.model.errors import InvalidValue

JSONPATH = "jsonpath="
"""The beginning of an output that is a JSONPath template."""


class OutputParam(click.Choice):  # type: ignore[type-arg]  # generic in newer versions only
    """One of some outputs, or ``jsonpath=TEMPLATE``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """Read an output."""
        return value if isinstance(value, str) and value.startswith(JSONPATH) else super().convert(value, param, ctx)


class TimeParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A time as 90, 90s or 5m, in seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's own
        """Read a time. A number without a unit means seconds."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return float(value)
        except ValueError:
            pass
        # Fractions, which most commands do not need.
        from serving.model.quantity import parse_duration_s  # noqa: PLC0415 - as above

        try:
            return parse_duration_s(value)
        except InvalidValue:
            self.fail(f"{value!r} is not a time; expected seconds as 90, or 90s, 5m, 1h", param, ctx)


def json_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """``-o`` of text or JSON, and ``--json`` for the latter; ``is_json`` reads both."""
    shown = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
    return shown(click.option("--json", "as_json", is_flag=True, help="As -o json.")(command))


def is_json(options: Mapping[str, Any]) -> bool:
    """Whether the options of ``json_output_options`` ask for JSON."""
    return bool(options["as_json"]) or options["output"] == "json"


def wait_timeout_option(default_s: float, *older: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``--wait-timeout``, as ``wait_s``. ``older`` are further spellings that a command had before."""
    return click.option(
        "--wait-timeout",
        *older,
        "wait_s",
        type=TimeParam(),
        default=f"{default_s:g}s",
        show_default=True,
        help="How long to wait, as 90s or 5m.",
    )
