"""``serving token create|list|revoke`` and ``serving kubeconfig``: users of the API of this machine."""

import base64
import json
import re
import sys
import time
from typing import TYPE_CHECKING

import click

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import ACCESS_TOKEN_LABEL
from serving.home.state import StateFolder
from serving.home.state import kubeconfig as written
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SECRET
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.output import age_text, aligned, print_aside
from serving.tools.cli.client.resources import path_of

if TYPE_CHECKING:
    from serving.core.model.grants import Grant

_LIFE = re.compile(r"([1-9][0-9]{0,4})([dhm])")
_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60}
_LIFE_MAX_S = 3650 * 86_400
_CONFLICT, _NOT_FOUND = 409, 404
_ROLES = ("view", "deploy", "admin")


class _LifeParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A time as 30d, 12h or 90m, in seconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a time."""
        match = _LIFE.fullmatch(str(value))
        life_s = int(match[1]) * _UNITS_S[match[2]] if match else 0
        if not 0 < life_s <= _LIFE_MAX_S:
            self.fail(f"{value!r} is no lifetime; expected 30d, 12h or 90m, at most 3650d", param, ctx)
        return life_s


@click.command()
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="Role of the token's bearer.")
@click.option(
    "--in",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Namespace in which to grant the role, as --namespace; may be repeated.",
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Grant the role in all namespaces.")
@click.option("--for", "life_s", type=_LifeParam(), default="30d", show_default=True, help="Lifetime of the token.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def create(  # noqa: PLR0913 - the options of the command
    *,
    api: ApiClient,
    name: str,
    role: str,
    namespaces: tuple[str, ...],
    everywhere: bool,
    life_s: int,
    output: str,
) -> None:
    """Make a token for the API of this machine, and print it: it is shown this once.

    `view` reads all but Secrets; `deploy` also writes services and what they need, and enters pods of images; `admin` may do all
    in its namespaces, and everything with -A. The namespace is that of --namespace, or of the kubeconfig.
    """
    # The server's side of the API is not needed by other commands.
    from serving.core.model.grants import Grant, Role  # noqa: PLC0415 - as above
    from serving.home.apiserver.accesstokens import new_token  # noqa: PLC0415 - as above

    if everywhere and namespaces:
        fail_usage("-A and --in exclude each other")
    chosen = None if everywhere else frozenset(namespaces or (api.namespace,))
    try:
        grant = Grant(user=name, role=Role(role), namespaces=chosen)
        until_s = time.time() + life_s
        text, secret = new_token(grant, until_s=until_s)
    except InvalidValue as error:
        fail_usage(str(error))
    status, response = api.call("POST", path_of(SECRET, system_namespace()), secret)
    if status == _CONFLICT:
        fail(f"there is a token {name} already; `serving token revoke {name}` ends it")
    if status >= 400:
        fail(str(response.get("message", status)))
    where = "all namespaces" if chosen is None else ", ".join(sorted(chosen))
    print_aside(f"token {name}: {role} in {where} for {age_text(life_s)}; it is not shown again")
    shown = {**_shown(grant, until_s=until_s), "token": text}
    click.echo(json.dumps(shown, indent=2) if output == "json" else text)


def _shown(grant: "Grant", *, until_s: float) -> dict[str, str]:
    """A token as it is listed, without its text."""
    return {
        "name": grant.user,
        "role": str(grant.role),
        "namespaces": "*" if grant.namespaces is None else ",".join(sorted(grant.namespaces)),
        "expires": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s)),
    }


@click.command("list")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@api_options
def list_tokens(*, api: ApiClient, output: str) -> None:
    """List the tokens of users; their texts are not kept."""
    from serving.home.apiserver.accesstokens import read_token  # noqa: PLC0415 - as above

    query = {"labelSelector": ACCESS_TOKEN_LABEL}
    token_secrets = api.must(ApiCall(path=path_of(SECRET, system_namespace()), query=query))["items"]
    now_s, rows = time.time(), []
    for secret in token_secrets:
        try:
            token = read_token(secret)
        except ValueError as error:
            print_aside(str(error))
            continue
        left_s = token.until_s - now_s
        left = age_text(left_s) if left_s > 0 else "expired"
        rows.append({**_shown(token.grant, until_s=token.until_s), "left": left})
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    titles = ("name", "role", "namespaces", "expires", "left")
    for line in aligned([[title.upper() for title in titles], *([row[title] for title in titles] for row in rows)]):
        click.echo(line)


@click.command()
@click.argument("name")
@api_options
def revoke(*, api: ApiClient, name: str) -> None:
    """End a token: its next request is refused, and its open watches and sessions end within 5 seconds."""
    from serving.home.apiserver.accesstokens import secret_name  # noqa: PLC0415 - as above

    status, response = api.call("DELETE", path_of(SECRET, system_namespace(), secret_name(name)))
    if status == _NOT_FOUND:
        fail(f"there is no token {name}; `serving token list` shows them")
    if status >= 400:
        fail(str(response.get("message", status)))
    click.echo(f"token {name} revoked")


@click.command("kubeconfig")
@click.option(
    "--token",
    metavar="TOKEN",
    help="A token of `serving token create`; - reads it from the input. Default: the state folder's own.",
)
@api_options
def kubeconfig(*, api: ApiClient, token: str | None) -> None:
    """Print a kubeconfig for this machine's API, such as for kubectl.

    `serving token create ann --role view | serving kubeconfig --token - > ann.kubeconfig`
    """
    if api.state_path is None:
        fail("this is for the API of this machine: name its --state folder")
    text = sys.stdin.read().strip() if token == "-" else token  # noqa: S105 - the sign for the input
    state = StateFolder(api.state_path)
    try:
        own = json.loads(state.kubeconfig.read_text(encoding="utf-8"))
        cluster = own["clusters"][0]["cluster"]
        text = own["users"][0]["user"]["token"] if text is None else text
    except (OSError, ValueError, LookupError, TypeError) as error:
        fail(f"{state.kubeconfig} cannot be read: {error}")
    if not text:
        fail_usage("the token is empty")
    authority = base64.b64decode(cluster.get("certificate-authority-data", "")).decode()
    click.echo(written(cluster["server"], text, authority=authority, namespace=api.namespace), nl=False)
