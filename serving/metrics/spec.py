"""What a metric is, before it has a value: name, kind, labels and meaning.

The tables of ``serving/metrics/names.py`` and of ``nodegroup_names.py`` are made of these. The module needs msgspec only, so that
the sidecar may import it.
"""

import enum

import msgspec


class MetricKind(enum.StrEnum):
    """What may happen to a value: only up, up and down, or counted by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One family of a page. ``help_text`` is its meaning in one sentence; ``old_name`` "" where it had none."""

    name: str
    kind: MetricKind
    help_text: str
    labels: tuple[str, ...] = ()
    old_name: str = ""
