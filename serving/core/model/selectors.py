"""Chooses names by labels: the most specific matching selector wins, then the alphabetically first name.

Follows knative/serving 98e5ef90, pkg/reconciler/route/config/domain.go and pkg/deployment/config.go.
"""

from collections.abc import Iterable, Mapping

import msgspec


class SelectedName(msgspec.Struct, frozen=True, kw_only=True):
    """A name, for objects that have all these ``labels``. Empty ``labels`` select all objects."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


def name_for(labels: Mapping[str, str], names: Iterable[SelectedName]) -> str | None:
    """The name for an object with these labels; None if no selector matches."""
    matching = [name for name in names if all(labels.get(key) == value for key, value in name.labels)]
    return min(matching, key=lambda name: (-len(name.labels), name.name)).name if matching else None
