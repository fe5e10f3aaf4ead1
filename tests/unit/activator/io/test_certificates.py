"""Certificates of an activator under concurrent reloads."""

import asyncio
import base64

from serving.activator.io.certificates import CertificateWatch
from serving.core.model.objects import Object
from serving.core.settings.tls import TlsSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import SECRET, Kind
from serving.net.cluster.port import Subresource
from tests.integration.tls_stage import issued


class Slow(MemoryCluster):
    """A store that blocks its first read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_started, self.gate = asyncio.Event(), asyncio.Event()

    async def get(self, kind: Kind, namespace: str, name: str, *, subresource: Subresource | None = None) -> Object:
        if not self.read_started.is_set():
            self.read_started.set()
            await self.gate.wait()
        return await super().get(kind, namespace, name, subresource=subresource)


async def test_slow_earlier_reload_keeps_certificate_of_new_mapping() -> None:
    cluster = Slow()
    for name in ("blog", "shop"):
        pair = issued(f"{name}.example")
        texts = {"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem}
        data = {entry: base64.b64encode(text).decode() for entry, text in texts.items()}
        metadata = {"name": name, "namespace": "default"}
        await cluster.create(SECRET, {"metadata": metadata, "type": "kubernetes.io/tls", "data": data})
    watch = CertificateWatch(TlsSettings(), cluster, namespace="knative-serving")
    watch.set_mapped({"blog.example": ("default", "blog")})
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.reload())
        await cluster.read_started.wait()
        watch.set_mapped({"blog.example": ("default", "blog"), "shop.example": ("default", "shop")})
        later = tasks.create_task(watch.reload())
        # The later reload runs as far as possible before the first read continues.
        await asyncio.wait([later], timeout=0.2)
        cluster.gate.set()
    assert watch.certificates.count == 2
