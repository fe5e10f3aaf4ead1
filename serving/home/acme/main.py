"""The daemon ``acme`` of ``serving up --acme`` issues certificates of public hosts.

Environment, from the supervisor: ``SERVING_STATE`` (the state folder), ``KUBECONFIG``, ``SERVING_ACME_DIRECTORY``, and
``SERVING_ACME_CHALLENGES``, the folder of challenges that activators answer.
"""

if __name__ == "__main__":
    # Before the slow imports below; see ``serving.net.aio.startup``.
    from serving.net.aio.startup import exit_on_signals

    exit_on_signals()

import asyncio
import os
import sys
from pathlib import Path

from serving.core.model.launch import ACME_CHALLENGES_VARIABLE, ACME_DIRECTORY_VARIABLE
from serving.home.state import StateFolder
from serving.net.aio.daemon import run_daemon
from serving.net.aio.startup import report_serving
from serving.net.aio.supervise import supervise
from serving.net.cluster.kube import connect


async def _body(stop: asyncio.Event) -> None:
    # The base of all daemons imports this module, and has no use for the client library.
    from serving.home.acme.issuer import CertificateIssuer  # noqa: PLC0415 - as said
    from serving.home.acme.orders import AcmeOrders  # noqa: PLC0415 - as said

    folder = StateFolder(Path(os.environ["SERVING_STATE"])).acme
    challenges = Path(os.environ[ACME_CHALLENGES_VARIABLE])
    await asyncio.to_thread(_prepare, folder, challenges)
    orders = AcmeOrders(os.environ[ACME_DIRECTORY_VARIABLE], folder, challenge_folder=challenges)
    async with connect("acme") as cluster, supervise() as group:
        issuing = group.start(CertificateIssuer(cluster, orders, folder).run(), name="certificates")
        report_serving()
        await stop.wait()
        issuing.cancel()


def _prepare(folder: Path, challenges: Path) -> None:
    """Create the private folders, and remove challenges of an earlier process."""
    for path in (folder, challenges):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in challenges.iterdir():
        leftover.unlink()


def main() -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    return run_daemon("acme", _body)


if __name__ == "__main__":
    sys.exit(main())
