"""Renders the settings for people: shipped ConfigMaps with comments, and the page ``docs/settings.md``.

Both come from the records alone, from each field's type, default and the string below it, so that nothing is written
twice. Tests compare ``config/*.yaml`` and the page with this module's output.
"""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator

import msgspec

from serving.core.settings.knativekeys import WITHOUT_EFFECT, WithoutEffect
from serving.core.settings.knob import ANY_KEY, Field, SettingsRecord, live_fields, with_group
from serving.core.settings.load import Daemon
from serving.core.settings.parse import EXAMPLE_KEY

_COMMENT_WIDTH = 110

_PAGE_HEAD = """# Settings

`make config` writes this page from `serving/core/settings/`.

Flags override the environment, the environment overrides ConfigMaps (`config/`), and ConfigMaps override defaults.

|layer|form|example|
|---|---|---|
|ConfigMap|the key, with a value in Knative's units|`stable-window: "60s"`|
|environment|`SERVING_<DAEMON>_<FIELD>`, with a value in the unit that ends the field's name|`SERVING_AUTOSCALER_STABLE_WINDOW_S=60`|
|flag|`--set <field>=<value>`, with the value of the environment variable|`--set stable_window_s=60`|
|annotation|overrides the setting for one revision|`autoscaling.knative.dev/window: 60s`|

`serving config show` prints each value with its origin. `serving config check FILE` lists all errors of a file.

Each row below has the key, the field's name and the annotation. A daemon applies a changed setting immediately ("now") or when it starts ("restart"). A listener that inherits a socket ignores its address setting.
Earlier names of Knative's keys, such as `domainTemplate`, still work.
"""
_WITHOUT_EFFECT_HEAD = """## Keys of Knative without effect

These keys of Knative's ConfigMaps have no effect. The accepted value describes the fixed behaviour. Any other value causes the Event `SettingsUnknown`.

|ConfigMap|keys|accepted value|reason|
|---|---|---|---|"""
# Sentences that the page omits, because a column has them or only the shipped ConfigMap needs them.
_RANGE = re.compile(r" ?Range: .*?\.(?= |$)")
_ORIGIN = re.compile(r" ?Default: .*")
# The field's name and the column of values have the unit.
_SECONDS = re.compile(r", in seconds(?=[.;,])")


def config_map_names(daemons: Iterable[Daemon[SettingsRecord]]) -> list[str]:
    """Names of all ConfigMaps that the daemons read, in the order of the daemons."""
    return list(dict.fromkeys(field.knob.config_map or "" for daemon in daemons for field in daemon.fields()))


def field_meaning(field: Field) -> str:
    """The meaning of a field, from its docstring, on one line."""
    return _meanings(field.owner)[field.path[-1]]


@functools.cache
def _meanings(record: type[msgspec.Struct]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    meanings: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                meanings[name] = " ".join(text.split())
    return meanings


def render_config_map(name: str, daemons: Iterable[Daemon[SettingsRecord]]) -> str:
    """YAML of one ConfigMap: every key at its default, its meaning as a comment, inside the block ``_example``.

    The file sets no key, so that neither ``kubectl apply`` nor ``serving install`` can reset a key that a user has set.
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
        if field.knob.key == ANY_KEY:
            continue
        text = field.knob.unit.write(field.default)
        yield f"{field.knob.key}: '{text}'" if '"' in text else f'{field.knob.key}: "{text}"'


def render_page(daemons: Iterable[Daemon[SettingsRecord]]) -> str:
    """Markdown of docs/settings.md: one table per daemon. A field of several daemons is in the first daemon's table."""
    lines = [_PAGE_HEAD]
    first_daemons: dict[str, tuple[Daemon[SettingsRecord], Field]] = {}
    for daemon in daemons:
        fields = daemon.fields()
        shared = [field for field in fields if _is_shared(field, first_daemons)]
        lines += [
            f"## {daemon.name}",
            "",
            "|setting|default|values|applies from|meaning|",
            "|---|---|---|---|---|",
        ]
        lines += [_row(field, daemon) for field in fields if field not in shared]
        lines += ["", *_shared_lines(shared, first_daemons)]
        first_daemons = {field.name: (daemon, field) for field in fields} | first_daemons
    lines += [_WITHOUT_EFFECT_HEAD]
    rows: dict[tuple[str, WithoutEffect], list[str]] = {}
    for name, keys in WITHOUT_EFFECT.items():
        for key, reason in keys.items():
            rows.setdefault((name, reason), []).append(f"`{key}`")
    lines += [
        f"|{name}|{', '.join(keys)}|{reason.fulfilled[0] or 'empty' if reason.fulfilled else ''}|{reason.why}|"
        for (name, reason), keys in rows.items()
    ]
    return "\n".join([*lines, ""])


def _is_shared(field: Field, first_daemons: dict[str, tuple[Daemon[SettingsRecord], Field]]) -> bool:
    _, first = first_daemons.get(field.name, (None, None))
    return first is not None and field.default == first.default and field_meaning(first) == field_meaning(field)


def _shared_lines(fields: list[Field], first_daemons: dict[str, tuple[Daemon[SettingsRecord], Field]]) -> Iterator[str]:
    """Lines that name the fields of a daemon whose meaning is in the table of an earlier daemon."""
    if not fields:
        return
    groups = dict.fromkeys(f"`{field.path[0]}.*`" if len(field.path) > 1 else f"`{field.name}`" for field in fields)
    names = dict.fromkeys(first_daemons[field.name][0].name for field in fields)
    yield f"This daemon also has {', '.join(groups)}, as in {' and '.join(f'[{name}](#{name})' for name in names)}."
    yield ""


def _row(field: Field, daemon: Daemon[SettingsRecord]) -> str:
    knob = field.knob
    key = f"`{knob.key}`" + (f" in {knob.config_map}" if knob.config_map != daemon.config_map else "")
    default = knob.unit.write(field.default) or "empty"
    name = f"<br>`{field.name}`" if field.name != knob.key else ""
    own = f"<br>`{with_group(knob.annotation)}`" if knob.annotation else ""
    applied = "now" if field.path[0] in live_fields(daemon.record) else "restart"
    meaning = _SECONDS.sub("", _ORIGIN.sub("", _RANGE.sub("", field_meaning(field))))
    return f"|{key}{name}{own}|`{default}`|{_values(knob.describe())}|{applied}|{meaning}|"


def _values(described: str) -> str:
    """The description of a setting's values in few words: without the article, the type of a range and "one of"."""
    short = re.sub(
        r"^a (?:whole number|number|duration|percentage) from (?=\S+ to \S)|^a duration (?=above|from)|^one of (?=\S{2})|^an? ",
        "",
        described,
    )
    return re.sub(r"\bof at least\b", "from", short).replace(" and up to ", " to ").replace("one of ,", "empty,")


def _fields_in(name: str, daemons: Iterable[Daemon[SettingsRecord]]) -> Iterator[Field]:
    seen: set[str] = set()
    for daemon in daemons:
        for field in daemon.fields():
            if field.knob.config_map == name and field.knob.key not in seen:
                seen.add(field.knob.key)
                yield field
