"""The kube adapter's cleanup of a TLS connection to an unresponsive server."""

import asyncio
import gc
import socket
import threading
import warnings
from pathlib import Path

from serving.home.state import ApiCertificate, kubeconfig
from serving.net.cluster.kinds import POD
from serving.net.cluster.kube import KubeCluster
from tests.integration.api_server import TOKEN

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_closed_watch_leaves_no_connection_to_silent_server(tmp_path: Path) -> None:
    certificate = ApiCertificate(tmp_path / "certificates")
    authority = certificate.make()
    over = threading.Event()

    def serve() -> None:
        accepted, _ = listener.accept()
        with certificate.server_context().wrap_socket(accepted, server_side=True) as connection:
            while not connection.recv(65536).endswith(b"\r\n\r\n"):
                pass
            connection.sendall(_HEAD)
            over.wait()

    async def watch() -> None:
        async with (
            KubeCluster(path) as cluster,
            cluster.watch(POD, "default", resource_version="1"),
        ):
            pass

    with socket.create_server(("127.0.0.1", 0)) as listener, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = tmp_path / "kubeconfig"
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        path.write_text(kubeconfig(url, TOKEN, authority=authority), encoding="utf-8")
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            asyncio.run(watch())
            gc.collect()
        finally:
            over.set()
            thread.join()
    assert [
        str(warning_message.message)
        for warning_message in caught
        if issubclass(warning_message.category, ResourceWarning)
    ] == []
