"""Render docs/metrics.md from the table of names, so that the page cannot be wrong."""

from serving.metrics.names import BUCKETS_S, OLD_REVISION_LABELS, REVISION_LABELS, TABLES, Table
from serving.metrics.spec import MetricSpec

_HEAD = """\
# Metrics

Made by `make config` from `serving/metrics/names.py`; edit that. Each daemon has one page, `/metrics`, in Prometheus'
text or, where the Accept header asks, in OpenMetrics with exemplars. Dashboards, alert rules and a scrape configuration
are in `config/monitoring`.

Rows of a revision have the labels {labels},
and are gone when the revision is. With the setting `metrics-old-names` the autoscaler has a family once more under the
name that it had up to Knative 1.18, with {old_labels}; the activator
has `activator_request_count_total`. Histograms of time have the bounds
{bounds} s. Each page also has `process_*` and `python_info`.
"""


def render_page() -> str:
    """The whole page."""
    head = _HEAD.format(
        labels=_names(REVISION_LABELS),
        old_labels=_names(OLD_REVISION_LABELS),
        bounds=", ".join(f"{bound:g}" for bound in BUCKETS_S),
    )
    return "\n".join([head, *(_table(one) for one in TABLES)])


def _table(table: Table) -> str:
    rows = [_row(metric) for metric in table.metrics]
    head = ["| metric | kind | labels | meaning | up to Knative 1.18 |", "|---|---|---|---|---|"]
    return "\n".join([f"## {table.daemon}: {table.where}", "", *head, *rows, ""])


def _row(metric: MetricSpec) -> str:
    is_of_revision = metric.labels[: len(REVISION_LABELS)] == REVISION_LABELS
    rest = metric.labels[len(REVISION_LABELS) :] if is_of_revision else metric.labels
    labels = ", ".join([*(["revision's"] if is_of_revision else []), *(f"`{one}`" for one in rest)])
    old = f"`{metric.old_name}`" if metric.old_name else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help_text} | {old} |"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
