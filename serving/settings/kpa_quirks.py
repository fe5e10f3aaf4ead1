"""Behaviours of Knative's algorithm of today that users suffer from. Off by default; on, the original's to the bit.

Source: knative/serving 98e5ef90, pkg/autoscaler.
"""

import msgspec

__all__ = ["ORIGINAL", "KpaQuirks"]


class KpaQuirks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One flag a behaviour."""


ORIGINAL = KpaQuirks()
