"""``serving replay``: repeats logged decisions with the current code, and shows differences."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.scaling.decision.records import ScalerOutcome
from serving.core.scaling.scaler.decision_history import DecisionRecord
from serving.core.scaling.scaler.explain import explain
from serving.core.scaling.scaler.replay import again, otherwise, read_record
from serving.net.aio.inputfile import open_input
from serving.tools.cli.client.api import fail
from serving.tools.cli.client.output import output_option

_EXIT_DIFFERENT = 1

_Difference = dict[str, Any]


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Replace a scaling setting of the revision: max_scale=4.",
)
@output_option()
def replay(files: tuple[Path, ...], changes: tuple[str, ...], output: str) -> None:
    """Recompute the decisions in FILES of the decision log; list the oldest file first.

    Exits with 1 if a recomputed decision differs from the log. With --set, recomputes each decision with the old and
    the new settings, for the logged load and pods, and prints the differences.
    """
    by_revision: dict[tuple[str, str], list[DecisionRecord]] = {}
    for record in _read(files):
        by_revision.setdefault((record.namespace, record.revision), []).append(record)
    try:
        if changes:
            _what_if(by_revision, _pairs(changes), is_json=output == "json")
        else:
            _verify(by_revision, is_json=output == "json")
    except InvalidValue as error:
        fail(f"--set: {error}" if changes else str(error))


def _verify(by_revision: dict[tuple[str, str], list[DecisionRecord]], *, is_json: bool) -> None:
    count = retained = 0
    different: list[_Difference] = []
    for (namespace, revision), records in by_revision.items():
        for record in records:
            count += 1
            retained += record.windows is None
            now, then = again(record), record.entry.outcome
            if now == then:
                continue
            difference = _difference(record, namespace=namespace, before=then, after=now)
            different.append(difference)
            if not is_json:
                click.echo(
                    f"{difference['at_s']:.3f} {revision}\n  then {difference['before']}\n  now  {difference['after']}"
                )
                for name, before, after in difference["fields"]:
                    click.echo(f"  {name}: {before} then, {after} now")
    if is_json:
        _print_record(count, len(by_revision), different)
    else:
        taken = f", {retained} with the recorded proposal of the algorithm" if retained else ""
        click.echo(f"{count} decisions about {len(by_revision)} revisions recomputed{taken}: {len(different)} differ")
    if different:
        sys.exit(_EXIT_DIFFERENT)


def _what_if(
    by_revision: dict[tuple[str, str], list[DecisionRecord]], changes: dict[str, str], *, is_json: bool
) -> None:
    count = 0
    different: list[_Difference] = []
    for (namespace, revision), records in sorted(by_revision.items()):
        for outcome in otherwise(records, changes):
            count += 1
            if outcome.is_same:
                continue
            difference = _difference(outcome.record, namespace=namespace, before=outcome.first, after=outcome.second)
            different.append(difference)
            if not is_json:
                click.echo(f"{difference['at_s']:.3f} {namespace}/{revision}\n  as it was {difference['before']}")
                click.echo(f"  otherwise {difference['after']}")
    if is_json:
        _print_record(count, len(by_revision), different)
        return
    text = ", ".join(f"{name}={value}" for name, value in changes.items())
    click.echo(f"with {text}: {len(different)} of {count} decisions about {len(by_revision)} revisions differ")


def _difference(record: DecisionRecord, *, namespace: str, before: ScalerOutcome, after: ScalerOutcome) -> _Difference:
    return {
        "at_s": record.entry.at_wall_s,
        "namespace": namespace,
        "revision": record.revision,
        "before": explain(before),
        "after": explain(after),
        "fields": list(_differences(msgspec.to_builtins(before), msgspec.to_builtins(after), "")),
    }


def _print_record(count: int, revision_count: int, different: list[_Difference]) -> None:
    click.echo(json.dumps({"decisions": count, "revisions": revision_count, "different": different}, indent=2))


def _read(files: tuple[Path, ...]) -> Iterator[DecisionRecord]:
    for path in files:
        with open_input(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield read_record(line)
                except InvalidValue as error:
                    fail(f"{path}:{number}: {error}")


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        if "=" not in text:
            fail(f"--set: {text!r} is not right; expected KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _differences(before: object, after: object, name: str) -> Iterator[tuple[str, object, object]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences(before.get(key), after.get(key), f"{name}.{key}" if name else str(key))
    elif before != after:
        yield name, before, after
