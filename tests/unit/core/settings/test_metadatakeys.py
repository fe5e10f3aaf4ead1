import pytest

from serving.core.model.objects import Object
from serving.core.settings.metadatakeys import check_keys, places_of_keys

VISIBILITY = "networking.knative.dev/visibility"
TEMPLATE = "spec.template.metadata"


def with_keys(place: str, **texts: str) -> Object:
    """An object with labels or annotations at a place such as "spec.template.metadata.labels"."""
    body: Object = texts
    for key in reversed(place.split(".")):
        body = {key: body}
    return body


def problems(kind: str, place: str, key: str, text: str = "x") -> list[str]:
    return [problem.what for problem in check_keys(kind, with_keys(place, **{key: text})).problems]


@pytest.mark.parametrize(("key", "place"), sorted(places_of_keys().items()))
def test_known_key_is_accepted_only_at_its_place(key: str, place: str) -> None:
    value = "cluster-local"
    assert problems("Service", place, key, value) == []
    for other in {"metadata.labels", "metadata.annotations", f"{TEMPLATE}.labels", f"{TEMPLATE}.annotations"} - {place}:
        (what,) = problems("Service", other, key, value)
        assert what.startswith(f'invalid key name "{key}": {other}: ')
        assert f'must be put under "{place}"' in what


@pytest.mark.parametrize("kind", ["Service", "Route", "Configuration"])
def test_unknown_visibility_value_is_rejected(kind: str) -> None:
    assert problems(kind, "metadata.labels", VISIBILITY, "cluster-local") == []
    for text in ("cluster_local", "Cluster-Local", "private", ""):
        (what,) = problems(kind, "metadata.labels", VISIBILITY, text)
        assert what.startswith(f"invalid value: {text}: metadata.labels.{VISIBILITY}: expected cluster-local")


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("networking.knative.dev/visibilty", VISIBILITY),
        ("networking.knative.dev/Visibility", VISIBILITY),
        ("serving.knative.dev/visibility", VISIBILITY),
        ("networking.knative/visibility", VISIBILITY),
        ("networking.serving.dev/visibility", VISIBILITY),
        ("autoscaling.knative.dev/min_scale", "autoscaling.knative.dev/min-scale"),
        ("autoscaling.knative.dev/minscale", "autoscaling.knative.dev/min-scale"),
        ("autoscaling.knative.dev/max-scal", "autoscaling.knative.dev/max-scale"),
        ("autoscaling.knative.com/target", "autoscaling.knative.dev/target"),
        ("autoscalling.knative.dev/window", "autoscaling.knative.dev/window"),
        ("knative.dev/min-scale", "autoscaling.knative.dev/min-scale"),
        ("serving.dev/min-scale", "autoscaling.knative.dev/min-scale"),
        ("serving.dev/comand", "serving.dev/command"),
        ("serving.dev/allowFrom", "serving.dev/allow-from"),
        ("serving.dev/rollout-duration", "serving.knative.dev/rollout-duration"),
    ],
)
@pytest.mark.parametrize("place", ["metadata.labels", f"{TEMPLATE}.annotations"])
def test_misspelt_key_is_rejected_with_suggestion(key: str, suggestion: str, place: str) -> None:
    assert problems("Service", place, key) == [f'invalid key name "{key}": {place}: did you mean {suggestion}?']


@pytest.mark.parametrize(
    "key",
    [
        *("app", "visibility", "example.com/visibility", "run.googleapis.com/ingress", "prometheus.io/path"),
        *("eventing.knative.dev/class", "client.knative.dev/target", "features.knative.dev/policy"),
        *("networking.internal.knative.dev/rollout", "serving.knative.dev/creator", "serving.knative.dev/testlabel"),
        *("serving.kserve.io/metric", "kubernetes.io/target", "serving.knative.dev/", "/", ""),
    ],
)
def test_keys_of_other_groups_are_accepted(key: str) -> None:
    for place in ("metadata.labels", f"{TEMPLATE}.labels", f"{TEMPLATE}.annotations"):
        assert check_keys("Service", with_keys(place, **{key: "x"})).problems == ()


def test_any_scaling_annotation_outside_template_is_rejected() -> None:
    for kind in ("Service", "Route", "Configuration"):
        (what,) = problems(kind, "metadata.annotations", "autoscaling.knative.dev/foo")
        assert what.endswith('autoscaling annotations must be put under "spec.template.metadata.annotations" to work')


def test_domain_mapping_accepts_only_networking_keys() -> None:
    assert problems("DomainMapping", "metadata.annotations", "networking.knative.dev/disable-auto-tls") == []
    for place, key in (
        ("metadata.labels", VISIBILITY),
        ("metadata.annotations", "serving.dev/access"),
        ("metadata.annotations", "autoscaling.knative.dev/min-scale"),
    ):
        (what,) = problems("DomainMapping", place, key, "cluster-local")
        assert what.endswith("of a Service to work")


def test_unknown_serving_key_is_a_warning() -> None:
    body = with_keys(f"{TEMPLATE}.annotations", **{"serving.dev/colour": "red", "serving.knative.dev/colour": "red"})
    assert check_keys("Service", body).warnings == (
        "spec.template.metadata.annotations[serving.dev/colour]: no such annotation; it has no effect",
    )
    labelled = with_keys("metadata.labels", **{"autoscaling.serving.dev/colour": "red"})
    assert check_keys("Service", labelled).warnings == (
        "metadata.labels[autoscaling.serving.dev/colour]: no such label; it has no effect",
    )


def test_unchanged_keys_of_stored_object_are_not_checked() -> None:
    old = with_keys("metadata.annotations", **{VISIBILITY: "cluster-local"})
    assert check_keys("Service", old, old).problems == ()
    assert check_keys("Service", with_keys("metadata.annotations", **{VISIBILITY: "other"}), old).problems


def test_other_kinds_and_malformed_objects_are_not_checked() -> None:
    assert problems("Revision", "metadata.labels", VISIBILITY) == []
    assert problems("Route", f"{TEMPLATE}.labels", VISIBILITY) == []
    assert check_keys("Service", {"spec": {"template": 5}}).problems == ()
    assert check_keys("Service", {"metadata": {"labels": {VISIBILITY: 5}}}).problems == ()
