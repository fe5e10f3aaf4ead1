"""Parameters of commands: kinds by their usual names, output formats, durations and API paths."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import click

from serving.core.model.errors import InvalidValue
from serving.net.cluster.kinds import KINDS, POD_METRICS, SERVING_SERVICE, UNUSED_KINDS, Kind
from serving.tools.cli.client.output import output_option

# The first kind with a word keeps the word: "service" is Knative's kind, "svc" is Kubernetes' kind.
_USED = [kind for kind in KINDS if kind not in {SERVING_SERVICE, POD_METRICS, *UNUSED_KINDS}]
_KINDS = (SERVING_SERVICE, *_USED, POD_METRICS)
_BY_WORD: dict[str, Kind] = {}
# A typo such as "servces" has 0.9; "a" has 0.67 of "sa".
_LIKENESS_MIN = 0.75
JSONPATH = "jsonpath="
"""The prefix of an output that is a JSONPath template."""


def _words(kind: Kind) -> tuple[str, ...]:
    return (kind.plural, kind.name.lower(), *kind.short_names, kind.resource)


for _kind in _KINDS:
    for _word in _words(_kind):
        _BY_WORD.setdefault(_word, _kind)


def known_words() -> list[str]:
    """One word for each kind, as accepted by ``kind_named``; the most common kind is first."""
    return [next(word for word in _words(kind) if _BY_WORD[word] == kind) for kind in _KINDS if kind != POD_METRICS]


def kind_named(word: str) -> Kind:
    """The kind that a word selects, such as "services", "ksvc", "revision" or "pods". Raises ``InvalidValue``."""
    kind = _BY_WORD.get(word.lower())
    if kind is None:
        near = difflib.get_close_matches(word.lower(), _BY_WORD, n=1, cutoff=_LIKENESS_MIN)
        hint = f"; the nearest is {near[0]}" if near else " such as services, revisions, routes, pods, nodes or events"
        raise InvalidValue(text=word, expected=f"a kind{hint}")
    return kind


def path_of(kind: Kind, namespace: str | None, name: str | None = None, *, subresource: str = "") -> str:
    """The API path of an object, or of all objects of a kind; ``namespace`` None selects all namespaces.

    Raises ``InvalidValue`` for an empty name, whose path would select all objects.
    """
    if name == "":
        raise InvalidValue(text=name, expected=f"the name of a {kind.name}")
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if kind.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (kind.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


class OutputParam(click.Choice):  # type: ignore[type-arg]  # generic in newer versions only
    """One of several output formats, or ``jsonpath=TEMPLATE``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's own
        """Parse an output format."""
        return value if isinstance(value, str) and value.startswith(JSONPATH) else super().convert(value, param, ctx)


class TimeParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A duration such as 90, 90s or 5m, converted to seconds."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401 - click's own
        """Parse a duration. A number without a unit means seconds."""
        if isinstance(value, int | float):
            return float(value)
        try:
            return float(value)
        except ValueError:
            pass
        # The module fractions, which most commands do not need.
        from serving.core.model.quantity import parse_duration_s  # noqa: PLC0415 - as above

        try:
            return parse_duration_s(value)
        except InvalidValue:
            self.fail(f"{value!r} is not a time; expected seconds as 90, or 90s, 5m, 1h", param, ctx)


class SecondsParam(TimeParam):
    """A duration of at least one second, converted to whole seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's own
        """Parse a duration. A number without a unit means seconds."""
        seconds = super().convert(value, param, ctx)
        if seconds < 1 or seconds != int(seconds):
            self.fail(f"{value!r} is not a time of whole seconds, from 1s on", param, ctx)
        return int(seconds)


def json_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``-o`` (text or JSON) and ``--json``. ``is_json`` evaluates both."""
    shown = output_option()
    return shown(click.option("--json", "as_json", is_flag=True, help="Same as -o json.")(command))


def is_json(options: Mapping[str, Any]) -> bool:
    """Whether the options of ``json_output_options`` select JSON."""
    return bool(options["as_json"]) or options["output"] == "json"


def wait_timeout_option(default_s: float, *older: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the option ``--wait-timeout``, passed as ``wait_s``. ``older`` are deprecated spellings."""
    return click.option(
        "--wait-timeout",
        *older,
        "wait_s",
        type=TimeParam(),
        default=f"{default_s:g}s",
        show_default=True,
        help="Maximum time to wait, such as 90s or 5m.",
    )
