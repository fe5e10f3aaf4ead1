"""A forked queue-proxy needs no further imports or threads, which would delay each cold start."""

import json
import subprocess
import sys

SCRIPT = """
import asyncio, json, os, socket, sys
import uvloop
from serving.home.processes import spawn
from serving.queueproxy.main import serve
from serving.queueproxy.podspec import spec_from_environment

spawn.warm_up()
before = set(sys.modules)

async def respond(reader, writer):
    if await reader.readline():
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nhi")
        await writer.drain()
    writer.close()

async def main():
    app = await asyncio.start_server(respond, sock=socket.create_server(("127.0.0.1", 0)))
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    spec = spec_from_environment({
        "SERVING_POD_NAMESPACE": "default", "SERVING_POD_REVISION": "r", "SERVING_POD_NAME": "p",
        "SERVING_POD_APP": "127.0.0.1:%d" % app.sockets[0].getsockname()[1],
        "SERVING_POD_LISTEN": "127.0.0.1:%d" % ports[0], "SERVING_POD_ADMIN_LISTEN": "127.0.0.1:%d" % ports[1],
        "SERVING_QUEUEPROXY_CONTAINER_CONCURRENCY": "1", "SERVING_QUEUEPROXY_DRAIN_LAG_S": "0",
    })
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(spec, stop))
    body = b""
    while b"200 OK" not in body:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
            continue
        writer.write(b"GET / HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n")
        body = await reader.read()
        writer.close()
    found = {"modules": sorted(set(sys.modules) - before), "threads": len(os.listdir("/proc/self/task"))}
    stop.set()
    await serving
    app.close()
    print(json.dumps(found))

uvloop.run(main())
"""


def test_forked_queue_proxy_imports_no_module_and_starts_no_thread() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"modules": [], "threads": 1}
