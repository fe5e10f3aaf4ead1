import pytest

from serving.core.model.errors import InvalidValue
from serving.net.cluster.kinds import KINDS, NODE, POD, POD_METRICS, SERVICE, SERVING_SERVICE, UNUSED_KINDS
from serving.tools.cli.client.resources import kind_named, known_words, path_of


def test_word_service_means_knative_service_and_svc_kubernetes_service() -> None:
    assert {kind_named(word) for word in ("service", "services", "ksvc", "Services.serving.knative.dev")} == {
        SERVING_SERVICE
    }
    assert kind_named("svc") == SERVICE
    assert kind_named("po") == POD


def test_every_kind_is_reachable_by_a_known_word() -> None:
    assert {kind_named(word) for word in known_words()} == set(KINDS) - {POD_METRICS, *UNUSED_KINDS}


@pytest.mark.parametrize("word", ["frob", "a"])
def test_an_unknown_kind_is_reported_with_a_few_examples(word: str) -> None:
    with pytest.raises(InvalidValue) as raised:
        kind_named(word)
    assert str(raised.value) == f"'{word}' is not a kind such as services, revisions, routes, pods, nodes or events"


def test_unknown_kind_is_reported_with_the_nearest_word() -> None:
    with pytest.raises(InvalidValue, match=r"'leasse' is not a kind; the nearest is lease$"):
        kind_named("leasse")


def test_resource_paths_match_the_kubernetes_api() -> None:
    assert path_of(POD, "a b", "p/q", subresource="log") == "/api/v1/namespaces/a%20b/pods/p%2Fq/log"
    assert path_of(SERVING_SERVICE, None) == "/apis/serving.knative.dev/v1/services"
    assert path_of(NODE, "default", "n") == "/api/v1/nodes/n"
