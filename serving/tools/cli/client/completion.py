"""``serving completion``: the script with which a shell completes commands, options, kinds and names.

Names come from the server at each key press; a server that does not respond immediately completes nothing.
"""

import contextlib
import json

import click

from serving.core.model.errors import ServingError
from serving.net.cluster.kinds import REVISION, SCALED_WORKLOAD, SERVING_SERVICE, Kind
from serving.tools.cli.client.api import place_of
from serving.tools.cli.client.connection import ApiRequest, connect
from serving.tools.cli.client.resources import kind_named, known_words, path_of

_PROGRAM = "serving"
_VARIABLE = "_SERVING_COMPLETE"
_TIMEOUT_S = 1.0


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: add to ~/.bashrc    eval "$(serving completion bash)"
    zsh:  add to ~/.zshrc     eval "$(serving completion zsh)"
    fish: serving completion fish > ~/.config/fish/completions/serving.fish
    """  # noqa: D301 - click's mark for lines that stay as they are
    # The import takes six milliseconds, and nearly every command imports this module for its hooks.
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - as above

    root = context.find_root().command
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(root, {}, _PROGRAM, _VARIABLE).source())


def complete_service(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a service or ScaledWorkload."""
    names = (name for kind in (SERVING_SERVICE, SCALED_WORKLOAD) for name in _names(context, kind, incomplete))
    return sorted(set(names))


def complete_revision(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a revision, with "=" at the end where a share of traffic follows."""
    return _names(context, REVISION, incomplete, suffix="=")


def complete_kind(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a kind."""
    return [word for word in known_words() if word.startswith(incomplete)]


def complete_object(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an object of the preceding kind."""
    with contextlib.suppress(ServingError):
        return _names(context, kind_named(context.params.get("kind") or "services"), incomplete)
    return []


def _names(context: click.Context, kind: Kind, incomplete: str, *, suffix: str = "") -> list[str]:
    with contextlib.suppress(ServingError, OSError, ValueError, LookupError, SystemExit):
        params = context.params
        place = place_of(*(params.get(name) for name in ("state_path", "kubeconfig", "context")))
        connection = connect(place.kubeconfig, place.context)
        where = path_of(kind, params.get("namespace") or connection.namespace)
        headers = {"Accept": "application/json"}
        response = connection.send(ApiRequest(method="GET", path=where, headers=headers, timeout_s=_TIMEOUT_S))
        with contextlib.closing(response):
            items = json.loads(b"".join(response.pieces()))["items"]
        names = sorted(item["metadata"]["name"] for item in items)
        return [name + suffix for name in names if name.startswith(incomplete)]
    return []
