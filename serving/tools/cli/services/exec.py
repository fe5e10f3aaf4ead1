"""``serving exec``: runs a command in a pod of a service, beside the app, by the protocol of ``kubectl exec``.

The first byte of each message is its channel; see ``serving.home.apiserver.channels``.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import click
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from serving.core.model.errors import Unavailable
from serving.core.model.knative import REVISION_LABEL
from serving.core.model.objects import Object, is_true, labels_of, name_of, namespace_of, nested
from serving.home.apiserver.channels import CLOSE, PROTOCOLS, RESIZE, STATUS, STDERR, STDIN, STDOUT
from serving.net.aio.supervise import SupervisedTasks, supervise
from serving.net.cluster.kinds import POD
from serving.tools.cli.client.api import ApiCall, ApiClient, api_options, fail
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.connection import WebsocketPlace
from serving.tools.cli.client.forwarding import open_websocket
from serving.tools.cli.client.objects import app_container, missing_pods_reason, pod_selectors, served_of
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.logs import absence_of_pod, pods_of, short_name

_PIECE_BYTES = 65536


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
    served = served_of(api, name)
    selectors = pod_selectors(api, [served])
    pods = [pod for pod in pods_of(api, selectors, wanted) if not nested(pod, "metadata", "deletionTimestamp")]
    if not pods:
        fail(
            absence_of_pod(api, selectors, who=name, wanted=wanted)
            if wanted
            else f"{name} has no pod now: {missing_pods_reason(served)}; `serving invoke {name}` starts one"
        )
    pod = chosen_pod(pods, revision=str(nested(served, "status", "latestReadyRevisionName") or ""))
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
        # A terminal has a single output stream.
        "stderr": "" if has_terminal else "true",
        "tty": "true" if has_terminal else "",
    }
    path = path_of(POD, namespace_of(pod), name_of(pod), subresource="exec")
    place = api.websocket(ApiCall(path=path, query=query))
    try:
        status = asyncio.run(_run(place, has_stdin=options["has_stdin"], has_terminal=has_terminal))
    except Unavailable as error:
        fail(api.absence(error))
    sys.exit(_exit_code(status))


def chosen_pod(pods: Sequence[Object], *, revision: str) -> Object:
    """A ready pod, if there is one, and of ``revision`` rather than of another revision."""
    return max(pods, key=lambda pod: (is_true(pod, "Ready"), labels_of(pod).get(REVISION_LABEL) == revision))


async def _run(place: WebsocketPlace, *, has_stdin: bool, has_terminal: bool) -> Object:
    """Run the command, print its output, and return its final status; {} if the connection ends without a status."""
    async with await open_websocket(place, PROTOCOLS) as connection, supervise() as tasks:
        if has_stdin:
            # No loop can wait for every kind of input, and the command may end before its input does.
            loop = asyncio.get_running_loop()
            threading.Thread(target=_send_input, args=(connection, loop), daemon=True).start()
        with _raw_terminal(connection, tasks) if has_terminal else contextlib.nullcontext():
            return await _print_output(connection)


async def _print_output(connection: ClientConnection) -> Object:
    outputs: dict[int, BinaryIO] = {STDOUT: sys.stdout.buffer, STDERR: sys.stderr.buffer}
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = await connection.recv(decode=False)
            channel, data = message[0], message[1:]
            if channel == STATUS:
                status: Object = json.loads(data)
                return status
            if channel in outputs:
                # A reader that waits for input to be sent first must not hold up the sending.
                await asyncio.to_thread(_write, outputs[channel], data)
    return {}


def _write(output: BinaryIO, data: bytes) -> None:
    output.write(data)
    output.flush()


def _exit_code(status: Object) -> int:
    if status.get("status") == "Success":
        return 0
    causes = nested(status, "details", "causes") or ()
    code = next((cause["message"] for cause in causes if cause.get("reason") == "ExitCode"), "")
    if not code.isdecimal():
        fail(str(status.get("message") or "the connection to the pod was lost"))
    return int(code)


def _send_input(connection: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
    def send(message: bytes) -> None:
        sending = connection.send(message)
        try:
            asyncio.run_coroutine_threadsafe(sending, loop).result()
        except RuntimeError:
            # The loop has ended; Python warns about a coroutine that never runs.
            sending.close()
            raise

    with contextlib.suppress(ConnectionClosed, OSError, RuntimeError, ValueError):
        while piece := os.read(sys.stdin.fileno(), _PIECE_BYTES):
            send(bytes([STDIN]) + piece)
        if connection.subprotocol == PROTOCOLS[0]:
            # The older protocol cannot signal the end of input.
            send(bytes([CLOSE, STDIN]))


@contextlib.contextmanager
def _raw_terminal(connection: ClientConnection, tasks: SupervisedTasks) -> Iterator[None]:
    async def send_size() -> None:
        size = shutil.get_terminal_size()
        text = json.dumps({"Width": size.columns, "Height": size.lines})
        with contextlib.suppress(ConnectionClosed):
            await connection.send(bytes([RESIZE]) + text.encode())

    def resized() -> None:
        tasks.start_background(send_size(), name="terminal size")

    before = termios.tcgetattr(sys.stdin)
    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, resized)
    resized()
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
