"""An autoscaler that issues certificates to pods and does nothing else.

    python bench/peers/lone_issuer.py PORT

The cluster key is 32 zero bytes, as that of ``lone_activator.py``. GET / is answered with 200.
"""

import asyncio
import logging
import sys
from typing import Any

import uvloop

from serving.autoscaler.decision_events import DecisionBook, Followers, PolicyBook
from serving.autoscaler.io.pod_credentials import CredentialIssuer
from serving.autoscaler.io.stats_server import SharedStats, StatsServer
from serving.core.model.identities import AUTOSCALER
from serving.core.settings.innertls import PERMISSIVE, InnerTlsSettings
from serving.net.wire.issuing import DaemonTls

KEY = bytes(32)


async def main(port: int) -> None:
    """Serve until killed."""
    logging.disable()
    seen: dict[str, Any] = {"metadata": {"labels": {}}, "spec": {}}
    secured = DaemonTls(KEY, AUTOSCALER, InnerTlsSettings(mode=PERMISSIVE))
    server = StatsServer(
        key=KEY,
        record=lambda *_: None,
        decisions=DecisionBook(
            Followers(), keys=list, decisions=lambda *_: (), policies=PolicyBook(keys=list, scaler=lambda _: None)
        ),
        page=lambda _: ("", "text/plain"),
        is_well=lambda: True,
        connections_max=100,
        sharing=SharedStats(issuer=CredentialIssuer(KEY, pod=lambda *_: seen, secured=secured)),
    )
    async with server.serve(("127.0.0.1", port)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
