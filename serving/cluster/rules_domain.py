"""Rules on a DomainMapping, as CEL and in Python; ``rules.py`` says how the two belong together.

Follows knative/serving 98e5ef90, pkg/apis/serving/v1beta1/domainmapping_validation.go: the name is a host of at least two
labels that is not below the cluster domain, and the reference stays in the namespace of the mapping. CEL cannot see the
namespace of an object, so the last rule is Python's alone; on a real API server the controller reports it as a condition.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from serving.cluster.kinds import DOMAIN_MAPPING, Kind
from serving.model.errors import Problem

__all__ = ["DOMAIN_RULES"]

_KINDS = (DOMAIN_MAPPING,)
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_LABEL}([.]{_LABEL})+\Z")
_CLUSTER_DOMAIN = ".cluster.local"

# JSON values come as they are.
# ruff: noqa: ANN401


def _name_is_a_host(self: Any, _: Any, __: str) -> Iterator[Problem]:
    metadata = self.get("metadata", {})
    name = metadata.get("name", "")
    if not _HOST.match(name):
        expected = "a host of at least two labels, such as shop.example.com"
        yield Problem(where="metadata.name", what=f'invalid name "{name}"', expected=expected)


def _name_is_not_local(self: Any, _: Any, __: str) -> Iterator[Problem]:
    name = self.get("metadata", {}).get("name", "")
    if name.endswith(_CLUSTER_DOMAIN):
        what = f'invalid name "{name}": must not be a subdomain of the cluster local domain "cluster.local"'
        yield Problem(where="metadata.name", what=what, expected="a host outside the cluster domain")


def _names_an_object(self: Any, _: Any, path: str) -> Iterator[Problem]:
    for key in ("kind", "name"):
        if not self.get(key):
            yield Problem(where=f"{path}.{key}", what="missing field(s)", expected="the kind and name of an object")


def _names_a_group(self: Any, _: Any, path: str) -> Iterator[Problem]:
    if not self.get("apiVersion") and not self.get("group"):
        expected = "an API version, such as serving.knative.dev/v1"
        yield Problem(where=f"{path}.apiVersion", what="missing field(s)", expected=expected)


def _stays_in_its_namespace(self: Any, _: Any, __: str) -> Iterator[Problem]:
    own, given = self.get("metadata", {}).get("namespace", ""), self.get("spec", {}).get("ref", {}).get("namespace")
    if given and own and given != own:
        what = f'mismatched namespaces: parent namespace: "{own}" does not match ref: "{given}"'
        yield Problem(where="spec.ref.namespace", what=what, expected=f"{own}, or nothing")


_Row = tuple[str, tuple[Kind, ...], str, str, str, Callable[[Any, Any, str], Iterator[Problem]]]

DOMAIN_RULES: tuple[_Row, ...] = (
    (
        "name-is-a-host",
        _KINDS,
        "",
        f"self.metadata.name.matches('^{_LABEL}([.]{_LABEL})+$')",
        "metadata.name: must be a host of at least two labels, such as shop.example.com",
        _name_is_a_host,
    ),
    (
        "name-is-not-local",
        _KINDS,
        "",
        f"!self.metadata.name.endsWith('{_CLUSTER_DOMAIN}')",
        "metadata.name: must not be below the cluster domain cluster.local",
        _name_is_not_local,
    ),
    (
        "ref-names-an-object",
        _KINDS,
        "spec.ref",
        "self.kind != '' && self.name != ''",
        "ref: kind and name must not be empty",
        _names_an_object,
    ),
    (
        "ref-names-a-group",
        _KINDS,
        "spec.ref",
        "(has(self.apiVersion) && self.apiVersion != '') || (has(self.group) && self.group != '')",
        "ref: apiVersion must not be empty",
        _names_a_group,
    ),
    ("ref-stays-in-its-namespace", _KINDS, "", "", "ref: must be in the same namespace", _stays_in_its_namespace),
)
