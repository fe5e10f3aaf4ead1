"""Rules on the traffic of a Service or Route, as CEL and in Python; ``rules.py`` says how the two belong together."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from serving.cluster.kinds import ROUTE, SERVING_SERVICE, Kind
from serving.model.errors import Problem

__all__ = ["TRAFFIC_RULES"]

_BOTH = (SERVING_SERVICE, ROUTE)
_TAG = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_TAG_LENGTH_MAX = 63
_ALL_PERCENT = 100

# JSON values come as they are.
# ruff: noqa: ANN401


def _sum_is_100(self: Any, _: Any, path: str) -> Iterator[Problem]:
    total = sum(target.get("percent", 0) for target in self.get("traffic", ()))
    if total != _ALL_PERCENT:
        what = f"Traffic targets sum to {total}, want 100"
        yield Problem(where=f"{path}.traffic", what=what, expected="percentages that sum to 100")


def _tags_differ(self: Any, _: Any, path: str) -> Iterator[Problem]:
    tags = Counter(target["tag"] for target in self if target.get("tag"))
    for tag, count in tags.items():
        if count > 1:
            places = ", ".join(f"{path}[{i}].tag" for i, target in enumerate(self) if target.get("tag") == tag)
            yield Problem(where=places, what=f'Multiple definitions for "{tag}"', expected="each tag once")


def _percent_is_a_share(self: Any, _: Any, path: str) -> Iterator[Problem]:
    percent = self.get("percent", 0)
    if not 0 <= percent <= _ALL_PERCENT:
        what = f"expected 0 <= {percent} <= 100"
        yield Problem(where=f"{path}.percent", what=what, expected="0 to 100")


def _latest_agrees(self: Any, _: Any, path: str) -> Iterator[Problem]:
    latest = self.get("latestRevision")
    if latest is not None and latest == bool(self.get("revisionName")):
        where, shown = f"{path}.latestRevision", str(latest).lower()
        expected = "true without a revisionName, false with one"
        yield Problem(where=where, what=f"invalid value: {shown}", expected=expected)


def _no_configuration(self: Any, _: Any, path: str) -> Iterator[Problem]:
    if self.get("configurationName"):
        what = "must not set the field(s)"
        yield Problem(where=f"{path}.configurationName", what=what, expected="a Service's own configuration")


def _one_target(self: Any, _: Any, path: str) -> Iterator[Problem]:
    given = [bool(self.get(key)) for key in ("revisionName", "configurationName")]
    if all(given) or not any(given):
        what = f"expected exactly one, got {'both' if all(given) else 'neither'}"
        where = f"{path}.configurationName, {path}.revisionName"
        yield Problem(where=where, what=what, expected="a revision or a configuration")


def _tag_is_a_label(self: Any, _: Any, path: str) -> Iterator[Problem]:
    tag = self.get("tag", "")
    if tag and (not _TAG.match(tag) or len(tag) > _TAG_LENGTH_MAX):
        expected = "lower case letters, digits and '-', beginning with a letter, at most 63 characters"
        yield Problem(where=f"{path}.tag", what=f"invalid value: {tag}", expected=expected)


def _no_url(self: Any, _: Any, path: str) -> Iterator[Problem]:
    if self.get("url"):
        what = "must not set the field(s)"
        yield Problem(where=f"{path}.url", what=what, expected="nothing: the url is for the status")


_GIVEN = "(has(self.{0}) && self.{0} != '')"

_Row = tuple[str, tuple[Kind, ...], str, str, str, Callable[[Any, Any, str], Iterator[Problem]]]

TRAFFIC_RULES: tuple[_Row, ...] = (
    (
        "traffic-sums-to-100",
        _BOTH,
        "spec",
        "has(self.traffic) && self.traffic.map(t, has(t.percent) ? t.percent : 0).sum() == 100",
        "traffic: targets must sum to 100",
        _sum_is_100,
    ),
    (
        "tags-differ",
        _BOTH,
        "spec.traffic",
        "self.all(t, !has(t.tag) || t.tag == '' || self.exists_one(o, has(o.tag) && o.tag == t.tag))",
        "multiple definitions of a tag",
        _tags_differ,
    ),
    (
        "percent-is-a-share",
        _BOTH,
        "spec.traffic[*]",
        "!has(self.percent) || (self.percent >= 0 && self.percent <= 100)",
        "percent: expected 0 <= percent <= 100",
        _percent_is_a_share,
    ),
    (
        "latest-agrees",
        _BOTH,
        "spec.traffic[*]",
        "!has(self.latestRevision) || self.latestRevision == (!has(self.revisionName) || self.revisionName == '')",
        "latestRevision: true without a revisionName, false with one",
        _latest_agrees,
    ),
    (
        "no-configuration",
        (SERVING_SERVICE,),
        "spec.traffic[*]",
        "!has(self.configurationName) || self.configurationName == ''",
        "must not set the field(s): configurationName",
        _no_configuration,
    ),
    (
        "one-target",
        (ROUTE,),
        "spec.traffic[*]",
        f"{_GIVEN.format('revisionName')} != {_GIVEN.format('configurationName')}",
        "expected exactly one of configurationName, revisionName",
        _one_target,
    ),
    (
        "tag-is-a-label",
        _BOTH,
        "spec.traffic[*]",
        "!has(self.tag) || self.tag == '' || (self.tag.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.tag) <= 63)",
        "tag: must be a DNS 1035 label",
        _tag_is_a_label,
    ),
    (
        "no-url",
        _BOTH,
        "spec.traffic[*]",
        "!has(self.url) || self.url == ''",
        "must not set the field(s): url",
        _no_url,
    ),
)
