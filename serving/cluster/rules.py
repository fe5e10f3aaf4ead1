"""Rules that join several fields of a resource: each one once as CEL, for a real cluster, and once in Python, for ours.

The CEL stands in ``config/crd/*.yaml`` under the same path and message, and one table of cases in the tests holds the two
together. The Python twin says more than yes or no: every breach with its own path, worded as Knative's webhook words it
(knative.dev/pkg apis.FieldError: what is wrong, then where). Rules without CEL read what CEL cannot see.

What a rule says about pods stands in ``rules_pod.py``, about traffic in ``rules_traffic.py``; this module has the record,
the rules on names and on change, and the table of all.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from serving.cluster.kinds import CONFIGURATION, REVISION, ROUTE, SERVING_SERVICE, Kind
from serving.cluster.port import Object
from serving.cluster.rules_domain import DOMAIN_RULES
from serving.cluster.rules_pod import POD_RULES
from serving.cluster.rules_policy import POLICY_RULES
from serving.cluster.rules_traffic import TRAFFIC_RULES
from serving.model.errors import Problem

__all__ = ["REVISION_FIELDS", "RULES", "Rule", "breaches_of", "located", "rule_breaches"]

Check = Callable[[Any, Any, str], Iterator[Problem]]

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_LABEL_LENGTH_MAX = 63
_PART = re.compile(r"([^.\[\]]+)|\[\*\]")


class Rule(msgspec.Struct, frozen=True):
    """One rule: where it is attached, what it says in CEL, and the twin that finds each breach.

    ``at`` is a path from the root in which ``[*]`` is every item of a list; "" is the root. ``cel`` is "" where CEL
    cannot say it. ``on_change`` rules compare with the object before and are not asked where there was none.
    """

    name: str
    kinds: tuple[Kind, ...]
    at: str
    cel: str
    message: str
    check: Check
    on_change: bool = False


def rule_breaches(kind: Kind, new: Object, old: Object | None) -> Iterator[Problem]:
    """Every breach of every rule of a kind, each place by the first rule that it breaks. The object holds its schema."""
    told: set[str] = set()
    for rule in RULES:
        if kind in rule.kinds:
            found = [problem for problem in breaches_of(rule, new, old) if problem.where not in told]
            told.update(problem.where for problem in found)
            yield from found


def breaches_of(rule: Rule, new: Object, old: Object | None) -> Iterator[Problem]:
    """Every breach of one rule."""
    if rule.on_change and old is None:
        return
    before = dict(located(old, rule.at)) if rule.on_change else {}
    for path, value in located(new, rule.at):
        if not rule.on_change or path in before:
            yield from rule.check(value, before.get(path), path)


def located(value: object, at: str) -> list[tuple[str, Any]]:
    """All places that a path names, each with what is there; places that do not exist are left out."""
    found: list[tuple[str, Any]] = [("", value)]
    for key in _steps(at):
        if key is None:
            found = [
                (f"{path}[{index}]", item)
                for path, items in found
                if isinstance(items, list)
                for index, item in enumerate(items)
            ]
        else:
            found = [
                (f"{path}.{key}" if path else key, one[key])
                for path, one in found
                if isinstance(one, dict) and one.get(key) is not None
            ]
    return found


@functools.cache
def _steps(at: str) -> tuple[str | None, ...]:
    """The keys of a path, and None for every item of a list. There are as many paths as rules."""
    return tuple(match.group(1) for match in _PART.finditer(at))


def _name_is_a_label(self: Any, _: Any, __: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    name = self.get("metadata", {}).get("name", "")
    if not _DNS_1035.match(name) or len(name) > _LABEL_LENGTH_MAX:
        yield Problem(where="metadata.name", what=f"not a DNS 1035 label: {name!r}", expected=_LABEL)


def _own_revision_name(self: Any, _: Any, __: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    where = "spec.template.metadata.name"
    for _path, name in located(self, where):
        prefix = self["metadata"].get("name", "") + "-"
        if not name.startswith(prefix):
            what = f'invalid value: "{name}" must have prefix "{prefix}"'
            yield Problem(where=where, what=what, expected=f"a name that begins with {prefix}")
        if not _DNS_1035.match(name) or len(name) > _LABEL_LENGTH_MAX:
            yield Problem(where=where, what=f"not a DNS 1035 label: {name!r}", expected=_LABEL)


def _own_name_changes_with_the_spec(self: Any, old: Any, path: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    name = self.get("metadata", {}).get("name")
    if name and name == old.get("metadata", {}).get("name") and self.get("spec") != old.get("spec"):
        yield Problem(
            where=f"{path}.metadata.name",
            what=f"Saw changes of {path}.spec without a name change (from {name})",
            expected="a new name for each change, or none",
        )


_MUTABLE = "servingState"
# The fields of a revision's spec; those of a pod that are opaque to us are compared as a whole, too.
REVISION_FIELDS = (
    *("affinity", "automountServiceAccountToken", "containerConcurrency", "containers", "dnsConfig", "dnsPolicy"),
    *("enableServiceLinks", "hostAliases", "idleTimeoutSeconds", "imagePullSecrets", "initContainers", "nodeSelector"),
    *("priorityClassName", "responseStartTimeoutSeconds", "runtimeClassName", "schedulerName", "securityContext"),
    *("serviceAccountName", "shareProcessNamespace", "timeoutSeconds", "tolerations", "topologySpreadConstraints"),
    "volumes",
)


def _spec_stays(self: Any, old: Any, path: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    changed = sorted(
        key for key in {*self, *old} if key != _MUTABLE and (key in self, self.get(key)) != (key in old, old.get(key))
    )
    if changed:
        what = f"Immutable fields changed (-old +new): {', '.join(changed)}"
        yield Problem(where=path, what=what, expected="the spec that it was created with; only servingState may change")


def _retired_stays(self: Any, old: Any, path: str) -> Iterator[Problem]:  # noqa: ANN401 - JSON
    if old == "Retired" and self != "Retired":
        yield Problem(
            where=path, what=f"invalid value: {self}", expected="Retired: a retired revision never comes back"
        )


_LABEL = "lower case letters, digits and '-', beginning with a letter, not ending with '-', at most 63 characters"
_LABEL_CEL = "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63"

_TEMPLATED = (SERVING_SERVICE, CONFIGURATION)
_OWN_NAME = "self.spec.template.metadata.name"

RULES: tuple[Rule, ...] = (
    Rule(
        "name-is-a-label",
        (SERVING_SERVICE, CONFIGURATION, ROUTE, REVISION),
        "",
        _LABEL_CEL,
        f"metadata.name: not a DNS 1035 label: {_LABEL}",
        _name_is_a_label,
    ),
    Rule(
        "own-revision-name",
        _TEMPLATED,
        "",
        "!has(self.spec) || !has(self.spec.template) || !has(self.spec.template.metadata) || !has(self.spec.template.metadata.name) || "
        f"({_OWN_NAME}.startsWith(self.metadata.name + '-') && size({_OWN_NAME}) <= 63 && "
        f"{_OWN_NAME}.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$'))",
        "spec.template.metadata.name: must have the name and '-' as prefix, and be a DNS 1035 label",
        _own_revision_name,
    ),
    Rule(
        "own-revision-name-changes",
        _TEMPLATED,
        "spec.template",
        "!has(self.metadata) || !has(self.metadata.name) || !has(oldSelf.metadata) || !has(oldSelf.metadata.name) || "
        "self.metadata.name != oldSelf.metadata.name || self.spec == oldSelf.spec",
        "metadata.name: a template that names its revision must change the name with the spec",
        _own_name_changes_with_the_spec,
        on_change=True,
    ),
    Rule(
        "revision-spec-stays",
        (REVISION,),
        "spec",
        " && ".join(
            f"has(self.{one}) == has(oldSelf.{one}) && (!has(self.{one}) || self.{one} == oldSelf.{one})"
            for one in REVISION_FIELDS
        ),
        "Immutable fields changed: only servingState of a revision's spec may change",
        _spec_stays,
        on_change=True,
    ),
    Rule(
        "retired-stays",
        (REVISION,),
        "spec.servingState",
        "oldSelf != 'Retired' || self == 'Retired'",
        "a retired revision never comes back",
        _retired_stays,
        on_change=True,
    ),
    *(Rule(name, kinds, at, cel, message, check) for name, kinds, at, cel, message, check in POD_RULES),
    *(Rule(name, kinds, at, cel, message, check) for name, kinds, at, cel, message, check in TRAFFIC_RULES),
    *(Rule(name, kinds, at, cel, message, check) for name, kinds, at, cel, message, check in POLICY_RULES),
    *(Rule(name, kinds, at, cel, message, check) for name, kinds, at, cel, message, check in DOMAIN_RULES),
)
