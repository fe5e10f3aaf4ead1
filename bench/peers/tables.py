"""What the benchmarks of the data path have measured, as tables for docs/performance.md."""

from typing import Any

_BAR_COLUMNS = 40


def tables(figures: dict[str, Any]) -> dict[str, list[str]]:
    """The blocks of the page by name."""
    return {
        "throughput": [*_throughput(figures["throughput"]), "", *_plot(figures)],
        "varied heads": _throughput(figures["varied_heads"]),
        "waiting, start and memory": _rest(figures),
    }


def stream_lines(figures: dict[str, dict[str, float]]) -> list[str]:
    """A table of calls, messages and events."""
    has_knative = any("knative_cpu_us" in figure for figure in figures.values())
    rows = ["| what | queue-proxy /s | Go /s | straight /s | turn p50 ms | CPU µs each | Go | nginx | bare forwarder |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    if has_knative:
        rows = [f"{rows[0]} Knative |", f"{rows[1]}---|"]
    for kind, figure in figures.items():
        rates = f"{figure['per_second']:,.0f} | {figure['go_per_second']:,.0f} | {figure['direct_per_second']:,.0f}"
        spent = f"{figure['cpu_us']:.1f} | {figure['go_cpu_us']:.1f} | {figure['nginx_cpu_us']:.1f} | {figure['bare_cpu_us']:.1f}"
        row = f"| {kind} | {rates} | {figure['p50_ms']:.2f} | {spent} |"
        rows.append(f"{row} {figure['knative_cpu_us']:.1f} |" if has_knative else row)
    return rows


def _throughput(figures: dict[str, Any]) -> list[str]:
    """Rows by connections and player."""
    lines = [
        "| connections | proxy | requests/s | ratio to Go's in the same round (lowest to highest) | CPU µs/request | p50 ms | p99 ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for connections, players in figures.items():
        for name, figure in players.items():
            ratio = f"{figure['ratio']:.2f} ({figure['ratio_low']:.2f}..{figure['ratio_high']:.2f})"
            cells = (connections, name, f"{figure['per_second']:,.0f}", ratio, f"{figure['cpu_us']:.1f}")
            lines.append(f"| {' | '.join(cells)} | {figure['p50_ms']:.2f} | {figure['p99_ms']:.2f} |")
            if figure["errors"]:
                lines[-1] += f" {figure['errors']:.0f} errors"
    return lines


def _plot(figures: dict[str, Any]) -> list[str]:
    """Bars of CPU time per request at the largest number of connections."""
    connections, players = list(figures["throughput"].items())[-1]
    most_us = max(figure["cpu_us"] for figure in players.values())
    lines = [f"CPU µs per request, {connections} connections", ""]
    for name, figure in players.items():
        lines.append(f"{name:12}{'█' * round(_BAR_COLUMNS * figure['cpu_us'] / most_us)} {figure['cpu_us']:.1f}")
    return ["```", *lines, "```"]


def _rest(figures: dict[str, Any]) -> list[str]:
    ratios = ", ".join(f"{count}: {ratio}" for count, ratio in figures["activator_cpu_to_queue_proxy"].items())
    lines = [f"CPU of the activator over the queue-proxy's, by connections: {ratios}.", ""]
    lines += [
        "## One connection, everything on one core",
        "",
        "| proxy | median latency that the proxy adds, µs | p99 ms |",
        "|---|---|---|",
    ]
    for name, figure in figures["one_core"].items():
        lines.append(f"| {name} | {figure['added_us']:.0f} | {figure['p99_ms']:.2f} |")
    limit = figures["hard_limit_10_at_64"]
    lines += [
        "",
        "## Waiting",
        "",
        f"Hard limit 10 with 64 connections: p50 {limit['p50_ms']:.2f} ms, p99 {limit['p99_ms']:.2f} ms.",
        "",
        "| proxy | 1,000 requests of 100 ms at once: requests/s | p99 ms | errors | request bodies of 10 MiB, MiB/s | response bodies, MiB/s |",
        "|---|---|---|---|---|---|",
    ]
    for name, figure in figures["before_the_app"].items():
        cells = (f"{figure['slow_per_second']:,.0f}", f"{figure['slow_p99_ms']:.0f}", f"{figure['slow_errors']:.0f}")
        sizes = (f"{figure['up_mib_per_second']:,.0f}", f"{figure['down_mib_per_second']:,.0f}")
        lines.append(f"| {name} | {' | '.join(cells + sizes)} |")
    lines += ["", "## Start and memory", "", "| what | value |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in figures["start_and_memory"].items()]
    return lines
