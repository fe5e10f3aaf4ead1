"""``serving exec``: runs a command in a pod of a service, beside the app, by the protocol of ``kubectl exec``.

The first byte of each message is its channel; see ``serving.home.apiserver.channels``.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import ssl
import sys
import termios
import threading
import tty
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from typing import Any, BinaryIO, Self, TypeVar

import click
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from serving.core.model.objects import Object, is_true, name_of, namespace_of, nested
from serving.home.apiserver.channels import CLOSE, PROTOCOLS, RESIZE, STATUS, STDERR, STDIN, STDOUT
from serving.net.cluster.kinds import POD
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import app_container, service_of
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.websocket import UNOPENED, WebsocketPlace, refusal
from serving.tools.cli.services.logs import pods_of, short_name

_PIECE_BYTES = 65536

_T = TypeVar("_T")


class Channels:
    """A thread-safe websocket. Sending and receiving do not block each other.

    It runs an event loop in a thread of its own. The library's blocking client holds one lock for both directions: a
    command that writes while its output is read would deadlock.
    """

    def __init__(self, opening: Awaitable[ClientConnection]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="channels", daemon=True)
        self._thread.start()

        async def opened() -> ClientConnection:
            return await opening

        try:
            self._connection = self._run(opened())
        except BaseException:
            self._end()
            raise
        self.subprotocol = self._connection.subprotocol

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._connection.close())
        self._end()

    def recv(self) -> bytes:
        """Receive the next message. Raises ``EOFError`` when the connection has ended."""
        try:
            return self._run(self._connection.recv(decode=False))
        except ConnectionClosed as error:
            raise EOFError from error

    def send(self, message: bytes) -> None:
        """Send a message. Raises ``EOFError`` when the connection has ended."""
        try:
            self._run(self._connection.send(message))
        except (ConnectionClosed, RuntimeError) as error:
            raise EOFError from error

    def _run(self, what: Coroutine[Any, Any, _T]) -> _T:
        try:
            return asyncio.run_coroutine_threadsafe(what, self._loop).result()
        except RuntimeError:
            # The loop has ended; Python warns about a coroutine that is dropped.
            what.close()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def open_channels(url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> Channels:
    """Open a websocket. Raises ``Unavailable``, and ``ServingError`` with the API's reason if it refuses."""
    try:
        return Channels(WebsocketPlace(url, headers, tls).open(PROTOCOLS))
    except UNOPENED as error:
        raise refusal(error) from error


@click.command("exec")
@click.argument("name", shell_complete=complete_service)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("-i", "--stdin", "has_stdin", is_flag=True, help="Pass standard input to the command.")
@click.option("-t", "--tty", "has_terminal", is_flag=True, help="Allocate a terminal for the command.")
@click.option(
    "--pod", "wanted", default="", help="Pod in which to run, or the end of its name; the first ready one by default."
)
@click.option("-c", "--container", default="", help="Container in which to run; the app's by default.")
@api_options
def execute(
    *,
    api: ApiClient,
    name: str,
    command: tuple[str, ...],
    wanted: str,
    container: str,
    **options: Any,  # noqa: ANN401 - the options of the command
) -> None:
    """Run a command in a pod of a service. Exits with the command's own code.

    \b
    serving exec hello -- env
    serving exec -it hello -- sh
    """  # noqa: D301 - click's mark for lines that stay as they are
    service_of(api, name)
    pods = [pod for pod in pods_of(api, [name], wanted) if not nested(pod, "metadata", "deletionTimestamp")]
    if not pods:
        fail(
            f"no pod of {name} ends with {wanted}"
            if wanted
            else f"{name} has no pod now: it is at zero; `serving invoke {name}` starts one"
        )
    pod = next((pod for pod in pods if is_true(pod, "Ready")), pods[0])
    if len(pods) > 1:
        click.echo(f"in pod {short_name(name_of(pod), name)}", err=True)
    has_terminal = options["has_terminal"] and sys.stdin.isatty()
    if options["has_terminal"] and not has_terminal:
        click.echo("standard input is not a terminal: the command gets none", err=True)
    query = {
        "command": command,
        "container": container or app_container(pod),
        "stdin": "true" if options["has_stdin"] else "",
        "stdout": "true",
        # A terminal has one output.
        "stderr": "" if has_terminal else "true",
        "tty": "true" if has_terminal else "",
    }
    path = path_of(POD, namespace_of(pod), name_of(pod), subresource="exec")
    with api.open_channels(ApiCall(path=path, query=query), open_channels) as channels:
        if options["has_stdin"]:
            threading.Thread(target=_send_input, args=(channels,), daemon=True).start()
        with _raw_terminal(channels) if has_terminal else contextlib.nullcontext():
            status = _print_output(channels)
    sys.exit(_exit_code(status))


def _print_output(channels: Channels) -> Object:
    """Print output until the final status; {} if the connection ends without one."""
    outputs: dict[int, BinaryIO] = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    with contextlib.suppress(EOFError):
        while True:
            message = channels.recv()
            channel, data = message[0], message[1:]
            if channel == STATUS:
                status: Object = json.loads(data)
                return status
            if channel in outputs:
                outputs[channel].write(data)
                outputs[channel].flush()
    return {}


def _exit_code(status: Object) -> int:
    if status.get("status") == "Success":
        return 0
    causes = nested(status, "details", "causes") or ()
    code = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), "")
    if not code.isdecimal():
        fail(str(status.get("message") or "the connection to the pod broke off"))
    return int(code)


def _send_input(channels: Channels) -> None:
    with contextlib.suppress(EOFError, OSError, ValueError):
        while piece := os.read(sys.stdin.fileno(), _PIECE_BYTES):
            channels.send(bytes([STDIN]) + piece)
        if channels.subprotocol == PROTOCOLS[0]:
            # The older protocol has no end of input.
            channels.send(bytes([CLOSE, STDIN]))


@contextlib.contextmanager
def _raw_terminal(channels: Channels) -> Iterator[None]:
    changed = threading.Event()
    changed.set()

    def follow_size() -> None:
        with contextlib.suppress(EOFError):
            while changed.wait():
                changed.clear()
                size = shutil.get_terminal_size()
                text = json.dumps({"Width": size.columns, "Height": size.lines})
                channels.send(bytes([RESIZE]) + text.encode())

    before = termios.tcgetattr(sys.stdin)
    # The handler only sets a flag: the main thread may be within the connection.
    handler = signal.signal(signal.SIGWINCH, lambda *_: changed.set())
    threading.Thread(target=follow_size, daemon=True).start()
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
