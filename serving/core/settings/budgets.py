"""Reads budgets over several revisions, such as "20 pods, shop=8Gi": for the whole system, and for single namespaces.

``read_budgets`` turns the setting into records, by which ``scaling/budget.py`` divides pods.
"""

import functools
import re
from collections.abc import Mapping

import msgspec

from serving.core.model.errors import InvalidValue
from serving.core.model.objects import is_dns_label
from serving.core.model.quantity import format_bytes, parse_bytes
from serving.core.settings.knob import Unit

_PODS = re.compile(r"([1-9][0-9]{0,6}) pods?", re.ASCII)
_EXPECTED = '"20 pods" or an amount of memory such as "8Gi", each once; with the name of a namespace for its pods only: "20 pods, shop=8Gi"'
# A number without a unit would mean bytes, which is never intended.
_MEMORY_MIN_BYTES = 1 << 20


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit for several revisions together: pods, or requested memory in bytes."""

    amount: int
    is_memory: bool = False

    @property
    def text(self) -> str:
        """The budget as text: "20 pods" or "8Gi"."""
        return format_bytes(self.amount) if self.is_memory else f"{self.amount} pod{'s' * (self.amount != 1)}"

    def price_of(self, pod_bytes: int) -> int:
        """How much of the budget one pod uses."""
        return pod_bytes if self.is_memory else 1


Limits = tuple[tuple[str, Budget], ...]
"""The budgets that apply to one revision, by scope, the widest first."""


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets by scope: a namespace, or "" for the whole system."""

    by_scope: Mapping[str, Budget] = {}

    def of(self, namespace: str) -> Limits:
        """The budgets that apply to revisions in a namespace."""
        return tuple((scope, self.by_scope[scope]) for scope in ("", namespace) if scope in self.by_scope)


@functools.lru_cache(64)
def read_budgets(text: str) -> Budgets:
    """Parse budgets. Raises ``InvalidValue``."""
    budgets: dict[str, Budget] = {}
    for part in filter(None, (entry.strip() for entry in text.split(","))):
        scope, is_scoped, written = part.rpartition("=")
        scope, written = scope.strip(), written.strip()
        pods = _PODS.fullmatch(written)
        try:
            amount = int(pods[1]) if pods else parse_bytes(written)
        except InvalidValue as error:
            raise InvalidValue(text=part, expected=_EXPECTED) from error
        is_named = bool(is_scoped) == is_dns_label(scope)
        if scope in budgets or not is_named or (not pods and amount < _MEMORY_MIN_BYTES):
            raise InvalidValue(text=part, expected=_EXPECTED)
        budgets[scope] = Budget(amount=amount, is_memory=not pods)
    return Budgets(by_scope=budgets)


def _checked(text: str) -> str:
    budgets = read_budgets(text).by_scope
    return ", ".join(f"{scope}={budget.text}" if scope else budget.text for scope, budget in sorted(budgets.items()))


BUDGETS = Unit(
    name="[budgets](budgets.md)", plain="budgets", read=_checked, read_plain=_checked, write=str, explains=True
)
