"""``serving invoke``: sends one request to a service through the public port, and prints the response."""

import contextlib
import http.client
import json
import re
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.core.model.errors import ServingError
from serving.core.model.objects import Object, condition_of
from serving.net.aio.inputfile import open_input
from serving.tools.cli.client.api import MAY_BE_EMPTY, ApiClient, api_options, fail, fail_usage
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import served_of
from serving.tools.cli.client.output import Progress, output_option, paint, print_aside
from serving.tools.cli.client.reach import INNER, PUBLIC, Reach
from serving.tools.cli.services.token import token_of
from serving.tools.cli.services.url import CLUSTER_LOCAL, ServiceAddress, address_of

_REVISION = "X-Serving-Revision"
_COLD_START = "X-Serving-Cold-Start"
_TIMEOUT_S = 300.0
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PIECE_BYTES = 65536


class ResponseStart(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a response. ``head_after_s`` is the time in seconds since the request was sent."""

    status: int
    reason: str
    revision: str
    is_cold_start: bool
    head_after_s: float
    headers: list[tuple[str, str]]


@click.command()
@click.argument("name", shell_complete=complete_service)
@click.argument("path", required=False)
@click.option(
    "-d",
    "--data",
    type=MAY_BE_EMPTY,
    help="Send a body by POST, '' for an empty one; @FILE reads it from a file, @- from standard input.",
)
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="Add a header to the request.")
@click.option("-X", "--request", "method", metavar="METHOD", help="Request method: GET, POST, ...")
@click.option("--tag", default="", help="Send the request to this traffic tag.")
@click.option("-i", "--include", is_flag=True, help="Print the response headers too.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    default=_TIMEOUT_S,
    show_default=True,
    help="Maximum time without data from the service, in seconds.",
)
@output_option()
@api_options
def invoke(*, api: ApiClient, name: str, path: str | None, include: bool, output: str, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Send one request to a service and print the response as it arrives; status, revision and time go to standard error.

    Exits with 1 if the status is 400 or more.
    """
    body = _body(options["data"])
    service = served_of(api, name)
    address = _reached(api, address_of(api, service, tag=options["tag"]))
    method = options["method"] or ("GET" if body is None else "POST")
    if not _METHOD.fullmatch(method):
        fail_usage(f"--request: {method!r} is not a method such as GET or POST")
    headers = {
        "Host": urllib.parse.urlsplit(address.url).netloc,
        **_access(api, service),
        **_headers(options["headers"]),
    }
    if body is not None and not any(key.lower() == "content-type" for key in headers):
        headers["Content-Type"] = "application/json" if _is_json(body) else "application/x-www-form-urlencoded"
    path = path or address.path
    target = path if path.startswith("/") else f"/{path}"
    request = (method.upper(), target, headers, body)
    with contextlib.ExitStack() as stack:
        with Progress(f"{method} {address.url.removesuffix(address.path)}{target}"):
            begun_s = time.monotonic()
            response, head = stack.enter_context(_sent(address, request, timeout_s=options["timeout_s"]))
        if output == "json":
            content = b"".join(_pieces(response))
            timed = {"done_after_s": time.monotonic() - begun_s, "body": content.decode("utf-8", "replace")}
            click.echo(json.dumps({**msgspec.to_builtins(head), **timed}, indent=2))
        else:
            _print(head, _pieces(response), include=include)
    if head.status >= 400:
        ready = condition_of(service, "Ready")
        if ready.get("status") != "True":
            reason = ready.get("message") or ready.get("reason") or "its controller has not reported on it yet"
            click.echo(f"{name} is not ready: {reason}; `serving describe {name}` shows why", err=True)
        sys.exit(1)


def _reached(api: ApiClient, address: ServiceAddress) -> ServiceAddress:
    """The address to which to connect. On a cluster this is a forwarded port of an activator.

    If the port cannot be forwarded, it is the service's own address.
    """
    if api.state_path is not None:
        return address
    # The names of a cluster have a meaning only inside it.
    component = INNER if address.host.endswith(CLUSTER_LOCAL) else PUBLIC
    try:
        url = urllib.parse.urlsplit(Reach(api).url(component))
    except ServingError as error:
        if address.connect_host == address.host:
            print_aside(f"asking {address.host}:{address.connect_port} itself: {error}")
        return address
    return msgspec.structs.replace(address, connect_host=url.hostname or "", connect_port=url.port or 0)


def _access(api: ApiClient, service: Object) -> dict[str, str]:
    """The header with the token of a private service; empty on a cluster, where the user passes it with -H."""
    token = token_of(api, service) if api.state_path is not None else None
    return {"X-Serving-Authorization": f"Bearer {token}"} if token else {}


def _print(head: ResponseStart, pieces: Iterator[bytes], *, include: bool) -> None:
    click.echo(_summary_line(head), err=True)
    if include:
        for key, value in head.headers:
            click.echo(f"{key}: {value}")
        click.echo()
    sys.stdout.flush()
    last = b""
    for piece in pieces:
        last = piece
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    if last and not last.endswith(b"\n") and sys.stdout.isatty():
        click.echo()


@contextlib.contextmanager
def _sent(
    address: ServiceAddress, request: tuple[str, str, dict[str, str], bytes | None], *, timeout_s: float
) -> Iterator[tuple[http.client.HTTPResponse, ResponseStart]]:
    method, target, headers, body = request
    connection = http.client.HTTPConnection(address.connect_host, address.connect_port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.connect()
            begun_s = time.monotonic()
            connection.request(method, target, body=body, headers=headers)
            response = connection.getresponse()
        except (ValueError, http.client.InvalidURL) as error:
            fail_usage(f"{target!r}: {error}")
        except (OSError, http.client.HTTPException) as error:
            where = f"{address.connect_host}:{address.connect_port}"
            fail(f"{where} does not answer: {_reason(error)}; `serving doctor` looks for the cause")
        yield (
            response,
            ResponseStart(
                status=response.status,
                reason=response.reason,
                revision=response.headers.get(_REVISION, ""),
                is_cold_start=response.headers.get(_COLD_START, "") == "true",
                head_after_s=time.monotonic() - begun_s,
                headers=list(response.headers.items()),
            ),
        )


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    received = 0
    try:
        while piece := response.read1(_PIECE_BYTES):
            received += len(piece)
            yield piece
        # http.client does not report a body shorter than the head promises.
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
    except (OSError, http.client.HTTPException) as error:
        fail(f"the response ended early, after {received} bytes: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, http.client.IncompleteRead) and error.expected:
        return f"{error.expected} bytes are missing"
    return str(error) or type(error).__name__


def _summary_line(head: ResponseStart) -> str:
    """One line: "200 OK from hello-00001 in 134 ms, a cold start"."""
    color = "green" if head.status < 400 else "red"
    who = f" from {head.revision}" if head.revision else ""
    start = ", a cold start" if head.is_cold_start else ""
    status = f"{head.status} {head.reason}".rstrip()
    return f"{paint(status, color)}{who} in {_duration(head.head_after_s)}{start}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1000:.0f} ms"
        if seconds >= 0.01
        else f"{seconds * 1000:.1f} ms"
    )


def _body(data: str | None) -> bytes | None:
    if data is None or not data.startswith("@"):
        return None if data is None else data.encode()
    if data == "@-":
        return sys.stdin.buffer.read()
    with open_input(Path(data[1:])) as file:
        return file.read()


def _is_json(body: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(body), dict | list)
    return False


def _headers(texts: tuple[str, ...]) -> dict[str, str]:
    for text in texts:
        name, colon, _ = text.partition(":")
        if not colon or not name.strip():
            fail_usage(f"--header: {text!r} is not right; expected NAME:VALUE")
    return {name.strip(): value.strip() for name, _, value in (text.partition(":") for text in texts)}
