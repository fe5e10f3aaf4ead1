"""The page docs/performance.md, of what ``bench/data_path.py`` has measured."""

from pathlib import Path
from typing import Any

__all__ = ["stream_lines", "write_page", "write_streams"]

_BAR_COLUMNS = 40
_INTRO = """# Performance of the data path

Written by `python bench/data_path.py --write`. The proxy has one core, load (wrk) and backend (nginx, 200 bytes) the other;
heads have 12 lines; medians of alternating rounds. Absolute figures are of one shared machine and move by a third from
day to day; the ratios inside a round do not. "Go" is a bare `httputil.ReverseProxy` (bench/peers/reverse_proxy.go) without
limit, counting or timeouts; the queue-proxy and the activator run with all of theirs. Nothing here was measured over a
real network.
"""
_VARIED = """## Heads that differ

Above, each connection repeats one head, as wrk does. The proxies remember the last head of a connection and its meaning. Here
path, trace and request id differ in each request, and the rest of the head repeats, as a browser's does.
"""
_STREAMS = """## Calls, messages, events

Through the queue-proxy, a bare Go reverse proxy (h2c for gRPC), nginx, and straight at the app, in turns (`python
bench/streams.py`). Client and app share a core, which bounds the rates; each proxy has the other core. They are Python, but for the rows of
the Go client. The bare forwarder is one of bytes, on uvloop, which understands nothing: its CPU time is the kernel's part.

gRPC: 16 unary calls at once on one connection; messages of 100 bytes over one stream in both directions, 16 on their way; messages of
1 MiB to the app. A turn is all 16 calls, one message there and back, or one event.
"""
_STUDY = """## Where the time goes, and what compiling gives

Measured by hand at 16 connections, 24 µs a request before heads were remembered, 19 after it: 12 µs are the kernel's (two
reads, two writes and a fifteenth of an epoll_wait, which is what nginx does as well), 1 µs uvloop's, the rest Python's.

The same modules compiled by mypyc (lines, heads, bodies, rendering, connection, exchange, upstream, pool, meter, breaker and
the queue-proxy's handler, unchanged) gave 1.1 to 1.27 times the requests of a core, over six runs beside the plain ones in
the same rounds. An accelerator is built from 1.4 on, so there is none: what is left to compile is a quarter of the time.
"""
_HTTP2 = """### Where the time of a call goes

Of a unary gRPC call, 30 µs are Python's, measured without sockets with four calls in a read, and spread evenly: no function has more
than 6 % of it. The rest is the kernel's, and all calls of one read share it.

A message of a stream and its answer take 6 µs of Python when each comes in a read of its own, and 3.5 when 16 share one; 2 more with the
window updates that grpcio sends.

Each lone message is two reads, two writes and two wake-ups, for nginx as well: that is 30 to 60 µs. Under a client that keeps 64 on their way, messages share them and cost 9 to 11 µs.

HPACK is our own. `jh2` has one in Rust: it reads a head of 9 known fields in 1.3 µs and packs it in 1.5, where ours takes 0.1 and 0.1,
because heads that repeat are not read again; of a head with one new field of 55 bytes ours takes several times as long. Its module is
private and a dependency of every sidecar, so that the gain on heads that differ was not taken.
"""
_TLS = """## TLS

Over TLS a core of the activator answers 0.90 of the requests that it answers in the clear at 16 connections, 0.89 at 64, 0.70
at 256, in the same rounds of `python bench/tls.py`; a handshake takes 370 µs ([tls.md](tls.md)).
"""


def write_page(found: dict[str, Any], path: Path, *, keep: bool) -> str:
    """The page as text; written to ``path`` unless the one there is to be kept."""
    parts = [_INTRO, "## Requests of one core", *_throughput(found["throughput"]), "", _plot(found)]
    parts += [
        _VARIED,
        *_throughput(found["varied_heads"]),
        "",
        *_rest(found),
        "",
        _stream_section(found["streams"]) if "streams" in found else _kept_section(path.read_text()),
        _HTTP2,
        _STUDY,
        _TLS,
    ]
    page = "\n".join(parts)
    if not keep:
        path.write_text(page)
    return page


def write_streams(found: dict[str, dict[str, float]], path: Path) -> None:
    """Replace the section of calls, messages and events in the page."""
    text = path.read_text()
    path.write_text(text.replace(_kept_section(text), _stream_section(found)))


def stream_lines(found: dict[str, dict[str, float]]) -> list[str]:
    """A table of calls, messages and events."""
    rows = ["| what | queue-proxy /s | Go /s | straight /s | turn p50 ms | CPU µs each | Go | nginx | bare forwarder |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for kind, one in found.items():
        rates = f"{one['per_second']:,.0f} | {one['go_per_second']:,.0f} | {one['direct_per_second']:,.0f}"
        spent = f"{one['cpu_us']:.1f} | {one['go_cpu_us']:.1f} | {one['nginx_cpu_us']:.1f} | {one['bare_cpu_us']:.1f}"
        rows.append(f"| {kind} | {rates} | {one['p50_ms']:.2f} | {spent} |")
    return rows


def _stream_section(found: dict[str, dict[str, float]]) -> str:
    return "\n".join([_STREAMS, *stream_lines(found), ""])


def _kept_section(page: str) -> str:
    """The section as it stands in the page."""
    head, tail = _STREAMS.partition("\n")[0], _HTTP2.partition("\n")[0]
    return page[page.index(head) : page.index(tail)].removesuffix("\n")


def _throughput(found: dict[str, Any]) -> list[str]:
    """Rows by connections and player."""
    lines = [
        "",
        "| connections | proxy | requests/s | to Go, same round (lowest to highest) | CPU µs/request | p50 ms | p99 ms | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for connections, players in found.items():
        for name, one in players.items():
            ratio = f"{one['ratio']:.2f} ({one['ratio_low']:.2f} to {one['ratio_high']:.2f})"
            cells = (connections, name, f"{one['per_second']:,.0f}", ratio, f"{one['cpu_us']:.1f}")
            lines.append(f"| {' | '.join(cells)} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} | {one['errors']:.0f} |")
    return lines


def _plot(found: dict[str, Any]) -> str:
    """Bars of CPU time per request at the largest number of connections."""
    connections, players = list(found["throughput"].items())[-1]
    most_us = max(one["cpu_us"] for one in players.values())
    lines = [f"CPU µs per request, {connections} connections", ""]
    for name, one in players.items():
        lines.append(f"{name:12}{'█' * round(_BAR_COLUMNS * one['cpu_us'] / most_us)} {one['cpu_us']:.1f}")
    return "\n".join(["```", *lines, "```", ""])


def _rest(found: dict[str, Any]) -> list[str]:
    ratios = ", ".join(f"{count}: {ratio}" for count, ratio in found["activator_cpu_to_queue_proxy"].items())
    lines = [f"CPU of the activator over the queue-proxy's, by connections: {ratios}.", ""]
    lines += [
        "## One connection, everything on one core",
        "",
        "| proxy | added at the median, µs | p99 ms |",
        "|---|---|---|",
    ]
    for name, one in found["one_core"].items():
        lines.append(f"| {name} | {one['added_us']:.0f} | {one['p99_ms']:.2f} |")
    limit = found["hard_limit_10_at_64"]
    lines += [
        "",
        "## Waiting",
        "",
        f"Hard limit 10 with 64 connections: p50 {limit['p50_ms']:.2f} ms, p99 {limit['p99_ms']:.2f} ms.",
        "",
        "| proxy | 1,000 requests of 100 ms at once: requests/s | p99 ms | errors | 10 MiB up, MiB/s | down |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found["before_the_app"].items():
        cells = (f"{one['slow_per_second']:,.0f}", f"{one['slow_p99_ms']:.0f}", f"{one['slow_errors']:.0f}")
        sizes = (f"{one['up_mib_per_second']:,.0f}", f"{one['down_mib_per_second']:,.0f}")
        lines.append(f"| {name} | {' | '.join(cells + sizes)} |")
    lines += ["", "## Start and memory", "", "| what | value |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in found["start_and_memory"].items()]
    return lines
