"""What TLS costs at the activator: requests beside plain HTTP, and handshakes.

    python bench/tls.py [--seconds S] [--rounds N] [--quick]

The activator has one core, wrk and the backend (nginx, 200 bytes) the other. Plain and TLS take turns in each round,
and what counts is the ratio inside a round of requests for a second of the activator's CPU: the median is printed. (wrk
encrypts too, and shares its core with the backend: what it sees a second says as much of it.) Handshakes are whole ones
(no session is taken up again), with a key on P-256. Needs two cores, wrk and nginx, and the development dependency
trustme.
"""

import statistics
import tempfile
from pathlib import Path

import trustme

from bench.parts.program import options_of
from bench.peers.cast import LOAD_CORE, PROXY_CORE, Cast, casting
from bench.peers.wrk import Load, Run

_CONNECTIONS = (16, 64, 256)
_HOST = "hello.default.localhost"


def main() -> None:
    """Measure and print."""
    arguments = options_of(__doc__, seconds=4.0, rounds=5, quick={"seconds": 1.0, "rounds": 1})
    with tempfile.TemporaryDirectory() as name, casting() as cast:
        folder = Path(name)
        leaf = trustme.CA().issue_cert(_HOST)
        leaf.private_key_pem.write_to_path(str(folder / "hello.key"))
        (folder / "hello.crt").write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        cast.start("backend", core=LOAD_CORE)
        cast.start("activator", core=PROXY_CORE, LONE_ACTIVATOR_TLS_FOLDER=name)
        measure(cast, rounds=arguments.rounds, seconds=arguments.seconds)


def load(cast: Cast, scheme: str, *, connections: int, seconds: float, header: str = "X-Request-Id: 1") -> Run:
    """One run of wrk. TLS is at the port after the other."""
    wrk = Load(connections=connections, seconds=seconds, headers=(f"Host: {_HOST}", header))
    return wrk.measured(cast, "activator", scheme=scheme, port=cast.ports["activator"] + (scheme == "https"))


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
            f"({min(ratios):.2f} to {max(ratios):.2f}) | {sum(run.error_count for pair in pairs for run in pair)} |"
        )
    closed = [load(cast, "https", connections=16, seconds=seconds, header="Connection: close") for _ in range(rounds)]
    per_second, cpu_us = (statistics.median(getattr(run, name) for run in closed) for name in ("per_second", "cpu_us"))
    print(f"handshake, request and goodbye: {per_second:,.0f} a second, {cpu_us:.0f} µs of CPU each")


if __name__ == "__main__":
    main()
