"""``serving why`` with a cluster: from Events and from reachable autoscalers."""

import asyncio
import http.server
import json
import os
import sys
import threading
from pathlib import Path

import msgspec
from click.testing import CliRunner, Result

from serving.autoscaler.io.events import EventPermit, scale_event
from serving.core.model.event import ROLLBACK_REASON, EventText, about, new_event
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import EVENT, REVISION, SERVING_SERVICE
from serving.tools.cli.main import main
from tests.integration.api_server import Served, served
from tests.unit.core.scaling.scaler_builders import revision_with

REVISIONS = {
    "hello-00001": {"serving.knative.dev/service": "hello"},
    "hello-other": {"serving.knative.dev/service": "other"},
}


async def filled() -> MemoryCluster:
    cluster = MemoryCluster()
    for name, labels in REVISIONS.items():
        body = {"apiVersion": REVISION.api_version, "kind": "Revision"}
        spec = {"containers": [{"image": "registry.example/app"}]}
        metadata = {"name": name, "namespace": "default", "labels": labels}
        await cluster.create(REVISION, {**body, "metadata": metadata, "spec": spec})
    for number, (name, stamp, sentence) in enumerate(
        (
            ("hello-00001", "2026-11-21T08:00:05Z", "1 → 3: panic"),
            ("hello-00001", "2026-11-21T08:00:01Z", "0 → 1: stable"),
            ("hello-other", "2026-11-21T08:00:02Z", "0 → 9: stable"),
        )
    ):
        revision = msgspec.structs.replace(revision_with(), key=("default", name))
        permit = EventPermit(number=number, left_out_count=0)
        await cluster.create(EVENT, scale_event(revision, sentence, permit=permit, now=stamp))
    for name in ("hello", "other"):
        service = {
            "apiVersion": REVISION.api_version,
            "kind": "Service",
            "metadata": {"namespace": "default", "name": name},
        }
        text = EventText(reason=ROLLBACK_REASON, message=f"rolled back to {name}-00001")
        await cluster.create(
            EVENT, new_event(about(service), text, suffix="1", component="x", now="2026-11-21T08:00:03Z")
        )
    return cluster


def why(api: Served, *words: str) -> Result:
    return CliRunner().invoke(main, ["why", *words], env={"KUBECONFIG": str(api.kubeconfig), "TZ": "UTC"})


async def test_why_prints_events_of_service_and_how_to_get_decisions(tmp_path: Path) -> None:
    async with served(await filled(), tmp_path) as api:
        result = await asyncio.to_thread(why, api, "hello", "--since", "900000h")
        assert result.exit_code == 0
        lines = [line.split(" ", 1)[1] for line in result.stdout.splitlines()]
        assert [line[line.index("hello") :] for line in lines] == [
            "hello-00001 0 → 1: stable",
            "hello rolled back to hello-00001",
            "hello-00001 1 → 3: panic",
        ]
        assert "from Events, which are rate-limited: no pod of autoscaler is ready" in result.stderr
        # Events outside the time range are not an error.
        assert (await asyncio.to_thread(why, api, "hello", "--since", "1s")).exit_code == 0
        nothing = await asyncio.to_thread(why, api, "nobody")
        assert (nothing.exit_code, nothing.stdout) == (1, "")
        assert "no decision about nobody in default: there is no service, workload or revision" in nothing.stderr
        records = await asyncio.to_thread(why, api, "hello", "-o", "json")
        assert records.exit_code == 2
        assert "which only an autoscaler has: no pod of autoscaler is ready" in records.stderr


async def test_events_of_deleted_service_with_same_name_are_not_shown(tmp_path: Path) -> None:
    cluster = await filled()
    template = {"spec": {"containers": [{"image": "registry.example/app"}]}}
    service = {"apiVersion": SERVING_SERVICE.api_version, "kind": "Service", "spec": {"template": template}}
    await cluster.create(SERVING_SERVICE, {**service, "metadata": {"namespace": "default", "name": "hello"}})
    await cluster.create(SERVING_SERVICE, {**service, "metadata": {"namespace": "default", "name": "new"}})
    async with served(cluster, tmp_path) as api:
        result = await asyncio.to_thread(why, api, "hello", "--since", "900000h")
        undecided = await asyncio.to_thread(why, api, "new")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no decision about new in default is recorded\n" in undecided.stderr


async def test_why_follows_new_events(tmp_path: Path) -> None:
    cluster = await filled()
    async with served(cluster, tmp_path) as api:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "serving", "why", "hello", "-f", "--since", "900000h"),
            env={**os.environ, "KUBECONFIG": str(api.kubeconfig)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        async with asyncio.timeout(60):
            lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
            assert {line[line.index("hello") :] for line in lines} == {
                "hello-00001 0 → 1: stable",
                "hello-00001 1 → 3: panic",
                "hello rolled back to hello-00001",
            }
            revision = revision_with()
            permit = EventPermit(number=9, left_out_count=2)
            await cluster.create(
                EVENT, scale_event(revision, "3 → 4: stable", permit=permit, now="2026-11-21T08:01:00Z")
            )
            assert b"3 \xe2\x86\x92 4: stable (changes left out before it: 2)" in await process.stdout.readline()
        process.terminate()
        await process.wait()


class Standby(http.server.BaseHTTPRequestHandler):
    """An autoscaler without revisions, which redirects to the owner."""

    owner_address = ""

    def do_GET(self) -> None:
        self.send_response(307)
        self.send_header("Location", f"http://{self.owner_address}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Do nothing."""


class Owner(Standby):
    """The autoscaler that decides."""

    def do_GET(self) -> None:
        body = json.dumps([]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


async def test_why_follows_redirect_to_owner_or_reports_it_as_unreachable(tmp_path: Path) -> None:
    owner = http.server.HTTPServer(("127.0.0.1", 0), Owner)
    owner_address = f"127.0.0.1:{owner.server_port}"
    standby = http.server.HTTPServer(("127.0.0.1", 0), type("To", (Standby,), {"owner_address": owner_address}))
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in (owner, standby)]
    for thread in threads:
        thread.start()
    standby_url = f"http://127.0.0.1:{standby.server_port}"
    try:
        async with served(await filled(), tmp_path) as api:
            result = await asyncio.to_thread(why, api, "hello", "--autoscaler", standby_url)
            assert "no decision about hello" in result.stderr
            owner.shutdown()
            owner.server_close()
            lost = await asyncio.to_thread(why, api, "hello", "--autoscaler", standby_url)
            assert lost.exit_code == 1
            assert f"its owner at {owner_address} does not answer" in lost.stderr
    finally:
        standby.shutdown()
        for thread in threads:
            thread.join()
        standby.server_close()
