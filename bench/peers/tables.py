"""What the benchmarks of the data path have measured, as tables for docs/performance.md."""

from typing import Any

_BAR_COLUMNS = 40


def tables(found: dict[str, Any]) -> dict[str, list[str]]:
    """The blocks of the page by name."""
    return {
        "throughput": [*_throughput(found["throughput"]), "", *_plot(found)],
        "varied heads": _throughput(found["varied_heads"]),
        "waiting, start and memory": _rest(found),
    }


def stream_lines(found: dict[str, dict[str, float]]) -> list[str]:
    """A table of calls, messages and events."""
    has_knative = any("knative_cpu_us" in one for one in found.values())
    rows = ["| what | queue-proxy /s | Go /s | straight /s | turn p50 ms | CPU µs each | Go | nginx | bare forwarder |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    if has_knative:
        rows = [f"{rows[0]} Knative |", f"{rows[1]}---|"]
    for kind, one in found.items():
        rates = f"{one['per_second']:,.0f} | {one['go_per_second']:,.0f} | {one['direct_per_second']:,.0f}"
        spent = f"{one['cpu_us']:.1f} | {one['go_cpu_us']:.1f} | {one['nginx_cpu_us']:.1f} | {one['bare_cpu_us']:.1f}"
        row = f"| {kind} | {rates} | {one['p50_ms']:.2f} | {spent} |"
        rows.append(f"{row} {one['knative_cpu_us']:.1f} |" if has_knative else row)
    return rows


def _throughput(found: dict[str, Any]) -> list[str]:
    """Rows by connections and player."""
    lines = [
        "| connections | proxy | requests/s | to Go, same round (lowest to highest) | CPU µs/request | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for connections, players in found.items():
        for name, one in players.items():
            ratio = f"{one['ratio']:.2f} ({one['ratio_low']:.2f}..{one['ratio_high']:.2f})"
            cells = (connections, name, f"{one['per_second']:,.0f}", ratio, f"{one['cpu_us']:.1f}")
            lines.append(f"| {' | '.join(cells)} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} |")
            if one["errors"]:
                lines[-1] += f" {one['errors']:.0f} errors"
    return lines


def _plot(found: dict[str, Any]) -> list[str]:
    """Bars of CPU time per request at the largest number of connections."""
    connections, players = list(found["throughput"].items())[-1]
    most_us = max(one["cpu_us"] for one in players.values())
    lines = [f"CPU µs per request, {connections} connections", ""]
    for name, one in players.items():
        lines.append(f"{name:12}{'█' * round(_BAR_COLUMNS * one['cpu_us'] / most_us)} {one['cpu_us']:.1f}")
    return ["```", *lines, "```"]


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
