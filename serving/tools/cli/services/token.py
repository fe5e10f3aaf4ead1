"""``serving token`` and ``serving kubeconfig``: tokens of private services, and users of this machine's API."""

import base64
import datetime as dt
import json
import re
import sys
import time
from typing import TYPE_CHECKING

import click

from serving.core.model.errors import InvalidValue
from serving.core.model.knative import ACCESS_TOKEN_LABEL, ACCESS_TOKEN_VERSION_ANNOTATION
from serving.core.model.objects import Object, annotations_of, name_of, namespace_of
from serving.core.model.routepolicy import route_policy
from serving.home.state import StateFolder
from serving.home.state import kubeconfig as written
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SCALED_WORKLOAD, SECRET, SERVING_SERVICE
from serving.net.wire.tokens import KEY_SECRET, access_token, read_key
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import is_workload, served_of
from serving.tools.cli.client.output import age_text, aligned, output_option, print_aside
from serving.tools.cli.client.resources import path_of

if TYPE_CHECKING:
    from serving.core.model.grants import Grant


def token_of(api: ApiClient, service: Object, *, namespace: str = "") -> str | None:
    """The token of a private service; None for a public service. Exits if the cluster key is unreadable."""
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
    """A command group in which ``token NAME`` means ``token show NAME``, as in earlier versions."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_TokenGroup)
def token() -> None:
    """Print the token of a private service (`token NAME`), or manage tokens for users of this machine's API."""


@token.command()
@click.argument("name", shell_complete=complete_service)
@click.option("--rotate", is_flag=True, help="Create a new token and reject the previous one.")
@click.option(
    "--system-namespace",
    "key_namespace",
    default=system_namespace,
    show_default="knative-serving",
    help="Namespace of the Secret with the cluster key, on a cluster.",
)
@output_option("text", "header", "json")
@api_options
def show(*, api: ApiClient, name: str, rotate: bool, key_namespace: str, output: str) -> None:
    """Print the token of a private service: callers send it as "Authorization: Bearer TOKEN".

    `serving deploy NAME --access private` makes a service private. On a cluster this needs the right to read the Secret
    with the cluster key.
    """
    service = served_of(api, name)
    if not route_policy(annotations_of(service)).is_private:
        fail(
            f"{name} is public and has no token; `serving deploy {name} --access private` or the annotation changes that"
        )
    if rotate:
        version = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        patch = {"metadata": {"annotations": {ACCESS_TOKEN_VERSION_ANNOTATION: version}}}
        kind = SCALED_WORKLOAD if is_workload(service) else SERVING_SERVICE
        service = api.done("PATCH", path_of(kind, api.namespace, name), patch)
        print_aside(f"the previous token is rejected as soon as the activators observe the change of {name}")
    access_token = token_of(api, service, namespace=key_namespace)
    header = f"Authorization: Bearer {access_token}"
    shown = {
        "text": access_token,
        "header": header,
        "json": json.dumps({"token": access_token, "header": header}, indent=2),
    }
    click.echo(shown[output])


_LIFE = re.compile(r"([1-9][0-9]{0,4})([dhm])")
_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60}
_LIFE_MAX_S = 3650 * 86_400
_CONFLICT, _NOT_FOUND = 409, 404
_ROLES = ("view", "deploy", "admin")


class _LifeParam(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A lifetime such as 30d, 12h or 90m, converted to seconds."""

    name = "TIME"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a lifetime; return seconds."""
        match = _LIFE.fullmatch(str(value))
        life_s = int(match[1]) * _UNITS_S[match[2]] if match else 0
        if not 0 < life_s <= _LIFE_MAX_S:
            self.fail(f"{value!r} is not a lifetime; expected 30d, 12h or 90m, at most 3650d", param, ctx)
        return life_s


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="Role to grant.")
@click.option(
    "--in",
    "namespaces",
    multiple=True,
    metavar="NAMESPACE",
    help="Namespace in which to grant the role; repeatable. Overrides --namespace.",
)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Grant the role in all namespaces.")
@click.option("--for", "life_s", type=_LifeParam(), default="30d", show_default=True, help="Lifetime of the token.")
@output_option()
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
    """Create a token for the API of this machine, and print it. It cannot be printed again.

    `view` may read everything except Secrets. `deploy` may also write services and the objects that they use, and run
    commands in pods that run images. `admin` may do everything in its namespaces; with -A, everything. The namespace is
    that of --namespace, else of the kubeconfig.
    """
    # Other commands do not need the server side of the API.
    from serving.core.model.grants import Grant, Role  # noqa: PLC0415 - as above
    from serving.home.apiserver.accesstokens import new_token  # noqa: PLC0415 - as above

    _require_machine(api)
    if everywhere and namespaces:
        fail_usage("-A and --in exclude each other")
    chosen = None if everywhere else frozenset(namespaces or (api.namespace,))
    grant = Grant(user=name, role=Role(role), namespaces=chosen)
    until_s = time.time() + life_s
    text, secret = new_token(grant, until_s=until_s)
    taken = f"there is a token {name} already; `serving token revoke {name}` ends it"
    api.done("POST", path_of(SECRET, system_namespace()), secret, messages={_CONFLICT: taken})
    where = "all namespaces" if chosen is None else ", ".join(sorted(chosen))
    print_aside(f"token {name}: {role} in {where} for {age_text(life_s)}; it is not shown again")
    shown = {**_shown(grant, until_s=until_s), "token": text}
    click.echo(json.dumps(shown, indent=2) if output == "json" else text)


def _require_machine(api: ApiClient) -> None:
    """End the command on a cluster, whose API server does not accept these tokens."""
    if api.is_cluster:
        fail("a cluster has its own users: `kubectl create token` makes a token of a ServiceAccount")


def _shown(grant: "Grant", *, until_s: float) -> dict[str, str]:
    """A token's entry in the list. It does not contain the token's text."""
    return {
        "name": grant.user,
        "role": str(grant.role),
        "namespaces": "*" if grant.namespaces is None else ",".join(sorted(grant.namespaces)),
        "expires": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until_s)),
    }


@token.command("list")
@output_option()
@api_options
def _list(*, api: ApiClient, output: str) -> None:
    """List the tokens of users. Their secret texts are not stored."""
    from serving.home.apiserver.accesstokens import read_token  # noqa: PLC0415 - as above

    _require_machine(api)
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
        remaining = age_text(left_s) if left_s > 0 else "expired"
        rows.append({**_shown(token.grant, until_s=token.until_s), "left": remaining})
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    titles = ("name", "role", "namespaces", "expires", "left")
    for line in aligned([[title.upper() for title in titles], *([row[title] for title in titles] for row in rows)]):
        click.echo(line)


@token.command()
@click.argument("name")
@api_options
def revoke(*, api: ApiClient, name: str) -> None:
    """Revoke a token: its next request is refused, and its open watches and sessions end within 5 seconds."""
    from serving.home.apiserver.accesstokens import secret_name  # noqa: PLC0415 - as above

    _require_machine(api)
    absent = f"there is no token {name}; `serving token list` shows them"
    api.done("DELETE", path_of(SECRET, system_namespace(), secret_name(name)), messages={_NOT_FOUND: absent})
    click.echo(f"token {name} revoked")


@click.command("kubeconfig")
@click.option(
    "--token",
    metavar="TOKEN",
    help="Token from `serving token create`; - reads it from standard input. Default: the token of the state folder.",
)
@api_options
def kubeconfig(*, api: ApiClient, token: str | None) -> None:
    """Print a kubeconfig for the API of this machine, for example for kubectl.

    `serving token create ann --role view | serving kubeconfig --token - > ann.kubeconfig`
    """
    if api.state_path is None:
        fail("a kubeconfig of a cluster is printed by `kubectl config view --minify --raw`; --state selects a machine")
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
