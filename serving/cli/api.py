"""How the CLI speaks to the API of a running ``serving up``: few calls, one at a time, so the standard library is enough."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

import click

from serving.local.state import default_state_path

__all__ = ["Api", "fail", "state_option"]

_EXIT_FAILED = 1
_TIMEOUT_S = 30.0

state_option = click.option(
    "--state",
    "state_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="State folder of the `serving up` to speak to.",
)


def fail(message: str) -> NoReturn:
    """Say what went wrong, and end with 1."""
    click.echo(message, err=True)
    sys.exit(_EXIT_FAILED)


class Api:
    """Calls with the kubeconfig of a state folder. What the API refuses ends the command with its message."""

    def __init__(self, state_path: Path | None) -> None:
        path = (state_path or default_state_path()) / "kubeconfig"
        try:
            config = json.loads(path.read_text())
        except FileNotFoundError:
            fail(f"{path}: there is none; start the system with `serving up`")
        self._server: str = config["clusters"][0]["cluster"]["server"]
        self._token: str = config["users"][0]["user"]["token"]

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and decoded answer of one call."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data=data, headers=headers, method=method)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
                for warning in answer.headers.get_all("Warning", ()):
                    click.echo(f"warning: {warning.split(' ', 2)[-1].strip(chr(34))}", err=True)
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except OSError as error:
            fail(f"the API does not answer: {error}; is `serving up` running?")

    def done(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON of the API
        """The answer of a call that must succeed."""
        status, answer = self.call(method, path, body)
        if status >= 400:
            fail(str(answer.get("message", answer)))
        return answer
