"""How many stat frames one core of the autoscaler takes while it decides.

    python bench/stats.py [--pods 9000] [--revisions 90] [--seconds 10] [--quick] [--json]

The autoscaler runs as in production (its own process, uvloop, real websockets, a store in its memory with one Deployment
a revision), pinned to the first core; the pods are raw sockets of this process on the last one, that send a masked frame
each, in turn. First at one frame a second and pod, with the CPU that takes; then as fast as it goes. What counts is the
frames that were taken, by its own count, and its CPU time per frame. Decisions are made every 2 s all along.
"""

import asyncio
import contextlib
import multiprocessing
import os
import resource
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import uvloop

from bench.parts.processes import cpu_s, resident_mib
from bench.parts.program import exit_code, options_of, show
from serving.autoscaler.main import AutoscalerDaemon
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.home.store.memory import MemoryCluster
from serving.net.cluster.kinds import DEPLOYMENT, REVISION
from serving.net.metrics.queries import QUERY_TOKEN_FILE_VARIABLE, QueryGate
from serving.net.wire.frames import PodStat, encode_pod_stat
from serving.net.wire.tokens import pod_token

KEY = bytes(32)
_TOKEN = os.memfd_create("query-token")
os.write(_TOKEN, b"q" * 43)
os.environ[QUERY_TOKEN_FILE_VARIABLE] = f"/proc/self/fd/{_TOKEN}"
# Pods that connect at once: what a server's backlog of 100 takes.
CONNECTING_MAX = 64
# Pods of one batch while frames are sent as fast as it goes; between batches the others' sockets are looked at.
BATCH = 50
GOAL_FRAMES_PER_S = 20_000
START_WITHIN_S = RESPONSE_WITHIN_S = 60.0
END_WITHIN_S = 10.0
COUNTS = (
    "autoscaler_stats_frames_total",
    "autoscaler_stats_flooding_frames_total",
    "autoscaler_decisions_total",
)


def serve(pipe: Connection, revision_count: int) -> None:
    """The autoscaler's process."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    uvloop.run(_serve(pipe, revision_count))


async def _serve(pipe: Connection, revision_count: int) -> None:
    cluster = MemoryCluster()
    for number in range(revision_count):
        await _add_revision(cluster, f"r{number}")
    settings = AutoscalerSettings(stats_address="127.0.0.1:0", stats_connections_max=1_000_000)
    daemon, stop = AutoscalerDaemon(settings, cluster, key=KEY), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), stop.set)
    async with asyncio.TaskGroup() as group:
        group.create_task(daemon.run(stop))
        await daemon.is_serving.wait()
        while not daemon.autoscaler.is_synced:  # noqa: ASYNC110 - a moment, once
            await asyncio.sleep(0.01)
        pipe.send(daemon.address)


async def _add_revision(cluster: MemoryCluster, name: str) -> None:
    metadata = {"namespace": "default", "name": name, "labels": {"serving.knative.dev/revision": name}}
    revision = await cluster.create(REVISION, {"metadata": metadata, "spec": {"containerConcurrency": 10}})
    owner = {"apiVersion": "v1", "kind": "Revision", "name": name, "uid": revision["metadata"]["uid"]}
    owned = {**metadata, "name": f"{name}-deployment", "ownerReferences": [owner]}
    await cluster.create(DEPLOYMENT, {"metadata": owned, "spec": {"replicas": 1}})


def connect_all(address: tuple[str, int], *, pod_count: int, revision_count: int) -> list[socket.socket]:
    """One open websocket a pod."""
    opened: list[socket.socket] = []
    for first in range(0, pod_count, CONNECTING_MAX):
        batch = []
        for number in range(first, min(first + CONNECTING_MAX, pod_count)):
            one = socket.create_connection(address, timeout=RESPONSE_WITHIN_S)
            one.sendall(_handshake(revision=f"r{number % revision_count}", pod=f"p{number}"))
            batch.append(one)
        for one in batch:
            response = one.recv(4096)
            if not response.startswith(b"HTTP/1.1 101"):
                raise SystemExit(response.decode())
            one.setblocking(False)
        opened += batch
    return opened


def _handshake(*, revision: str, pod: str) -> bytes:
    token = pod_token(KEY, namespace="default", revision=revision, pod=pod)
    return (
        f"GET /stats?namespace=default&revision={revision}&pod={pod} HTTP/1.1\r\nHost: autoscaler\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n\r\n"
    ).encode()


def masked_frame() -> bytes:
    """A pod's statistic as a client sends it: final, binary, masked (with zeros, which costs the server the same)."""
    body = encode_pod_stat(
        PodStat(
            at_s=time.time(), concurrency=3.5, proxied_concurrency=1.5, request_count=12.0, proxied_request_count=5.0
        )
    )
    return bytes([0x82, 0x80 | len(body)]) + bytes(4) + body


def send_paced(pods: Sequence[socket.socket], seconds: float) -> None:
    """One frame a second and pod, evenly over the second."""
    begin_s, sent, per_s = time.perf_counter(), 0, len(pods)
    while (passed_s := time.perf_counter() - begin_s) < seconds:
        frame = masked_frame()
        for _ in range(int(passed_s * per_s) - sent):
            pods[sent % per_s].send(frame)
            sent += 1
        time.sleep(0.002)


def send_fast(pods: Sequence[socket.socket], seconds: float) -> None:
    """As fast as the other side reads: a socket whose buffer is full is passed over."""
    end_s, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        frame = masked_frame()
        refused = 0
        for _ in range(BATCH):
            try:
                pods[number % len(pods)].send(frame)
            except BlockingIOError:
                refused += 1
            number += 1
        if refused:
            time.sleep(0.001)


def counts(address: tuple[str, int]) -> dict[str, int]:
    """The autoscaler's own."""
    request = urllib.request.Request(  # noqa: S310 - our own
        "http://{}:{}/metrics".format(*address), headers=QueryGate.of_environment().headers()
    )
    with urllib.request.urlopen(request, timeout=RESPONSE_WITHIN_S) as response:  # noqa: S310 - as above
        lines = response.read().decode().splitlines()
    # Totals have no labels; a comment and a metric of a revision are none of them.
    return {name: int(float(value)) for name, value in (one.rsplit(" ", 1) for one in lines) if name.isidentifier()}


@contextlib.contextmanager
def autoscaler(revision_count: int) -> Iterator[tuple[tuple[str, int], int]]:
    """The address and the process id of an autoscaler. Raises ``SystemExit`` when it ends early or does not start."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, revision_count))
    process.start()
    # Open here, it would hide that the other side has ended.
    theirs.close()
    assert process.pid is not None
    try:
        if not ours.poll(START_WITHIN_S):
            raise SystemExit(f"the autoscaler does not serve within {START_WITHIN_S:g} s")
        yield ours.recv(), process.pid
        ours.send(None)
        process.join(END_WITHIN_S)
    except (OSError, EOFError) as error:
        process.join(END_WITHIN_S)
        raise SystemExit(f"the autoscaler ended with {process.exitcode}: {error!r}") from error
    finally:
        process.kill()
        process.join()


def measure(*, pod_count: int, revision_count: int, seconds: float) -> dict[str, float]:
    """Both runs, one after the other, on one server. CPU is the autoscaler's."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    cores = os.sched_getaffinity(0)
    with autoscaler(revision_count) as (address, server):
        os.sched_setaffinity(0, {max(cores)})
        begin_s = time.perf_counter()
        pods = connect_all(address, pod_count=pod_count, revision_count=revision_count)
        found = {"connect_s": time.perf_counter() - begin_s}
        for name, send in (("steady", send_paced), ("full", send_fast)):
            before, cpu_before_s, begin_s = counts(address), cpu_s(server), time.perf_counter()
            send(pods, seconds)
            after, used_s = counts(address), cpu_s(server) - cpu_before_s
            took_s = time.perf_counter() - begin_s
            frames, flooding, decisions = (after[key] - before[key] for key in COUNTS)
            found |= {
                f"{name}_frames_per_s": (frames - flooding) / took_s,
                f"{name}_decisions_per_s": decisions / took_s,
                f"{name}_cpu_ratio": used_s / took_s,
                f"{name}_cpu_us_per_frame": used_s / max(1, frames - flooding) * 1e6,
            }
        found["resident_mib"] = resident_mib(server)
    for pod in pods:
        pod.close()
    return found


def main() -> int:
    """Measure, and hold it to the goal."""
    quick = {"pods": 50, "revisions": 2, "seconds": 1.0}
    options = options_of(__doc__, pods=9000, revisions=90, seconds=10.0, quick=quick)
    found = measure(pod_count=options.pods, revision_count=options.revisions, seconds=options.seconds)
    show({name: round(value, 2) for name, value in found.items()}, options)
    return exit_code(options, is_met=found["full_frames_per_s"] >= GOAL_FRAMES_PER_S)


if __name__ == "__main__":
    sys.exit(main())
