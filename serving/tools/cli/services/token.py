"""``serving token``: tokens of private services, and of users of the API."""

import base64
import datetime as dt
import json

import click

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import ACCESS_TOKEN_VERSION_ANNOTATION
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of
from serving.core.model.routepolicy import route_policy
from serving.home.state import StateFolder
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SECRET, SERVING_SERVICE
from serving.net.wire.tokens import KEY_SECRET, access_token, read_key
from serving.tools.cli.client.api import ApiClient, api_options, fail
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import service_of
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.access import create, list_tokens, revoke


def token_of(api: ApiClient, service: Object, *, namespace: str = "") -> str | None:
    """The token of a service; None if it is public. Exits if the key cannot be read."""
    policy = route_policy(annotations_of(service))
    if not policy.is_private:
        return None
    key = _key(api, namespace)
    return access_token(key, namespace=namespace_of(service), route=name_of(service), version=policy.token_version)


def _key(api: ApiClient, namespace: str) -> bytes:
    """The cluster key: from the state folder of this machine, or from the Secret of a cluster."""
    if api.state_path is not None:
        path = StateFolder(api.state_path).key
        try:
            return read_key(path)
        except (OSError, InvalidValue) as error:
            fail(f"the key in {path} cannot be read: {error}")
    secret = api.done("GET", f"{path_of(SECRET, namespace or system_namespace())}/{KEY_SECRET}")
    return base64.b64decode(secret["data"]["key"])


class _TokenGroup(click.Group):
    """``token NAME`` is ``token show NAME``, as before there were users."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_TokenGroup)
def token() -> None:
    """Print the token of a private service (`token NAME`), or manage tokens for users of this machine's API."""


for _command in (create, list_tokens, revoke):
    token.add_command(_command)


@token.command()
@click.argument("name", shell_complete=complete_service)
@click.option("--rotate", is_flag=True, help="Create a new token and reject the previous one.")
@click.option(
    "--system-namespace",
    "key_namespace",
    default=system_namespace,
    show_default="knative-serving",
    help="Where a cluster has our key.",
)
@click.option("-o", "--output", type=click.Choice(["text", "header", "json"]), default="text", show_default=True)
@api_options
def show(*, api: ApiClient, name: str, rotate: bool, key_namespace: str, output: str) -> None:
    """Print the token of a private service: callers send it as "Authorization: Bearer TOKEN".

    `serving deploy NAME --access private` makes a service private. On a cluster this needs the right to read the Secret
    with the cluster key.
    """
    service = service_of(api, name)
    if not route_policy(annotations_of(service)).is_private:
        fail(
            f"{name} is public and has no token; `serving deploy {name} --access private` or the annotation changes that"
        )
    if rotate:
        version = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        patch = {"metadata": {"annotations": {ACCESS_TOKEN_VERSION_ANNOTATION: version}}}
        service = api.done("PATCH", f"{path_of(SERVING_SERVICE, api.namespace)}/{name}", patch)
        print_aside(f"the token before is refused as soon as the activators see the change of {name}")
    access_token = token_of(api, service, namespace=key_namespace)
    header = f"Authorization: Bearer {access_token}"
    shown = {
        "text": access_token,
        "header": header,
        "json": json.dumps({"token": access_token, "header": header}, indent=2),
    }
    click.echo(shown[output])
