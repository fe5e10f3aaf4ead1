"""The page of an arena as Markdown and HTML: an overview, then figures and worst functions of each workload."""

import html
from collections.abc import Iterator, Sequence

import msgspec

from serving.tools.simulator.arena import CHANGES, ArenaRow, ArenaSection, Interval
from serving.tools.simulator.arenaplan import ArenaPlan

# Number of a policy's worst functions on the page.
_SHOWN_MAX = 5
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;border-bottom:1px solid #8884;text-align:right}td:first-child,th:first-child{text-align:left}"
    "div{overflow-x:auto}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)
_INTRODUCTION = (
    "A request is cold if a pod became ready while it waited, and late if it waited more than 10 ms; p99 wait is in seconds. Pod-seconds count "
    "from the creation of a pod to its end. Flaps are changes of direction of the scale in an hour. A cost is pod-seconds, and so many more for "
    "each cold request. The oracle and the clairvoyant know the future: their columns are cost and pod-seconds as multiples of theirs. ± is half "
    "of a 95 % interval over the seeds."
)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """A heading, a paragraph and a table. A part whose table has a header but no rows is left out."""

    level: int = 2
    title: str = ""
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def markdown(plan: ArenaPlan, sections: Sequence[ArenaSection]) -> str:
    """The page as Markdown."""
    return "\n".join(line for part in _shown(plan, sections) for line in _markdown_lines(part))


def html_page(plan: ArenaPlan, sections: Sequence[ArenaSection]) -> str:
    """The page as HTML without external resources."""
    body = "\n".join(line for part in _shown(plan, sections) for line in _html_lines(part))
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Arena</title><style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _shown(plan: ArenaPlan, sections: Sequence[ArenaSection]) -> list[_Part]:
    return [part for part in _parts(plan, sections) if part.rows or not part.header]


def _parts(plan: ArenaPlan, sections: Sequence[ArenaSection]) -> Iterator[_Part]:
    yield _Part(level=1, title="Scaling policies in the arena", text=_INTRODUCTION)
    yield _overview(plan, sections)
    for section in sections:
        yield _figures(section)
        yield _at_equal_pod_seconds(plan, section)
        yield _losers(plan.policies[0], section)
    rows = [[name, pin] for name, pin in {"seeds": f"1 to {plan.seeds}", **plan.pins}.items()]
    yield _Part(title="Run with", header=("", ""), rows=rows)


def _overview(plan: ArenaPlan, sections: Sequence[ArenaSection]) -> _Part:
    by_pair: dict[tuple[str, str], list[ArenaRow]] = {}
    for section in sections:
        for row in section.rows:
            if row.policy in plan.policies[1:]:
                by_pair.setdefault((section.workload, row.policy), []).append(row)
    first = plan.policies[0]
    rows = []
    for (workload, policy), cells in by_pair.items():
        changes = [_range([cell.changes[name] for cell in cells]) for name in CHANGES]
        worst = max((cell.functions for cell in cells if cell.functions), key=lambda worst: worst.worse, default=None)
        functions = "" if worst is None else f"{worst.worse} of {worst.functions}"
        broken = sorted({rule for cell in cells for rule in cell.broken_rules})
        count = sum(bool(cell.broken_rules) for cell in cells)
        verdict = f"{count} of {len(cells)} ({', '.join(broken)})" if broken else f"0 of {len(cells)}"
        rows.append([workload, policy, *changes, functions, verdict])
    text = (
        f"Changes against {first}; over several starts and limits the lowest to the highest. Functions are worse with over 10 % more cold "
        "requests and pod-seconds both. A run is worse with more cold requests and pod-seconds, over 10 % more late requests, over 2 % more "
        "cost, or over 2 % of functions worse."
    )
    header = ("workload", "policy", *CHANGES, "functions worse", "runs worse")
    return _Part(title="Overview", text=text, header=header, rows=rows)


def _figures(section: ArenaSection) -> _Part:
    rows = [[row.policy, *(_figure(name, value) for name, value in row.figures.items())] for row in section.rows]
    limit = "no limit of requests a pod" if not section.limit else f"{section.limit} requests a pod"
    return _Part(
        title=f"{section.workload}: start of {section.start_s:g} s, {limit}",
        text=f"{section.functions} functions, {section.requests:,.0f} requests, {section.hours:g} hours.",
        header=("policy", *section.rows[0].figures),
        rows=rows,
    )


def _at_equal_pod_seconds(plan: ArenaPlan, section: ArenaSection) -> _Part:
    rows = []
    for policy, change in section.equal.items():
        changes = (change.cold_change, change.late_change, change.wait_p99_change, change.pod_seconds_change)
        rows.append([policy, *("-" if value is None else _percent(value) for value in changes), change.dial])
    header = ("pod-seconds of", "cold", "late", "p99 wait", "pod-seconds", "its dial")
    return _Part(level=3, title=f"{plan.equal_pod_seconds} at the pod-seconds of the others", header=header, rows=rows)


def _losers(first: str, section: ArenaSection) -> _Part:
    rows = []
    for row in section.rows:
        for change in () if row.functions is None else row.functions.worst[:_SHOWN_MAX]:
            if change.cost_change > 0:
                cold, pod_seconds = change.cold_requests, change.pod_seconds
                ranges = (f"{cold[0]:,} to {cold[1]:,}", f"{pod_seconds[0]:,.0f} to {pod_seconds[1]:,.0f}")
                rows.append([row.policy, change.name, *ranges])
    text = f"The functions whose cost grows most against {first}, over all seeds."
    header = ("policy", "function", "cold", "pod-seconds")
    return _Part(level=3, title="Functions that lose", text=text, header=header, rows=rows)


def _figure(name: str, interval: Interval) -> str:
    unit = "{:.2f}" if " of " in name or name == "p99 wait" else "{:,.1f}" if name == "flaps" else "{:,.0f}"
    unit = "{:.2%}" if name in {"late", "attained"} else unit
    value, half = unit.format(interval.mean), "" if interval.half is None else unit.format(interval.half)
    return value if not half.strip("0.%") else f"{value} ± {half}"


def _range(intervals: Sequence[Interval]) -> str:
    low, high = (_percent(bound(interval.mean for interval in intervals)) for bound in (min, max))
    if low != high:
        return f"{low} to {high}"
    half = intervals[0].half if len(intervals) == 1 else None
    return low if half is None or half < 0.005 else f"{low} ± {half:.0%}"


def _percent(change: float) -> str:
    text = f"{change:+.0%}"
    return "0%" if text in {"+0%", "-0%"} else text


def _markdown_lines(part: _Part) -> Iterator[str]:
    yield from (f"{'#' * part.level} {_markdown(part.title)}", "")
    if part.text:
        yield from (part.text, "")
    if part.rows:
        yield f"| {' | '.join(part.header)} |"
        yield "|---" * len(part.header) + "|"
        yield from (f"| {' | '.join(map(_markdown, row))} |" for row in part.rows)
        yield ""


def _html_lines(part: _Part) -> Iterator[str]:
    yield f"<h{part.level}>{html.escape(part.title)}</h{part.level}>"
    if part.text:
        yield f"<p>{html.escape(part.text)}</p>"
    if part.rows:
        yield "<div><table><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in part.header) + "</tr>"
        for row in part.rows:
            yield "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        yield "</table></div>"


def _markdown(text: str) -> str:
    """Escape a text of a trace or plan, so that Markdown shows it literally."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("`", "\\`")
