"""Client of the autoscaler's stats port: decisions as lists and events, and policies, by HTTP.

On one machine the state folder has the port and the query token; for a cluster, give the address of a port-forward
(``--autoscaler``), and the token is read from its Secret.
"""

import base64
import http.client
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from serving.core.scaling.adaptive.policy_story import PolicyStory
from serving.home.state import StateFolder, default_state_path
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import SECRET
from serving.net.metrics.queries import QUERY_TOKEN_SECRET, QueryGate
from serving.tools.cli.client.api import ApiClient, fail, message_of
from serving.tools.cli.client.resources import path_of

_TIMEOUT_S = 30.0
_TIMEOUT_ELSEWHERE_S = 3.0
# In the names of ports.
_PAGE = "-metrics"
_SAME = "is it that of the same system?"

autoscaler_option = click.option(
    "--autoscaler",
    metavar="URL",
    help="The autoscaler's address, as http://127.0.0.1:6081; by default from the state folder.",
)


class Stats:
    """Queries one autoscaler. A failed query ends the command."""

    def __init__(self, url: str | None, api: ApiClient) -> None:
        self._url = (url or url_of("stats", api.state_path)).rstrip("/")
        token = state_token(api.state_path) if api.state_path is not None else cluster_token(api)
        self._headers = {"Authorization": f"Bearer {token}"}

    def decisions(self, **names: str) -> list[bytes]:
        """The remembered decisions, oldest first, each as JSON."""
        with self._get("decisions", names, timeout_s=_TIMEOUT_S) as response:
            return [bytes(decision) for decision in msgspec.json.decode(response.read(), type=list[msgspec.Raw])]

    def policies(self, **names: str) -> list[PolicyStory]:
        """The costs of both policies, for each revision with a policy."""
        with self._get("policies", names, timeout_s=_TIMEOUT_S) as response:
            return msgspec.json.decode(response.read(), type=list[PolicyStory])

    def events(self, **names: str) -> Iterator[tuple[str, bytes]]:
        """Kind and body of each event, until the autoscaler ends."""
        with self._get("decisions", {"follow": "", **names}, timeout_s=None) as response:
            event = ""
            for line in response:
                name, _, value = line.rstrip(b"\n").partition(b": ")
                if name == b"event":
                    event = value.decode()
                elif name == b"data":
                    yield event, value

    def _opened(self, url: str, timeout_s: float | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers=self._headers)  # noqa: S310 - the URL that the user gave
        response: http.client.HTTPResponse = urllib.request.build_opener(_Stays).open(request, timeout=timeout_s)
        return response

    def _get(self, path: str, names: Mapping[str, str], *, timeout_s: float | None) -> http.client.HTTPResponse:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(names)}"
        try:
            return self._opened(url, timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.UNAUTHORIZED:
                fail(f"the autoscaler at {self._url} refuses the query token; {_SAME}")
            if error.code != http.HTTPStatus.TEMPORARY_REDIRECT:
                fail(f"the autoscaler at {self._url} answers {error.code} {error.reason}")
            there = error.headers["Location"]
            address = urllib.parse.urlsplit(there)
        except OSError as error:
            fail(f"the autoscaler does not answer at {self._url}: {error}; is `serving up` running?")
        # Another autoscaler decides; its pod's address answers soon, or cannot be reached from here.
        try:
            socket.create_connection((address.hostname or "", address.port or 80), _TIMEOUT_ELSEWHERE_S).close()
            return self._opened(there, timeout_s)
        except OSError as error:
            fail(
                f"the autoscaler at {self._url} does not decide on it, the one at {address.netloc} does, and that does not answer "
                f"here: {error}; forward a port of the pod with that address (kubectl get pods -n knative-serving -o wide)"
            )


class _Stays(urllib.request.HTTPRedirectHandler):
    """Treats redirects as errors."""

    def redirect_request(self, *_: object) -> None:
        """Reject a redirect."""


def state_token(state_path: Path | None) -> str:
    """The query token of a state folder; "" if there is none that can be read."""
    return QueryGate(StateFolder(state_path or default_state_path()).query_token).token()


def cluster_token(api: ApiClient) -> str:
    """The query token of a cluster, from its Secret; "" if that is not there, as in an older installation.

    Ends the command where the cluster refuses to show it.
    """
    status, response = api.call("GET", f"{path_of(SECRET, system_namespace())}/{QUERY_TOKEN_SECRET}")
    if status == http.HTTPStatus.NOT_FOUND:
        return ""
    if status >= http.HTTPStatus.BAD_REQUEST:
        fail(
            f"the query token in the Secret {system_namespace()}/{QUERY_TOKEN_SECRET} cannot be read: {message_of(response)}"
        )
    return base64.b64decode(response["data"]["token"]).decode()


def activator_pages(state_path: Path) -> dict[str, str]:
    """The addresses of the activators' pages of a running ``serving up``, by activator; none if it does not run."""
    try:
        ports = StateFolder(state_path).read_ports()
    except (OSError, ValueError):
        return {}
    names = (name for name in ports if name.startswith("activator") and name.endswith(_PAGE))
    return {name.removesuffix(_PAGE): f"http://127.0.0.1:{ports[name]}" for name in names}


def read_page(url: str, token: str, *, timeout_s: float) -> bytes:
    """Read a page by its query token. Raises ``OSError``, such as ``HTTPError``."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - the user's URL
    with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - as above
        body: bytes = response.read()
    return body


def url_of(port: str, state_path: Path | None) -> str:
    """Address of a daemon of a running ``serving up``, by the name of its port. Ends the command if there is none."""
    state = StateFolder(state_path or default_state_path())
    try:
        return f"http://127.0.0.1:{state.read_ports()[port]}"
    except (OSError, ValueError, KeyError):
        fail(
            f"{state.ports} names no port {port}; start the system with `serving up`, or give its address (see --help)"
        )


def dashboard_link(state_path: Path | None) -> str:
    """The link that opens the dashboard of a running ``serving up``, with the query token. Ends the command if there is none."""
    return f"{url_of('dashboard', state_path)}/?token={state_token(state_path)}"


def dashboard_page(url: str, path: str, query: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> Mapping[str, Any]:
    """Read JSON from a dashboard by its link with the token. Ends the command if that fails."""
    page = urllib.parse.urlsplit(url)
    try:
        (token,) = urllib.parse.parse_qs(page.query).get("token", [""])
        request_url = f"{page.scheme}://{page.netloc}{page.path.rstrip('/')}/{path}?{urllib.parse.urlencode(query)}"
        contents: Mapping[str, Any] = msgspec.json.decode(read_page(request_url, token, timeout_s=_TIMEOUT_S))
    except ValueError:
        fail(f"--dashboard: {url!r} is not the address of a dashboard, such as http://127.0.0.1:6090")
    except urllib.error.HTTPError as error:
        reason = error.read().decode(errors="replace").strip() if error.code == http.HTTPStatus.BAD_REQUEST else ""
        error.close()
        hint = reason or "give the link that `serving dashboard` prints"
        fail(f"the dashboard at {page.netloc} answers {error.code} {error.reason}; {hint}")
    except OSError as error:
        fail(f"the dashboard does not answer at {url}: {error}; is `serving up` running?")
    return contents
