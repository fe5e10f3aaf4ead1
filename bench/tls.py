"""What TLS costs at the activator: requests of one core over TLS beside the same over plain HTTP, and handshakes.

    python bench/tls.py [--seconds 4] [--rounds 5]

The activator has one core, wrk and the backend (nginx, 200 bytes) the other. Plain and TLS take turns in each round, and
what counts is the ratio inside a round of requests for a second of the activator's CPU: the median is told. (wrk encrypts
too, and shares its core with the backend: what it sees a second says as much of it.) Handshakes are whole ones (no session is taken up again),
with a key on P-256. Needs two cores, wrk and nginx, and the development dependency trustme.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import trustme

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.data_path import LOAD_CORE, PROXY_CORE, Run, parsed
from bench.peers.cast import Cast, cpu_s

__all__ = ["main"]

_CONNECTIONS = (16, 64, 256)
_HOST = "hello.default.localhost"


def load(cast: Cast, scheme: str, *, connections: int, seconds: float, header: str = "X-Request-Id: 1") -> Run:
    """One run of wrk, with the activator's CPU time for each request."""
    port = cast.ports["activator"] + (scheme == "https")
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds:.0f}s", "--latency"]
    before_s = cpu_s(cast.pid("activator"))
    url = f"{scheme}://127.0.0.1:{port}/"
    told = subprocess.run(
        [*command, "-H", f"Host: {_HOST}", "-H", header, url], check=True, capture_output=True, text=True
    ).stdout
    run = parsed(told)
    spent_s = cpu_s(cast.pid("activator")) - before_s
    return Run(
        per_second=run.per_second,
        p50_ms=run.p50_ms,
        p99_ms=run.p99_ms,
        error_count=run.error_count,
        cpu_us=spent_s * 1e6 / (run.per_second * seconds),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        leaf = trustme.CA().issue_cert(_HOST)
        leaf.private_key_pem.write_to_path(str(folder / "hello.key"))
        (folder / "hello.crt").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        cast = Cast(folder, folder)
        try:
            cast.start("backend", core=LOAD_CORE)
            cast.start("activator", core=PROXY_CORE, LONE_ACTIVATOR_TLS_FOLDER=name)
            measure(cast, rounds=given.rounds, seconds=given.seconds)
        finally:
            cast.close()


def measure(cast: Cast, *, rounds: int, seconds: float) -> None:
    """All rounds, one line for each number of connections."""
    print("| connections | plain, TLS: requests/s | CPU µs/request | requests of a core, TLS to plain | errors |")
    print("|---|---|---|---|---|")
    for connections in _CONNECTIONS:
        pairs = []
        for turn in range(rounds):
            order = ("http", "https") if turn % 2 else ("https", "http")
            runs = {scheme: load(cast, scheme, connections=connections, seconds=seconds) for scheme in order}
            pairs.append((runs["http"], runs["https"]))
        ratios = [plain.cpu_us / tls.cpu_us for plain, tls in pairs]
        plain, tls = (statistics.median(pair[side].per_second for pair in pairs) for side in (0, 1))
        plain_us, tls_us = (statistics.median(pair[side].cpu_us for pair in pairs) for side in (0, 1))
        print(
            f"| {connections} | {plain:,.0f}, {tls:,.0f} | {plain_us:.1f}, {tls_us:.1f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {sum(one.error_count for pair in pairs for one in pair)} |"
        )
    closed = [load(cast, "https", connections=16, seconds=seconds, header="Connection: close") for _ in range(rounds)]
    per_second, cpu_us = (statistics.median(getattr(run, name) for run in closed) for name in ("per_second", "cpu_us"))
    print(f"handshake, request and goodbye: {per_second:,.0f} a second, {cpu_us:.0f} µs of CPU each")


if __name__ == "__main__":
    main()
