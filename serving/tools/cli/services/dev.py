"""``serving dev``: deploys a folder, prints log and requests, redeploys changes, and finally deletes the service."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from serving.home.pods.snapshot import fingerprint
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.tools.cli.client.api import ApiClient, api_options, fail_usage
from serving.tools.cli.client.output import print_aside
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.services.deploy import deploy_once, deploy_options, deployment_of, how_of

_POLL_S = 0.3
_TIMEOUT_S = 300.0


@click.command()
@deploy_options
@api_options
def dev(*, api: ApiClient, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Run a folder while you change it: deploy it, print its log and requests, and delete it at Ctrl-C.

    It takes the arguments and options of `serving deploy`, and deploys again whenever a file of FOLDER changes.
    """
    if api.state_path is None:
        fail_usage(
            "serving dev runs a folder on this machine; on Kubernetes push an image, and `serving deploy NAME --image IMAGE`"
        )
    how = how_of(options, wait=True, wait_s=_TIMEOUT_S, output="text", is_kept=False)
    deployment = deployment_of(api, options, replace=how.replace)
    name, path = deployment.name, path_of(SERVING_SERVICE, api.namespace, deployment.name)
    if api.call("GET", path)[0] < 400:
        fail_usage(
            f"the service {name} exists, and dev deletes its service at the end: choose another name, as in `serving dev {name}-dev .`"
        )
    # Closing the terminal ends the command as Ctrl-C does.
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    printers: list[subprocess.Popen[bytes]] = []

    def deploy_and_print() -> None:
        try:
            deploy_once(api, deployment, how)
        finally:
            if not printers and api.call("GET", path)[0] < 400:
                printers.extend(_printers(api, name))

    try:
        watch_folder(deployment.folder, deploy_and_print)
    except KeyboardInterrupt:
        print_aside(f"deleting the service {name}")
    finally:
        for printer in printers:
            printer.terminate()
        api.call("DELETE", path)


def watch_folder(folder: Path, deploy: Callable[[], None]) -> None:
    """Deploy now and after each change. A failed deploy prints its error; the next change retries."""
    while True:
        seen = fingerprint(folder)
        try:
            deploy()
        except SystemExit as error:
            print_aside(f"deploy failed (exit code {error.code}); waiting for a change")
        else:
            print_aside(f"watching {folder.absolute()}; Ctrl-C deletes the service")
        sys.stdout.flush()
        while (now := fingerprint(folder)) == seen:
            time.sleep(_POLL_S)
        # An editor or a checkout writes many files, which count as one change.
        while (later := fingerprint(folder)) != now:
            now = later
            time.sleep(_POLL_S)


def _printers(api: ApiClient, name: str) -> list[subprocess.Popen[bytes]]:
    """Commands that print the log and the requests of a service until they are terminated."""
    place = [name, "--follow", "--state", str(api.state_path), "--namespace", api.namespace]
    commands = ([sys.executable, "-m", "serving", word, *place] for word in ("logs", "requests"))
    # Only this command receives Ctrl-C.
    return [subprocess.Popen(command, start_new_session=True) for command in commands]  # noqa: S603 - our own
