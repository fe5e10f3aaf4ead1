"""Applies the Pod Security Standards to every kind that holds a template of pods.

Pods of users other than admins must meet the level ``baseline``. A namespace's label
``pod-security.kubernetes.io/enforce`` sets a level for all users, and for the pods that controllers create.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from serving.controller.revisions.defaults import spec_with_defaults
from serving.core.model.errors import Forbidden, Invalid, Problem
from serving.core.model.knative import RevisionFields
from serving.core.model.objects import Object, annotations_of, labels_of, name_of, namespace_of, nested
from serving.core.settings.controller import ControllerSettings
from serving.home.pods.podstandards import (
    APPARMOR_PREFIX,
    BASELINE,
    LEVELS,
    PRIVILEGED,
    RESTRICTED,
    violation_text,
    violations_of,
)
from serving.home.schemas.patch import same_json
from serving.home.schemas.records import decoded
from serving.home.store.requester import may_run_programs
from serving.home.store.state import filter_of
from serving.home.store.tables import KindTable
from serving.net.cluster.kinds import CONFIGURATION, DEPLOYMENT, NAMESPACE, POD, REVISION, SERVING_SERVICE, Kind
from serving.net.cluster.port import Selection, Subresource

TEMPLATES: Mapping[Kind, tuple[str, ...]] = {
    **dict.fromkeys((SERVING_SERVICE, CONFIGURATION, DEPLOYMENT), ("spec", "template")),
    **dict.fromkeys((REVISION, POD), ()),
}
"""The location of each kind's pod template; () is the object itself."""

_PREFIX = "pod-security.kubernetes.io/"
_MODES = ("enforce", "audit", "warn")
_VERSION = re.compile(r"latest\Z|v1\.(0|[1-9]\d{0,4})\Z")
_VERSION_SUFFIX = "-version"
# Fields of a revision's template that do not belong to its pods, and fields that a scheduler sets.
_NOT_OF_PODS = frozenset(RevisionFields.__annotations__) | {"nodeName", "tolerations"}


def level_of(labels: Mapping[str, str], mode: str = "enforce") -> str:
    """The level in a namespace's labels. An unknown level counts as the strictest one, as in Kubernetes."""
    level = labels.get(_PREFIX + mode, PRIVILEGED)
    return level if level in LEVELS else RESTRICTED


def label_problems(labels: Mapping[str, str], old: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the changed labels of a namespace with an unknown level or version."""
    for mode in _MODES:
        for suffix, expected in (
            ("", "one of privileged, baseline, restricted"),
            (_VERSION_SUFFIX, '"latest" or "v1.x"'),
        ):
            key = f"{_PREFIX}{mode}{suffix}"
            text = labels.get(key)
            if text is None or text == old.get(key):
                continue
            if not (_VERSION.match(text) if suffix else text in LEVELS):
                what = f'Invalid value: "{text}": must be {expected}'
                yield Problem(where=f"metadata.labels[{key}]", what=what, expected=expected)


def _template_of(kind: Kind, whole: Object, features: ControllerSettings) -> Object:
    """The pod template of an object. A Service's template includes the security context of ``secure-pod-defaults``."""
    path = TEMPLATES[kind]
    template = nested(whole, *path) if path else whole
    if not isinstance(template, dict):
        return {}
    spec = template.get("spec")
    if kind in {SERVING_SERVICE, CONFIGURATION} and isinstance(spec, dict):
        return {**template, "spec": spec_with_defaults(spec, features)}
    return template


def _parts(template: Object) -> Object:
    """The parts of a template that Pod Security checks. A change of other parts needs no check."""
    spec = {key: value for key, value in (template.get("spec") or {}).items() if key not in _NOT_OF_PODS}
    annotations = {key: text for key, text in annotations_of(template).items() if key.startswith(APPARMOR_PREFIX)}
    return {"annotations": annotations, "spec": spec}


class PodSecurity:
    """Enforces the Pod Security Standards. ``tables`` are the stored objects, ``features`` the feature flags."""

    def __init__(
        self, tables: Callable[[Kind], KindTable], features: Callable[[], ControllerSettings] = ControllerSettings
    ) -> None:
        self._tables = tables
        self._features = features

    def check(
        self, kind: Kind, new: Object, old: Object | None = None, *, subresource: Subresource | None = None
    ) -> None:
        """Raise ``Forbidden`` for pods that violate the Pod Security Standards.

        The level is the stricter one of two: the level in the labels of the namespace, and Baseline for a user without
        the right to run programs. Unchanged parts are not checked, so that a user can scale another user's Deployment.
        Raises ``Invalid`` for an unknown level in a namespace's label.
        """
        if subresource is not None:
            return
        if kind == NAMESPACE:
            self._check_labels(new, old)
        if kind not in TEMPLATES:
            return
        level = max(
            (level_of(self._labels(namespace_of(new))), PRIVILEGED if may_run_programs() else BASELINE),
            key=LEVELS.index,
        )
        if level == PRIVILEGED:
            return
        template = _template_of(kind, new, self._features())
        if old is not None and same_json(_parts(_template_of(kind, old, self._features())), _parts(template)):
            return
        if text := violation_text(template, level):
            name = nested(new, "metadata", "generateName") or name_of(new)
            raise Forbidden(f'{kind.resource} "{name}" is forbidden: {text}')

    def warnings(self, kind: Kind, stored: Object) -> list[str]:
        """A sentence for each violation by an object, or by the pods of a namespace whose level has changed."""
        if kind == NAMESPACE:
            return self._namespace_warnings(stored)
        if kind not in TEMPLATES:
            return []
        level = level_of(self._labels(namespace_of(stored)), "warn")
        text = violation_text(_template_of(kind, stored, self._features()), level)
        return [text.replace("violates", "would violate", 1)] if text else []

    def _namespace_warnings(self, namespace: Object) -> list[str]:
        labels = labels_of(namespace)
        texts = [
            f"metadata.labels[{key}]: accepted without effect: {reason}"
            for key, reason in (
                *((f"{_PREFIX}{mode}{_VERSION_SUFFIX}", "the latest version is checked") for mode in _MODES),
                (f"{_PREFIX}audit", "the audit log has no annotations"),
            )
            if labels.get(key) not in {None, "latest"}
        ]
        level, pods = level_of(labels), Selection(kind=POD, namespace=name_of(namespace))
        if level == PRIVILEGED:
            return texts
        names: dict[str, list[str]] = {}
        for stored in self._tables(POD).select(filter_of(pods)):
            pod = decoded(stored.encoded)
            reasons = ", ".join(violation.reason for violation in violations_of(pod, level))
            if reasons:
                names.setdefault(reasons, []).append(name_of(pod))
        if names:
            what = f'existing pods in namespace "{name_of(namespace)}" violate the new PodSecurity enforce level'
            texts.append(f'{what} "{level}:latest"')
        return [*texts, *sorted(_of_pods(sorted(pods), reasons) for reasons, pods in names.items())]

    def _labels(self, namespace: str) -> Mapping[str, str]:
        stored = self._tables(NAMESPACE).objects.get(("", namespace))
        return {} if stored is None else stored.labels

    @staticmethod
    def _check_labels(new: Object, old: Object | None) -> None:
        problems = list(label_problems(labels_of(new), labels_of(old)))
        if problems:
            lines = ", ".join(f"{problem.where}: {problem.what}" for problem in problems)
            raise Invalid(f'{NAMESPACE.name} "{name_of(new)}" is invalid: {lines}', problems)


def _of_pods(names: Sequence[str], reasons: str) -> str:
    others = len(names) - 1
    more = f" (and {others} other {'pod' if others == 1 else 'pods'})" if others else ""
    return f"{names[0]}{more}: {reasons}"
