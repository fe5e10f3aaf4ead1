"""The nodes of ``serving top``: what pods ask for, what is in use, and how each scores for the next pod."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

_GIB = 2**30
_CORE_M = 1000
_FULL_RATIO = 0.9
_TONES = {"True": ("ready", "green"), "False": ("not ready", "red")}


def node_lines(nodes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The nodes of a dashboard's state of which anything is known, best score first."""
    known = ("cpu_millicores", "memory_bytes", "requested_millicores", "requested_bytes")
    found = [one for one in nodes.get("lines", ()) if any(one[name] for name in known)]
    return sorted(found, key=lambda one: (-(one["score"] or 0.0), one["name"]))


def node_table(lines: Sequence[Mapping[str, Any]], *, is_roomy: bool) -> Table:
    """A row a node. Amounts are of pods' requests and of what is used, out of what the node has."""
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("NODE", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("STATE", no_wrap=True)
    for name in ("PODS", "CPU ASKED", "CPU USED", *(("CORES",) if is_roomy else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("MEM ASKED", "MEM USED", *(("GIB",) if is_roomy else ())):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("SCORE", justify="right", no_wrap=True)
    for one in lines:
        table.add_row(*_cells(one, is_roomy=is_roomy))
    return table


def _cells(one: Mapping[str, Any], *, is_roomy: bool) -> list[Text]:
    state, tone = _TONES.get(one["ready"], ("unknown", "yellow"))
    used = one["used"] or {}
    cells = [Text(one["name"]), Text(state, style=tone), Text(f"{one['pod_count']}")]
    for asked, name, unit in (
        (one["requested_millicores"], "cpu_millicores", _CORE_M),
        (one["requested_bytes"], "memory_bytes", _GIB),
    ):
        cells += [_amount(asked, one[name], unit), _amount(used.get(name), one[name], unit)]
        if is_roomy:
            cells.append(Text(f"{one[name] / unit:.3g}" if one[name] else "-"))
    return [*cells, Text("-" if one["score"] is None else f"{one['score']:g}")]


def _amount(part: int | None, whole: int, unit: int) -> Text:
    """An amount with its share of the whole, where it is known: "1.8 46%"."""
    if part is None:
        return Text("-")
    ratio = part / whole if whole else 0.0
    share = f" {ratio:4.0%}" if whole else ""
    return Text(f"{part / unit:.2g}{share}", style="red" if ratio >= _FULL_RATIO else "")
