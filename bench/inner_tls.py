"""What inner TLS costs an activator and a queue-proxy together: requests over it beside plain HTTP.

    python bench/inner_tls.py [--seconds S] [--rounds N] [--quick]

wrk asks an activator, which asks a queue-proxy, which asks nginx, on kept connections. Activators and queue-proxies
share one core, wrk and nginx the other. Plain and TLS take turns in each round; what counts is the ratio inside a round
of requests for a second of the CPU of both: the median is printed. Needs two cores, wrk and nginx.

A run begins with handshakes and ends with requests that wrk cuts off, whose connections are lost. What both cost is
taken out: each figure is the difference of a long run and a short one.
"""

import statistics
from typing import NamedTuple

from bench.parts.processes import cpu_s
from bench.parts.program import options_of
from bench.peers.cast import LOAD_CORE, PROXY_CORE, Cast, casting
from bench.peers.wrk import Load
from serving.net.wire.authority import Authority
from serving.net.wire.tokens import pod_token

_KEY = bytes(32)
_CONNECTIONS = (16, 64, 256)
_PLAIN, _TLS = "plain", "tls"
# wrk takes whole seconds.
_SHORT_S = 1.0


def main() -> None:
    """Measure and print."""
    arguments = options_of(__doc__, seconds=5.0, rounds=5, quick={"seconds": 2.0, "rounds": 1})
    with casting() as cast:
        cast.start("backend", core=LOAD_CORE)
        cast.start("issuer", core=LOAD_CORE, protocol="h2c")
        start_pair(cast, _PLAIN)
        start_pair(
            cast,
            _TLS,
            SERVING_INNER_TLS_DEFAULT="Enabled",
            # So that the bench can see that it is there; the activator speaks TLS only.
            SERVING_QUEUEPROXY_INNER_TLS_MODE="Permissive",
            SERVING_POD_AUTHORITY=Authority(_KEY).certificate,
            SERVING_POD_STATS_URL=f"ws://127.0.0.1:{cast.ports['issuer']}/stats",
            SERVING_POD_STATS_TOKEN=pod_token(_KEY, namespace="default", revision="hello-00001", pod="hello-1"),
        )
        measure(cast, rounds=arguments.rounds, seconds=arguments.seconds)


def start_pair(cast: Cast, side: str, **settings: str) -> None:
    """A queue-proxy before the backend, and an activator before it."""
    cast.start(f"{side} queue-proxy", part="queue-proxy", core=PROXY_CORE, **settings)
    cast.start(f"{side} activator", part="activator", before=f"{side} queue-proxy", core=PROXY_CORE, **settings)


class Run(NamedTuple):
    """One run of wrk, and the CPU that activator and queue-proxy took."""

    request_count: float
    error_count: int
    cpu_s: float


def run_of(cast: Cast, side: str, connections: int, seconds: float) -> Run:
    """Send requests for some seconds."""
    pids = [cast.pid(f"{side} {part}") for part in ("activator", "queue-proxy")]
    before_s = sum(map(cpu_s, pids))
    run = Load(connections=connections, seconds=seconds).run(cast.ports[f"{side} activator"])
    return Run(run.per_second * seconds, run.error_count, sum(map(cpu_s, pids)) - before_s)


def measure(cast: Cast, *, rounds: int, seconds: float) -> None:
    """All rounds, one line for each number of connections."""
    print(
        "| connections | plain, TLS: requests/s | CPU µs/request of both | requests of a core, TLS to plain | errors |"
    )
    print("|---|---|---|---|---|")
    for connections in _CONNECTIONS:
        result: dict[str, list[tuple[float, float]]] = {_PLAIN: [], _TLS: []}
        error_count = 0
        for turn in range(rounds):
            for side in (_PLAIN, _TLS) if turn % 2 else (_TLS, _PLAIN):
                long, short = (run_of(cast, side, connections, spent_s) for spent_s in (seconds, _SHORT_S))
                cost_us = 1e6 * (long.cpu_s - short.cpu_s) / (long.request_count - short.request_count)
                result[side].append((long.request_count / seconds, cost_us))
                error_count += long.error_count + short.error_count
        ratios = [plain[1] / tls[1] for plain, tls in zip(result[_PLAIN], result[_TLS], strict=True)]
        per_second, cpu_us = (
            [statistics.median(pair[part] for pair in result[side]) for side in (_PLAIN, _TLS)] for part in (0, 1)
        )
        print(
            f"| {connections} | {per_second[0]:,.0f}, {per_second[1]:,.0f} | {cpu_us[0]:.1f}, {cpu_us[1]:.1f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {error_count} |"
        )


if __name__ == "__main__":
    main()
