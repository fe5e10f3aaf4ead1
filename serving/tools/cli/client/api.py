"""The CLI's client of a Kubernetes API: the API of a running ``serving up``, or of a cluster.

``--kubeconfig`` selects the API, else ``--state``, else KUBECONFIG, else the default state folder. Calls are
sequential. An error that the API returns ends the command with the error's message.
"""

import contextlib
import copy
import functools
import json
import os
import re
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from serving.core.model.errors import ServingError, Unavailable
from serving.core.model.launch import USAGE_EXIT
from serving.core.model.objects import Object, is_dns_label
from serving.home.state import default_state_path
from serving.net.cluster.kinds import SCALED_WORKLOAD, SERVING_SERVICE
from serving.tools.cli.client.connection import (
    ApiRequest,
    ApiResponse,
    LocalConnection,
    WebsocketPlace,
    chosen_kubeconfig,
    connect,
)
from serving.tools.cli.client.output import Progress, print_aside

_EXIT_FAILED = 1
_TIMEOUT_S = 30.0
_MERGE = "application/merge-patch+json"
# Another client may write between the read and the write.
_TRIES_MAX = 10
_CONFLICT, _NOT_FOUND = 409, 404
_API_PATH = re.compile(r"/apis/(?P<version>(?P<group>[^/?]+)/[^/?]+)")
_INSTALLED_GROUPS = {SERVING_SERVICE.group, SCALED_WORKLOAD.group}
_PLACE_NAMES = ("state_path", "kubeconfig", "context")

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
"""Adds options to a command."""


def adding(*options: Decorator) -> Decorator:
    """Return a decorator that adds the given options to a command. The help lists them in the given order."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


MAY_BE_EMPTY = click.types.StringParamType()
"""The type of an option that accepts an empty value. An empty value of any other option is refused."""

state_option = click.option(
    "--state",
    "state_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="State folder of the `serving up` to connect to.",
)
_place = adding(
    state_option,
    click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Path to the kubeconfig file. Default without --state: $KUBECONFIG.",
    ),
    click.option("--context", help="Name of the kubeconfig context to use.", metavar="NAME"),
)


def fail(message: str) -> NoReturn:
    """Print the error and exit with 1."""
    print_aside(message)
    sys.exit(_EXIT_FAILED)


def fail_usage(message: str) -> NoReturn:
    """Print the usage error and exit with 2."""
    print_aside(message)
    sys.exit(USAGE_EXIT)


class ApiCall(msgspec.Struct, frozen=True, kw_only=True):
    """One API call.

    Empty ``query`` values are omitted; a sequence is sent as repeated parameters. ``media`` is the body's content type.
    """

    method: str = "GET"
    path: str
    query: Mapping[str, str | Sequence[str]] = {}
    body: object = None
    media: str = ""
    accept: str = "application/json"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The system that a command uses: the state folder of a ``serving up``, or a cluster (``state_path`` None)."""

    state_path: Path | None
    kubeconfig: str
    context: str | None = None

    def api(self, namespace: str | None = None) -> "ApiClient":
        """The client of this system's API. Ends the command if the system has no API."""
        return ApiClient(self, namespace=namespace)


def place_of(state_path: Path | None = None, kubeconfig: Path | None = None, context: str | None = None) -> Place:
    """Select the system for a command.

    The first of these that is set selects it: ``kubeconfig``, ``state_path``, $KUBECONFIG, the default state folder.
    An unreadable kubeconfig ends the command.
    """
    named = str(kubeconfig or "")
    if not named and state_path is None and os.environ.get("KUBECONFIG"):
        named, context = chosen_kubeconfig(os.environ["KUBECONFIG"], context)
    if not named:
        state = state_path or default_state_path()
        return Place(state_path=state, kubeconfig=str(state / "kubeconfig"), context=context)
    folder = Path(named).parent
    state_path = folder if os.pathsep not in named and (folder / "ports.json").exists() else None
    return Place(state_path=state_path, kubeconfig=named, context=context)


class ApiClient:
    """The client of one API. The first call connects.

    ``place`` is the system, or the state folder of a ``serving up``.
    """

    def __init__(
        self,
        place: Place | Path | None = None,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
    ) -> None:
        if not isinstance(place, Place):
            place = place_of(place, kubeconfig, context)
        self.place = place
        # Set for the API of `serving up`, None for another API.
        self.state_path = place.state_path
        if self.state_path is not None and not Path(place.kubeconfig).exists():
            fail(
                f"{place.kubeconfig}: no such file; start the system with `serving up`, or name a cluster's kubeconfig by"
                " --kubeconfig or $KUBECONFIG"
            )
        self._connection = connect(place.kubeconfig, place.context)
        self.namespace = namespace or self._connection.namespace
        self.server = self._connection.server
        # False for `serving up` of another machine, too, whose state folder is not here.
        self.is_cluster = not isinstance(self._connection, LocalConnection)

    def within(self, namespace: str) -> "ApiClient":
        """The same API with another default namespace."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a call; return the status and the decoded response."""
        return self.send(ApiCall(method=method, path=path, body=body))

    def done(self, method: str, path: str, body: object = None, *, messages: Mapping[int, str] | None = None) -> Any:  # noqa: ANN401 - JSON of the API
        """Send a call and return the response. If the call fails, the command ends with the API's message.

        ``messages`` replaces the API's message for some statuses.
        """
        return self.must(ApiCall(method=method, path=path, body=body), messages)

    def must(self, call: ApiCall, messages: Mapping[int, str] | None = None) -> Any:  # noqa: ANN401 - as above
        """Send a prepared call and return the response. If the call fails, the command ends with the API's message.

        ``messages`` replaces the API's message for some statuses.
        """
        status, response = self.send(call)
        if status >= 400:
            fail((messages or {}).get(status) or message_of(response))
        return response

    def read(self, call: ApiCall) -> Any:  # noqa: ANN401 - as above
        """Send a call; return the response.

        Raises ``ServingError`` with the API's message if the API rejects the call.
        """
        status, response = self.send(call)
        if status >= 400:
            raise ServingError(message_of(response))
        return response

    def peek(self, path: str, **query: str) -> Object:
        """The response to a GET; {} if the API refuses it, for example because the object does not exist."""
        status, response = self.send(ApiCall(path=path, query=query))
        return response if status < 400 else {}

    def send(self, call: ApiCall) -> tuple[int, Any]:
        """Send a prepared call; return status and decoded response.

        Prints warnings; exits if the server does not respond.
        """
        with Progress("waiting for the API"):
            try:
                response = self._send(call, timeout_s=_TIMEOUT_S)
                with contextlib.closing(response):
                    text = b"".join(response.pieces())
            except Unavailable as error:
                fail(self.absence(error))
        for warning in response.values("Warning"):
            print_aside(f"warning: {_warning_text(warning)}")
        try:
            return response.status, json.loads(text)
        except ValueError:
            message = text.decode("utf-8", "replace").strip() or f"status {response.status}"
            # A Kubernetes server responds to the path of an unknown kind with a text, and of an unknown object in JSON.
            return response.status, {
                "message": _absence_of_api(call.path) if response.status == _NOT_FOUND else message
            }

    @contextlib.contextmanager
    def stream(self, call: ApiCall) -> Iterator[ApiResponse]:
        """Open a streaming response. Raises ``Unavailable``, or ``ServingError`` with the API's message."""
        with contextlib.closing(self._send(call, timeout_s=None)) as response:
            if response.status >= 400:
                text = b"".join(response.pieces())
                with contextlib.suppress(ValueError):
                    raise ServingError(message_of(json.loads(text)))
                raise ServingError(text.decode("utf-8", "replace").strip())
            yield response

    def websocket(self, call: ApiCall) -> WebsocketPlace:
        """The URL and headers of a websocket for a call's path."""
        return self._connection.websocket(f"{call.path}?{_query_of(call)}")

    def absence(self, error: Unavailable) -> str:
        """The error message for a server that does not respond."""
        text = f"the API at {self._connection.server} does not answer: {error}"
        if self.state_path is None:
            return f"{text}; {self.place.kubeconfig} names it"
        return f"{text}; is `serving up` running? Its state folder is {self.state_path}"

    def _send(self, call: ApiCall, *, timeout_s: float | None) -> ApiResponse:
        query = _query_of(call)
        headers = {"Accept": call.accept}
        if call.body is not None:
            headers["Content-Type"] = call.media or (_MERGE if call.method == "PATCH" else "application/json")
        return self._connection.send(
            ApiRequest(
                method=call.method,
                path=f"{call.path}?{query}" if query else call.path,
                headers=headers,
                body=None if call.body is None else json.dumps(call.body).encode(),
                timeout_s=timeout_s,
            )
        )


def _absence_of_api(path: str) -> str:
    """The error message for a path that the server does not have."""
    match = _API_PATH.match(path)
    if match is None:
        return f"this server has no {path}"
    advice = "; `serving install` installs the system" if match["group"] in _INSTALLED_GROUPS else ""
    return f"this server has no {match['version']}{advice}"


def _query_of(call: ApiCall) -> str:
    return urllib.parse.urlencode({key: value for key, value in call.query.items() if value}, doseq=True)


def api_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select the API; the command receives it as ``api``."""

    @functools.wraps(command)
    def connected(*, api: Callable[[], ApiClient], **options: Any) -> None:  # noqa: ANN401 - the options of the command, as click hands them over
        command(api=api(), **options)

    return late_api_options(connected)


def late_api_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of ``api_options``, but connect late: the command receives a function ``api`` that connects.

    A command that does not call ``api`` works without a server.
    """

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:  # noqa: ANN401 - as above
        namespace = options.pop("namespace")
        if namespace and not is_dns_label(namespace):
            form = "at most 63 of a-z, 0-9 and '-', with a letter or digit at each end"
            fail_usage(f"--namespace: {namespace!r} is not a namespace's name: {form}")
        names = {name: options.pop(name) for name in _PLACE_NAMES}
        command(api=lambda: place_of(**names).api(namespace), **options)

    named = click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="Namespace of the command. Default: that of the kubeconfig, else `default`.",
    )
    return named(_place(wrapped))


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select a system, running or not; the command receives it as ``place``."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:  # noqa: ANN401 - as above
        command(place=place_of(**{name: options.pop(name) for name in _PLACE_NAMES}), **options)

    return _place(wrapped)


def until_written(write: Callable[[], tuple[int, Any]]) -> tuple[int, Any]:
    """Call ``write``, again after a conflict; return the status and the response. Exits if the write fails."""
    status, response = write()
    for _ in range(_TRIES_MAX - 1):
        if status != _CONFLICT:
            break
        status, response = write()
    if status >= 400:
        fail(message_of(response))
    return status, response


def message_of(response: object) -> str:
    """The message in an error response."""
    return str(response.get("message", response)) if isinstance(response, dict) else str(response)


def _warning_text(header: str) -> str:
    """The text in a ``Warning`` header such as 299 - "text"."""
    quoted = header.split(" ", 2)[-1].strip()
    return re.sub(r"\\(.)", r"\1", quoted.removeprefix('"').removesuffix('"'))
