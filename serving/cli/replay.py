"""``serving replay``: decides again what the decision log has, with the same code, and shows where the answers differ."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from serving.autoscaler.decision_history import DecisionRecord
from serving.autoscaler.explain import explain
from serving.autoscaler.replay import ReplayedDecision, again, otherwise, read_record
from serving.cli.api import fail
from serving.model.errors import InvalidValue

__all__ = ["replay"]

_EXIT_DIFFERENT = 1


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE", help="A number of the revision to change: max_scale=4."
)
def replay(files: tuple[Path, ...], changes: tuple[str, ...]) -> None:
    """Decide again what stands in FILES of the decision log, oldest file first.

    With the same numbers every answer must be the same, else the command ends with 1. With --set, each moment is decided
    with both numbers, load and pods being as they were.
    """
    by_revision: dict[tuple[str, str], list[DecisionRecord]] = {}
    for record in _read(files):
        by_revision.setdefault((record.namespace, record.revision), []).append(record)
    if not changes:
        _verify(by_revision)
        return
    try:
        _what_if(by_revision, _pairs(changes))
    except InvalidValue as error:
        fail(f"--set: {error}")


def _verify(by_revision: dict[tuple[str, str], list[DecisionRecord]]) -> None:
    count = different = kept = 0
    for records in by_revision.values():
        for record in records:
            count += 1
            kept += record.windows is None
            found, then = again(record), record.entry.outcome
            if found != then:
                different += 1
                click.echo(
                    f"{record.entry.at_wall_s:.3f} {record.revision}\n  then {explain(then)}\n  now  {explain(found)}"
                )
                for name, before, after in _differences(msgspec.to_builtins(then), msgspec.to_builtins(found), ""):
                    click.echo(f"  {name}: {before} then, {after} now")
    taken = f", {kept} with the algorithm's answer as it was" if kept else ""
    click.echo(f"{count} decisions about {len(by_revision)} revisions decided again{taken}: {different} differ")
    if different:
        sys.exit(_EXIT_DIFFERENT)


def _what_if(by_revision: dict[tuple[str, str], list[DecisionRecord]], changes: dict[str, str]) -> None:
    count = different = 0
    for (namespace, revision), records in sorted(by_revision.items()):
        answers = list(otherwise(records, changes))
        count += len(answers)
        different += sum(not answer.is_same for answer in answers)
        _tell(f"{namespace}/{revision}", answers)
    text = ", ".join(f"{name}={value}" for name, value in changes.items())
    click.echo(f"with {text}: {different} of {count} decisions about {len(by_revision)} revisions differ")


def _tell(who: str, answers: list[ReplayedDecision]) -> None:
    for answer in answers:
        if not answer.is_same:
            click.echo(f"{answer.record.entry.at_wall_s:.3f} {who}\n  as it was {explain(answer.first)}")
            click.echo(f"  otherwise {explain(answer.second)}")


def _read(files: tuple[Path, ...]) -> Iterator[DecisionRecord]:
    for path in files:
        with path.open("rb") as file:
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
    """Fields of two answers that differ, by their path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences(before.get(key), after.get(key), f"{name}.{key}" if name else str(key))
    elif before != after:
        yield name, before, after
