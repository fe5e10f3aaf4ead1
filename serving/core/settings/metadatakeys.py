"""Checks labels and annotations with keys of Knative's or this project's domains. Pure.

Each key has an effect in one place: visibility is a label of a Service, scaling is an annotation of its template. A key
in another place, or one that differs from a known key by a few letters, has none: a service that was to be private is
public. So both are problems. A key of these domains that resembles no known key is a warning, as a later version may
know it.

The texts about visibility and scaling are Knative's (98e5ef90, pkg/apis/serving, metadata_validation.go).
"""

import difflib
import functools
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from serving.core.model.errors import Problem
from serving.core.model.knative import (
    ACCESS_ANNOTATION,
    ACCESS_TOKEN_VERSION_ANNOTATION,
    AFFINITY_ANNOTATION,
    ALLOW_FROM_ANNOTATION,
    AUTOSCALING_GROUP,
    CLUSTER_LOCAL,
    COMMAND_ANNOTATION,
    FOLDER_ANNOTATION,
    JWT_ANNOTATION,
    NAMED_PORT_ANNOTATION,
    NETWORK_ANNOTATION,
    NETWORKING_GROUP,
    NETWORKING_KEYS,
    OWN_AUTOSCALING_GROUP,
    OWN_GROUP,
    PATHS_ANNOTATION,
    PLACEHOLDER_PAGE_ANNOTATION,
    PRELOAD_MODULES_ANNOTATION,
    QUEUE_PROXY_ANNOTATION,
    ROLLOUT_CHECK_ANNOTATION,
    ROLLOUT_DURATION_ANNOTATION,
    ROUTE_BY_HEADER_ANNOTATION,
    SERVING_GROUP,
    SESSION_AFFINITY_ANNOTATION,
    SNAPSHOT_ANNOTATION,
    START_EVENTS_ANNOTATION,
    SYSTEM_KEYS,
    TCP_ANNOTATION,
    TEMPLATE_ANNOTATION,
    VISIBILITY_LABEL,
)
from serving.core.model.objects import Object, annotations_of, labels_of, nested
from serving.core.settings.annotations import known_annotations, spellings

LABELS, ANNOTATIONS = "metadata.labels", "metadata.annotations"
TEMPLATE_LABELS, TEMPLATE_ANNOTATIONS = f"spec.template.{LABELS}", f"spec.template.{ANNOTATIONS}"

# Similarity of a misspelt name in the same domain, as difflib's ratio: "min-scal" and "min-scale" have 0.94.
_NEAR_NAME = 0.8
# Similarity of a misspelt domain, if the name is a known one: "serving.knative.com" has 0.89.
_NEAR_DOMAIN = 0.8
SCALING_WORDS = f'autoscaling annotations must be put under "{TEMPLATE_ANNOTATIONS}" to work'
"""Knative's advice for scaling annotations on a Service itself."""
VISIBILITY_WORDS = f"expected {CLUSTER_LOCAL}, or no such label for a public service"
"""The advice for an invalid visibility."""

_OF_SERVICES: Final = frozenset(
    {
        *(
            ACCESS_ANNOTATION,
            ACCESS_TOKEN_VERSION_ANNOTATION,
            AFFINITY_ANNOTATION,
            ALLOW_FROM_ANNOTATION,
            JWT_ANNOTATION,
        ),
        *(NAMED_PORT_ANNOTATION, PLACEHOLDER_PAGE_ANNOTATION, ROLLOUT_CHECK_ANNOTATION, ROUTE_BY_HEADER_ANNOTATION),
        *(PATHS_ANNOTATION, SESSION_AFFINITY_ANNOTATION, START_EVENTS_ANNOTATION, TCP_ANNOTATION),
        *spellings(ROLLOUT_DURATION_ANNOTATION),
    }
)
_OF_PROCESSES: Final = frozenset(
    {
        *(COMMAND_ANNOTATION, FOLDER_ANNOTATION, NETWORK_ANNOTATION, PRELOAD_MODULES_ANNOTATION),
        *(QUEUE_PROXY_ANNOTATION, SNAPSHOT_ANNOTATION, TEMPLATE_ANNOTATION),
    }
)
_DOMAINS: Final = (AUTOSCALING_GROUP, NETWORKING_GROUP, OWN_AUTOSCALING_GROUP, OWN_GROUP, SERVING_GROUP)
# Keys of Knative that are similar to ours but not read here.
_PARENTS: Final = (".knative.dev", f".{OWN_GROUP}")
_OTHER_DOMAINS: Final = frozenset(
    f"{name}.knative.dev"
    for name in (
        *("autoscaling.internal", "networking.internal", "internal", "client", "eventing", "features", "flows"),
        *("function", "messaging", "operator", "samples", "sources", "queue.sidecar.serving"),
    )
)
_WITH_TEMPLATE: Final = frozenset({"Configuration", "Service"})
_MAPPING: Final = "DomainMapping"
_CHECKED: Final = _WITH_TEMPLATE | {_MAPPING, "Route"}


class CheckedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a key check: problems, which reject the object, and warnings."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


@functools.cache
def places_of_keys() -> Mapping[str, str]:
    """Where each key that users may write belongs: in labels, annotations, or the template's annotations."""
    return {
        VISIBILITY_LABEL: LABELS,
        **dict.fromkeys((*NETWORKING_KEYS, *_OF_SERVICES), ANNOTATIONS),
        **dict.fromkeys((*known_annotations(), *_OF_PROCESSES), TEMPLATE_ANNOTATIONS),
    }


def check_keys(kind: str, body: Object, old: Object | None = None) -> CheckedKeys:
    """Check the keys of an object or a part of it. Keys with an unchanged value in ``old`` are skipped."""
    problems: list[Problem] = []
    warnings: list[str] = []
    before = dict(_texts(kind, old or {}))
    for place, texts in _texts(kind, body):
        known = before.get(place, {})
        for key, text in texts.items():
            if known.get(key) != text and isinstance(text, str):
                problems.extend(_problems(kind, place, key, text=text))
                if _is_unknown(key) and _meant(key) is None:
                    warnings.append(f"{place}[{key}]: no such {_noun(place)}; it has no effect")
    return CheckedKeys(problems=tuple(problems), warnings=tuple(warnings))


def _texts(kind: str, body: Object) -> Iterator[tuple[str, Mapping[str, str]]]:
    if kind in _CHECKED:
        yield LABELS, labels_of(body)
        yield ANNOTATIONS, annotations_of(body)
    template = nested(body, "spec", "template")
    if kind in _WITH_TEMPLATE and isinstance(template, dict):
        yield TEMPLATE_LABELS, labels_of(template)
        yield TEMPLATE_ANNOTATIONS, annotations_of(template)


def _problems(kind: str, place: str, key: str, *, text: str) -> Iterator[Problem]:
    right = places_of_keys().get(key)
    if place == ANNOTATIONS and kind != _MAPPING and key.startswith(f"{AUTOSCALING_GROUP}/"):
        yield _bad_key(place, key, SCALING_WORDS, expected=f'"{TEMPLATE_ANNOTATIONS}"')
    elif right is None:
        meant = _meant(key)
        if meant is not None:
            yield _bad_key(place, key, f"did you mean {meant}?", expected=meant)
    elif place != right or (kind == _MAPPING and key not in NETWORKING_KEYS):
        yield _bad_key(place, key, place_words(right), expected=f'"{right}"')
    elif key == VISIBILITY_LABEL and text != CLUSTER_LOCAL:
        what = f"invalid value: {text}: {place}.{key}: {VISIBILITY_WORDS}"
        yield Problem(where=f"{place}.{key}", what=what, expected=CLUSTER_LOCAL)


def place_words(right: str) -> str:
    """Words that name the correct place of a key."""
    return f'it must be put under "{right}" of a Service to work'


def _bad_key(place: str, key: str, advice: str, *, expected: str) -> Problem:
    return Problem(where=place, what=f'invalid key name "{key}": {place}: {advice}', expected=expected)


def _noun(place: str) -> str:
    return "label" if place.endswith("labels") else "annotation"


def _is_unknown(key: str) -> bool:
    """Whether a key of this project is unknown. Knative's keys never are, because later versions may define them."""
    domain = key.rpartition("/")[0]
    return domain in {OWN_GROUP, OWN_AUTOSCALING_GROUP} and key not in places_of_keys() and key not in SYSTEM_KEYS


@functools.lru_cache(maxsize=1024)
def _meant(key: str) -> str | None:
    """The known key that is most similar to an unknown key; None if there is none, or if the key is known."""
    domain, _, name = key.rpartition("/")
    known = places_of_keys()
    if not domain or key in known or key in SYSTEM_KEYS or domain in _OTHER_DOMAINS:
        return None
    plain = plain_name(name)
    if domain in _DOMAINS:
        # Prefer "min-scale" to "minScale", which sorts after it.
        names = {plain_name(_name(word)): word for word in sorted(known, reverse=True) if word.startswith(f"{domain}/")}
        near = difflib.get_close_matches(plain, names, n=1, cutoff=_NEAR_NAME)
        if near:
            return names[near[0]]
    elif not _is_near_domain(domain.lower()):
        return None
    # The same name in another domain.
    same = (word for word in sorted(known) if plain_name(_name(word)) == plain)
    return max(
        same, key=lambda word: difflib.SequenceMatcher(None, domain, word.rpartition("/")[0]).ratio(), default=None
    )


def _is_near_domain(domain: str) -> bool:
    is_below = f".{domain}".endswith(_PARENTS)
    return is_below or bool(difflib.get_close_matches(domain, _DOMAINS, n=1, cutoff=_NEAR_DOMAIN))


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def plain_name(name: str) -> str:
    """The name in lower case without separators."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
