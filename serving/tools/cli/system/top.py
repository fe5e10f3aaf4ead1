"""``serving top``: live revisions and nodes in the terminal, from the dashboard's ``/state``."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from serving.core.model.revisionnumbers import PolicyCosts
from serving.core.scaling.adaptive.policy_story import savings_sentence
from serving.tools.cli.client.api import Place, place_options
from serving.tools.cli.client.stats import DashboardPages

_GIB = 2**30
_CORE_M = 1000
_FULL_RATIO = 0.9
_NODE_STATES = {"True": ("ready", "green"), "False": ("not ready", "red")}

_PERIOD_S = 2.0
_TONES = {"active": "green", "dormant": "cyan", "starting": "yellow", "failed": "red", "at zero": "dim"}
# Minimum width for the reasons beside the numbers.
_WIDE = 110
_BELOW_MAX = 5
# Minimum width of a name beside its numbers; with less space the numbers are on a separate line below.
_NAME_LEAST, _NAME_ROOMY = 12, 24
_WHY_LEAST = 30
# Minimum width for all numbers.
_ROOMY = 96
_NUMBERS = ("PODS", "RUNNING", "HELD", "TARGET", "RPS", "4XX", "5XX", "P50", "P95", "P99")
_FEW_NUMBERS = ("PODS", "RUNNING", "HELD", "TARGET", "RPS", "5XX", "P95")
# Lines other than rows: the title, heads, separators and ends of tables.
_FRAME = 8
_NODES_LEAST = 4
_BARS = " ▁▂▃▄▅▆▇█"


def node_lines(nodes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nodes with data in a dashboard's state, best score first."""
    known = ("cpu_millicores", "memory_bytes", "requested_millicores", "requested_bytes")
    known_lines = [line for line in nodes.get("lines", ()) if any(line[name] for name in known)]
    return sorted(known_lines, key=lambda line: (-(line["score"] or 0.0), line["name"]))


def shortened(text: str, width_max: int) -> str:
    """Shorten a text to ``width_max`` columns in the middle, because names differ at their start and end."""
    if cell_len(text) <= width_max:
        return text
    room = max(0, width_max - 1)
    tail = text[len(text) - (room // 2) :] if room > 1 else ""
    while cell_len(tail) > room // 2:
        tail = tail[1:]
    return f"{set_cell_size(text, room - cell_len(tail)).rstrip()}…{tail}"


def fitted(
    heads: Sequence[str], rows: Sequence[Sequence[Text]], *, width: int, name_max: int | None = None
) -> tuple[list[Text], bool]:
    """The lines of a table of name, state and numbers, and whether each row needs two lines.

    Numbers are never shortened. Names are shortened in the middle, to at least ``_NAME_LEAST`` columns.
    """
    cells = [_texts(heads), *map(_texts, rows)]
    longest, *others = [max(cell_len(cell.plain) for cell in column) for column in zip(*cells, strict=True)]
    longest = min(longest, name_max or longest)
    # A wide gap needs enough space for the names.
    gap, least = 2, _NAME_ROOMY
    beside = width - sum(others) - gap * len(others)
    if beside < min(longest, least):
        gap, least = 1, _NAME_LEAST
        beside = width - sum(others) - gap * len(others)
    is_stacked = beside < min(longest, least)
    name = min(longest, width - others[0] - gap if is_stacked else beside)
    lines: list[Text] = []
    for first, state, *numbers in cells:
        head = [
            _padded(Text(shortened(first.plain, name)), name, is_left=True),
            _padded(state, others[0], is_left=True),
        ]
        tail = [_padded(cell, size) for cell, size in zip(numbers, others[1:], strict=True)]
        parts = [head, tail] if is_stacked else [head + tail]
        lines += [Text(" " * gap).join(part) for part in parts]
    for line in lines[: 1 + is_stacked]:
        line.stylize("dim")
    return lines, is_stacked


def _texts(cells: Sequence[str | Text]) -> list[Text]:
    return [cell if isinstance(cell, Text) else Text(cell) for cell in cells]


def _padded(text: Text, width: int, *, is_left: bool = False) -> Text:
    space = " " * max(0, width - cell_len(text.plain))
    return Text.assemble(text, space) if is_left else Text.assemble(space, text)


def node_table(lines: Sequence[Mapping[str, Any]], *, width: int) -> tuple[list[Text], bool]:
    """A table of nodes (see ``fitted``): requested and used amounts, and each node's capacity."""
    is_roomy = width >= _ROOMY
    heads = ["NODE", "STATE", "PODS", "CPU ASKED", "CPU USED", *(["CORES"] if is_roomy else [])]
    heads += ["MEM ASKED", "MEM USED", *(["GIB"] if is_roomy else []), "SCORE"]
    return fitted(heads, [_cells(line, is_roomy=is_roomy) for line in lines], width=width)


def _cells(node: Mapping[str, Any], *, is_roomy: bool) -> list[Text]:
    state, tone = _NODE_STATES.get(node["ready"], ("unknown", "yellow"))
    used = node["used"] or {}
    cells = [Text(node["name"]), Text(state, style=tone), Text(f"{node['pod_count']}")]
    for requested, name, unit in (
        (node["requested_millicores"], "cpu_millicores", _CORE_M),
        (node["requested_bytes"], "memory_bytes", _GIB),
    ):
        cells += [_amount(requested, node[name], unit), _amount(used.get(name), node[name], unit)]
        if is_roomy:
            cells.append(Text(f"{node[name] / unit:.3g}" if node[name] else "-"))
    return [*cells, Text("-" if node["score"] is None else f"{node['score']:g}")]


def _amount(part: int | None, whole: int, unit: int) -> Text:
    """An amount with its percentage of ``whole``, if that is known: "1.8 46%"."""
    if part is None:
        return Text("-")
    ratio = part / whole if whole else 0.0
    share = f" {ratio:4.0%}" if whole else ""
    return Text(f"{part / unit:.2g}{share}", style="red" if ratio >= _FULL_RATIO else "")


@click.command()
@click.option("--once", is_flag=True, help="Print once and exit, as when the output is not a terminal.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print once, as one JSON object.",
)
@click.option("--dashboard", "url", metavar="URL", help="Link of the dashboard. Detected by default.")
@click.option("-n", "--namespace", default="", help="Show this namespace only.")
@place_options
def top(*, place: Place, once: bool, output: str, url: str | None, namespace: str) -> None:
    """Display the load of revisions and workloads, with pods and last decisions, and the usage of nodes.

    Ctrl-C stops it.
    """
    pages = DashboardPages(place.api(), url)
    if output == "json":
        click.echo(json.dumps(record_of(pages.read("state"), namespace=namespace), indent=2))
        return
    console = Console()
    if once or not console.is_terminal:
        console.print(screen_of(pages.read("state"), namespace=namespace, width=console.width))
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            # The user may have resized the window.
            width, height = console.size
            live.update(screen_of(pages.read("state"), namespace=namespace, width=width, height=height), refresh=True)
            time.sleep(_PERIOD_S)


def record_of(state: Mapping[str, Any], *, namespace: str = "") -> dict[str, Any]:
    """The dashboard's state of revisions and nodes as JSON, busiest revisions first."""
    return {
        "revisions": [row.record() for row in _rows(state, namespace)],
        "nodes": node_lines(state.get("nodes") or {}),
        "policies": [policy for policy in state.get("policies") or () if namespace in {"", policy["namespace"]}],
    }


def _rows(state: Mapping[str, Any], namespace: str) -> list["_Row"]:
    rows = [_Row(state, revision) for revision in state["objects"] if revision["kind"] == "revision"]
    rows = [row for row in rows if namespace in {"", row.view["namespace"]}]
    return sorted(rows, key=lambda row: (-row.load, -row.number("ready"), row.key))


def screen_of(state: Mapping[str, Any], *, namespace: str = "", width: int = _WIDE, height: int | None = None) -> Group:
    """The screen for one state of the dashboard, busiest revisions first.

    On narrow screens, reasons are below the numbers. ``height`` is the number of lines; None is unlimited. Nodes are
    shown below revisions, in lines reserved for them.
    """
    rows = _rows(state, namespace)
    ready, dormant = (sum(row.number(name) for row in rows) for name in ("ready", "dormant"))
    count = len(rows)
    pods = f"{ready:g} pod{'s' * (ready != 1)} ready" + (f", {dormant:g} dormant" if dormant else "")
    workload_count = sum("kind" in row.view for row in rows)
    counts = [(count - workload_count, "revision"), *([(workload_count, "workload")] if workload_count else [])]
    shown = ", ".join(f"{number} {word}{'s' * (number != 1)}" for number, word in counts)
    title = Text.assemble(("serving", "bold"), f"  {shown}, {pods}")
    nodes = node_lines(state.get("nodes") or {})
    lines, per_row, has_why = _revisions(rows, width=width)
    node_table_lines, is_stacked = node_table(nodes, width=width)
    per_node = 1 + is_stacked
    row_max, node_max = count, len(nodes)
    if height is not None:
        # A narrow screen shows the reasons below, in two lines each.
        room = height - _FRAME - per_row - per_node + 2 - (0 if has_why else 2 * _BELOW_MAX)
        node_max = min(len(nodes), max(_NODES_LEAST // per_node, (room - per_row * count) // per_node))
        row_max = max(1, (room - per_node * node_max) // per_row)
    saved = _saved(state, namespace)
    parts: list[Text] = [
        title,
        *([Text(saved, style="dim")] if saved else []),
        Text(),
        *lines[: per_row * (1 + row_max)],
    ]
    if row_max < count:
        parts.append(Text(f"and {count - row_max} more", style="dim"))
    if not has_why:
        parts += [
            Text(),
            *(
                Text.assemble((f"{row.view['name']} ", "bold"), row.sentence())
                for row in rows[: min(row_max, _BELOW_MAX)]
            ),
        ]
    if nodes:
        parts += [Text(), *node_table_lines[: per_node * (1 + node_max)]]
        left = state["nodes"]["count"] - min(node_max, len(nodes))
        if left:
            parts.append(Text(f"and {left} more", style="dim"))
    return Group(*parts)


def _saved(state: Mapping[str, Any], namespace: str) -> str:
    """The summed costs of all revisions, one line per policy in force; "" without policies."""
    by_policy: dict[str, list[Mapping[str, float]]] = {}
    for policy in state.get("policies") or ():
        if namespace in {"", policy["namespace"]}:
            by_policy.setdefault(policy["policy"], []).append(policy["costs"])
    lines = []
    for running, policy_costs in sorted(by_policy.items()):
        total = {
            name: sum(revision_costs[name] for revision_costs in policy_costs) for name in PolicyCosts.__struct_fields__
        }
        costs = PolicyCosts(
            **total | {"covered_s": max(revision_costs["covered_s"] for revision_costs in policy_costs)}
        )
        lines.append(savings_sentence(costs, running=running))
    return "\n".join(line[:1].upper() + line[1:] for line in lines if line)


def _revisions(rows: list["_Row"], *, width: int) -> tuple[list[Text], int, bool]:
    """The lines of the table, the number of lines per row, and whether reasons are in the same line as the numbers."""
    lines, is_stacked = _table(rows, has_all=width >= _ROOMY, width=width)
    if is_stacked and width >= _ROOMY:
        lines, is_stacked = _table(rows, has_all=False, width=width)
    room = width - cell_len(lines[0].plain) - 2
    if is_stacked or width < _WIDE or room < _WHY_LEAST:
        return lines, 1 + is_stacked, False
    for line, why in zip(lines, (Text("WHY", style="dim"), *(row.sentence() for row in rows)), strict=True):
        why.truncate(room, overflow="ellipsis")
        line.append_text(Text("  ").append_text(why))
    return lines, 1, True


def _table(rows: list["_Row"], *, has_all: bool, width: int) -> tuple[list[Text], bool]:
    heads = ("REVISION", "STATE", *(_NUMBERS if has_all else _FEW_NUMBERS), "MODE")
    # A wide screen has the reasons beside the numbers.
    name_max = width // 4 if width >= _WIDE else None
    return fitted(heads, [row.cells(has_all=has_all) for row in rows], width=width, name_max=name_max)


class _Row:
    def __init__(self, state: Mapping[str, Any], revision: Mapping[str, Any]) -> None:
        self.key: str = revision["key"]
        self.view: Mapping[str, Any] = revision["view"]
        self._decision: Mapping[str, Any] | None = state["decisions"].get(self.key)
        self._numbers = dict(zip(state["columns"], state["rows"].get(self.key, ()), strict=False))

    @property
    def load(self) -> float:
        return self.number("running") + self.number("held")

    def number(self, name: str) -> float:
        return self._numbers.get(name) or 0.0

    def record(self) -> dict[str, Any]:
        """The row as JSON."""
        numbers = {name: value for name, value in self._numbers.items() if value is not None}
        return {**self.view, "shown_state": self._state(), "numbers": numbers, "decision": self._decision}

    def sentence(self) -> Text:
        """The sentence of the last decision."""
        return Text("" if self._decision is None else _sentence_of(self._decision))

    def cells(self, *, has_all: bool) -> list[Text]:
        state = self._state()
        rates = [self._numbers.get(f"rps_{status_class}xx") for status_class in "2345"]
        latencies_s = [self._numbers.get(f"p{percent}_s") for percent in ((50, 95, 99) if has_all else (95,))]
        target = self.number("target")
        return [
            Text(f"{self.view['name']} ({self.view['kind']})" if self.view.get("kind") else self.view["name"]),
            Text(state, style=_TONES[state]),
            Text(self._pods()),
            Text.assemble(f"{self.number('running'):.1f} ", (_bar(self.load, target), "cyan")),
            Text(f"{self.number('held'):.1f}", style="yellow" if self.number("held") >= 1 else ""),
            Text(f"{target:g}" if target else "-"),
            Text("-" if rates[0] is None else f"{sum(rate or 0.0 for rate in rates):.1f}"),
            *([Text("-" if rates[2] is None else f"{rates[2]:.1f}")] if has_all else ()),
            Text("-" if rates[3] is None else f"{rates[3]:.1f}", style="red" if rates[3] else ""),
            *(Text("-" if latency_s is None else f"{latency_s * 1000:.0f} ms") for latency_s in latencies_s),
            Text("panic", style="bold red") if self.number("is_panic") else Text("stable", style="dim"),
        ]

    def _state(self) -> str:
        if self.view["ready"] == "False":
            return "failed"
        if self.view["state"] != "Active":
            return "at zero"
        ready = self.number("ready")
        if ready and self.number("dormant") == ready:
            return "dormant"
        return "active" if ready else "starting"

    def _pods(self) -> str:
        # From the decision on the same line: the metric of the same name arrives up to a second later.
        ready, desired = self.number("ready"), self._numbers.get("desired")
        if self._decision is not None:
            desired = self._decision["wanted"]
        count = f"{ready:g}" if desired is None or desired == ready else f"{ready:g}→{desired:g}"
        dormant = self.number("dormant")
        return f"{count} ({dormant:g} dormant)" if 0 < dormant < ready else count


def _bar(load: float, target: float) -> str:
    return _BARS[min(8, round(8 * load / target))] if target else _BARS[0]


def _sentence_of(decision: Mapping[str, Any]) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(decision['at_s']))} {decision['sentence']}"
