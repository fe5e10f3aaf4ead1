"""HTTP clients with the query token for pages of daemons: decisions, dashboard history and activators' records.

``Reach`` finds the addresses; the user may also pass an address.
"""

import http.client
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import click
import msgspec

from serving.core.model.errors import ServingError
from serving.core.scaling.adaptive.policy_story import PolicyStory
from serving.tools.cli.client.api import ApiClient, fail
from serving.tools.cli.client.reach import AUTOSCALER, Reach

_TIMEOUT_S = 30.0
_TIMEOUT_ELSEWHERE_S = 3.0
_SAME = "is it that of the same system?"

autoscaler_option = click.option(
    "--autoscaler",
    metavar="URL",
    help="Address of the autoscaler, such as http://127.0.0.1:6081. Detected by default.",
)


class Stats:
    """Queries the autoscalers.

    The arguments ``names`` of a query filter its result, as in ``namespace="default"``. A failed query ends the
    command. Raises ``ServingError`` if no autoscaler can be reached.
    """

    def __init__(self, url: str | None, api: ApiClient) -> None:
        self._reach = Reach(api)
        self._is_named = url is not None
        self._url = (url or self._reach.url(AUTOSCALER)).rstrip("/")
        self._headers = {"Authorization": f"Bearer {self._reach.token()}"}

    def decisions(self, **names: str) -> list[bytes]:
        """The stored decisions as JSON, oldest first."""
        with self._get("decisions", names, timeout_s=_TIMEOUT_S) as response:
            return [bytes(decision) for decision in msgspec.json.decode(response.read(), type=list[msgspec.Raw])]

    def policies(self, **names: str) -> list[PolicyStory]:
        """Each revision's policy, with the pods and costs under it and under Knative's policy."""
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
            if error.code == HTTPStatus.UNAUTHORIZED:
                fail(f"the autoscaler at {self._url} refuses the query token; {_SAME}")
            if error.code != HTTPStatus.TEMPORARY_REDIRECT:
                fail(f"the autoscaler at {self._url} answers {error.code} {error.reason}")
            there = urllib.parse.urlsplit(error.headers["Location"])
        except OSError as error:
            fail(f"the autoscaler does not answer at {self._url}: {error}; {self._reach.hint()}")
        return self._opened_elsewhere(there, timeout_s)

    def _opened_elsewhere(self, there: urllib.parse.SplitResult, timeout_s: float | None) -> http.client.HTTPResponse:
        """Query the autoscaler that decides on the revision, at the address ``there`` of a redirect."""
        try:
            if not self._is_named:
                here = urllib.parse.urlsplit(self._reach.url(AUTOSCALER, host=there.hostname or ""))
                return self._opened(there._replace(netloc=here.netloc).geturl(), timeout_s)
            # The pod responds quickly, or cannot be reached from this machine.
            socket.create_connection((there.hostname or "", there.port or 80), _TIMEOUT_ELSEWHERE_S).close()
            return self._opened(there.geturl(), timeout_s)
        except (OSError, ServingError) as error:
            fail(
                f"the autoscaler at {self._url} does not decide about this revision; its owner at {there.netloc} does not "
                f"answer: {error}; without --autoscaler the command forwards a port of the owner's pod"
            )


class _Stays(urllib.request.HTTPRedirectHandler):
    """Treats redirects as errors."""

    def redirect_request(self, *_: object) -> None:
        """Reject a redirect."""


class DashboardPages:
    """Reads JSON pages of the dashboard. ``link`` is a link entered by the user. A failed query ends the command."""

    def __init__(self, api: ApiClient, link: str | None) -> None:
        self._reach = Reach(api)
        self._link = link or self._reach.dashboard_link()

    def read(self, path: str, query: Mapping[str, str] | Sequence[tuple[str, str]] = ()) -> Any:  # noqa: ANN401 - JSON
        """Read one page."""
        page = urllib.parse.urlsplit(self._link)
        try:
            (token,) = urllib.parse.parse_qs(page.query).get("token", [""])
            url = f"{page.scheme}://{page.netloc}{page.path.rstrip('/')}/{path}?{urllib.parse.urlencode(query)}"
            return msgspec.json.decode(read_page(url, token, timeout_s=_TIMEOUT_S))
        except ValueError:
            fail(f"--dashboard: {self._link!r} is not the address of a dashboard, such as http://127.0.0.1:6090")
        except urllib.error.HTTPError as error:
            has_reason = error.code in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}
            reason = error.read().decode(errors="replace").strip() if has_reason else ""
            error.close()
            hint = reason or "give the link that `serving dashboard` prints"
            fail(f"the dashboard at {page.netloc} answers {error.code} {error.reason}; {hint}")
        except OSError as error:
            fail(f"the dashboard does not answer at {page.scheme}://{page.netloc}: {error}; {self._reach.hint()}")


def read_page(url: str, token: str, *, timeout_s: float) -> bytes:
    """Read a page with the query token. Raises ``OSError``, for example ``HTTPError``."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})  # noqa: S310 - the user's URL
    with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - as above
        body: bytes = response.read()
    return body
