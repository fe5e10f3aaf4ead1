"""What a revision can be scaled on: the record of one load metric.

A load metric turns one source's report into that source's part of the load. The parts of all sources add up to the load of
the revision, which is divided by the target of one pod. **A new load metric is one file beside this one and one line in
the table of** ``table.py``.
"""

from collections.abc import Callable

import msgspec

from serving.model.stat import Stat


class LoadMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One load metric. ``name`` is the value of the annotation ``autoscaling.knative.dev/metric``."""

    name: str
    unit: str
    """The unit of the load in messages, in the plural: "in flight"."""

    of_stat: Callable[[Stat], float]
    """The load that one report stands for, without what an activator reports too."""

    target_default: float | None = None
    """Load that one pod takes where no annotation says so. None: a setting of the autoscaler says it."""
