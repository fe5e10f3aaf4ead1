"""Renders the settings for people: the shipped ConfigMaps with comments, and the page ``docs/settings.md``.

Both come from the records alone, from each field's type, default and the string below it, so that nothing is written twice. Tests
compare ``config/*.yaml`` and the page with this module's output.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterable, Iterator

import msgspec

from serving.core.settings.knob import Field, SettingsRecord, live_fields, with_group
from serving.core.settings.load import Daemon
from serving.core.settings.parse import EXAMPLE_KEY

_COMMENT_WIDTH = 110

_PAGE_HEAD = """# Settings

This page is made from the code by `make config`; the meaning of a key stands in `serving/core/settings/`, once.

Layers, a later one wins: defaults < ConfigMaps (`config/`) < environment < flags. In the environment a setting of a
daemon is `SERVING_<DAEMON>_<FIELD>`, on the command line `--set <field>=...`; there a value is written in the plain unit
that the field's name ends in (`stable_window_s=60`), in a ConfigMap in Knative's way (`stable-window: "60s"`).
`serving config show` prints each value with its origin, `serving config check FILE` all that is wrong with a file.

A setting is in force at once where a daemon follows its ConfigMap, and otherwise after a restart. An annotation gives a revision a
value of its own.
"""


def config_map_names(daemons: Iterable[Daemon[SettingsRecord]]) -> list[str]:
    """Names of all ConfigMaps that any daemon reads, in the order of the daemons."""
    return list(dict.fromkeys(field.knob.config_map or "" for daemon in daemons for field in daemon.fields()))


def field_meaning(field: Field) -> str:
    """The meaning of a field, from the string below it, on one line."""
    return _meanings(field.owner)[field.path[-1]]


@functools.cache
def _meanings(record: type[msgspec.Struct]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def render_config_map(name: str, daemons: Iterable[Daemon[SettingsRecord]]) -> str:
    """YAML of one ConfigMap: every key at its default, with its meaning as a comment, inside the block ``_example``.

    The file sets no key, so that neither ``kubectl apply`` nor ``serving install`` can reset one that a user has set.
    """
    return "\n".join(
        [
            "apiVersion: v1",
            "kind: ConfigMap",
            "metadata:",
            f"  name: {name}",
            "  namespace: knative-serving",
            "data:",
            f"  {EXAMPLE_KEY}: |",
            "    # Every key at its default. Nothing in this block takes effect: to change a setting, copy its key out of the",
            f"    # block, to the level of {EXAMPLE_KEY}.",
            *(f"    {line}".rstrip() for line in _example_lines(name, daemons)),
            "",
        ]
    )


def _example_lines(name: str, daemons: Iterable[Daemon[SettingsRecord]]) -> Iterator[str]:
    for field in _fields_in(name, daemons):
        yield ""
        yield from (f"# {line}" for line in textwrap.wrap(field_meaning(field), _COMMENT_WIDTH))
        text = field.knob.unit.write(field.default)
        yield f"{field.knob.key}: '{text}'" if '"' in text else f'{field.knob.key}: "{text}"'


def render_page(daemons: Iterable[Daemon[SettingsRecord]]) -> str:
    """Markdown of docs/settings.md: one table for each daemon."""
    daemons = list(daemons)
    lines = [_PAGE_HEAD]
    for daemon in daemons:
        lines += [f"## {daemon.name}", "", "| key | default | right is | in force | meaning |", "|---|---|---|---|---|"]
        lines += [_row(field, daemon) for field in daemon.fields()]
        lines.append("")
    return "\n".join(lines)


def _row(field: Field, daemon: Daemon[SettingsRecord]) -> str:
    knob = field.knob
    key = f"`{knob.key}`" + (f" in {knob.config_map}" if knob.config_map != daemon.config_map else "")
    default = knob.unit.write(field.default) or "empty"
    own = f"<br>annotation `{with_group(knob.annotation)}`" if knob.annotation else ""
    in_force = "at once" if field.path[0] in live_fields(daemon.record) else "after a restart"
    return f"| {key}<br>`{field.name}`{own} | `{default}` | {knob.describe()} | {in_force} | {field_meaning(field)} |"


def _fields_in(name: str, daemons: Iterable[Daemon[SettingsRecord]]) -> Iterator[Field]:
    seen: set[str] = set()
    for daemon in daemons:
        for field in daemon.fields():
            if field.knob.config_map == name and field.knob.key not in seen:
                seen.add(field.knob.key)
                yield field
