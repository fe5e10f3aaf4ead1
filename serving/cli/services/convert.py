"""``serving convert``: manifests of Knative from a compose file, or from those of KEDA's HTTP add-on."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from serving.cli.client.api import fail_usage
from serving.cli.client.progress import say_aside
from serving.cli.services.composeconvert import from_compose, is_compose
from serving.cli.services.converted import Converted
from serving.cli.services.kedaconvert import ROUTE_KINDS, from_keda
from serving.model.errors import InvalidValue

_STDIN = "-"


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def convert(*, files: tuple[str, ...]) -> None:
    """Print Knative manifests for compose files, and for HTTPScaledObjects or InterceptorRoutes with their Deployments.

    Notes about what has no equal go to standard error. `serving convert compose.yaml | serving apply -f -` applies them.
    """
    documents = [document for file in files for document in _documents(file)]
    try:
        found = _converted(documents)
    except InvalidValue as error:
        fail_usage(str(error))
    if not found.manifests:
        fail_usage(
            "nothing to convert: expected a compose file with services, an HTTPScaledObject or an InterceptorRoute"
        )
    for note in found.notes:
        say_aside(f"note: {note}")
    click.echo(yaml.safe_dump_all(found.manifests, sort_keys=False, default_flow_style=False), nl=False)


def _converted(documents: Sequence[Any]) -> Converted:
    found = Converted()
    parts = [from_compose(one) for one in documents if is_compose(one)]
    if any(one.get("kind") in ROUTE_KINDS for one in documents):
        parts.append(from_keda(documents))
    for part in parts:
        found.manifests += part.manifests
        found.notes += part.notes
    return found


def _documents(file: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if file == _STDIN else Path(file).read_text(encoding="utf-8")
        found = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        fail_usage(f"{file}: {error.strerror if isinstance(error, OSError) else 'not a text file'}")
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        fail_usage(f"{file}{line}: not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        fail_usage(f"{file}: not YAML: {' '.join(str(error).split())}")
    return [one for one in found if isinstance(one, dict)]
