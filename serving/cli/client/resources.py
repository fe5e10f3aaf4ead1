"""Kinds by the words that people use, and where the API has them."""

import difflib
from urllib.parse import quote

from serving.cluster.kinds import KINDS, POD_METRICS, SERVING_SERVICE, UNUSED_KINDS, Kind
from serving.model.errors import InvalidValue


def _words(kind: Kind) -> tuple[str, ...]:
    return (kind.plural, kind.name.lower(), *kind.short_names, kind.resource)


# The first that has a word keeps it: a service is Knative's, Kubernetes' own is "svc".
_USED = [kind for kind in KINDS if kind not in {SERVING_SERVICE, POD_METRICS, *UNUSED_KINDS}]
_KINDS = (SERVING_SERVICE, *_USED, POD_METRICS)
_BY_WORD: dict[str, Kind] = {}
for _kind in _KINDS:
    for _word in _words(_kind):
        _BY_WORD.setdefault(_word, _kind)


def known_words() -> list[str]:
    """One word for each kind, in the order in which people look for them."""
    return [next(word for word in _words(kind) if _BY_WORD[word] == kind) for kind in _KINDS if kind != POD_METRICS]


def kind_named(word: str) -> Kind:
    """The kind that a person means by "services", "ksvc", "revision" or "pods". Raises ``InvalidValue``."""
    found = _BY_WORD.get(word.lower())
    if found is None:
        near = difflib.get_close_matches(word.lower(), _BY_WORD, n=1)
        expected = f"a kind; the nearest is {near[0]}" if near else f"a kind; known are {', '.join(known_words())}"
        raise InvalidValue(text=word, expected=expected)
    return found


def path_of(kind: Kind, namespace: str | None, name: str = "", *, subresource: str = "") -> str:
    """The path of objects of a kind in the API; ``namespace`` None is all of them."""
    parts = ["apis", kind.group, kind.version] if kind.group else ["api", kind.version]
    if kind.namespaced and namespace is not None:
        parts += ["namespaces", namespace]
    parts += [part for part in (kind.plural, name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)
