import copy
import json

import pytest

from serving.core.model.objects import Object
from serving.home.admission.admission import admit
from serving.home.admission.kubedefaults import with_kube_defaults
from serving.home.store.requester import ADMIN_USER, acting_as
from serving.net.cluster.kinds import CONFIG_MAP, DEPLOYMENT, POD, SERVICE, Kind
from tests.conformance.record_answers import BY_RESOURCE, DEFAULTS

ANSWERS = [json.loads(line) for line in DEFAULTS.read_text().splitlines()]


def a_deployment() -> Object:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


@pytest.mark.parametrize("record", ANSWERS, ids=lambda record: record["name"])
def test_complete_objects_are_unchanged_by_defaults(record: Object) -> None:
    kind = BY_RESOURCE[record["resource"]]
    whole = {"metadata": {"name": "web"}, **record["answer"]}
    before = copy.deepcopy(whole)
    assert with_kube_defaults(kind, whole) == before
    assert whole == before


def test_only_user_written_deployments_get_defaults() -> None:
    assert "replicas" not in admit(DEPLOYMENT, a_deployment(), is_one_machine=True)["spec"]
    with acting_as(ADMIN_USER, manager="kubectl"):
        stored = admit(DEPLOYMENT, a_deployment(), is_one_machine=True)
        assert stored["spec"]["replicas"] == 1
        assert admit(DEPLOYMENT, stored, is_one_machine=True) == stored


def test_unchanged_pod_template_gets_no_defaults() -> None:
    old = a_deployment()
    labelled = {**old, "metadata": {"name": "web", "labels": {"c": "d"}}}
    assert with_kube_defaults(DEPLOYMENT, labelled, old) == labelled
    scaled = with_kube_defaults(DEPLOYMENT, {**old, "spec": {**old["spec"], "replicas": 3}}, old)
    assert (scaled["spec"]["replicas"], scaled["spec"]["template"]) == (3, old["spec"]["template"])


@pytest.mark.parametrize("kind", [POD, DEPLOYMENT, SERVICE, CONFIG_MAP])
@pytest.mark.parametrize(
    "spec", [None, 5, [], {"containers": 5, "template": [], "ports": [5], "strategy": {"rollingUpdate": 3}}]
)
def test_defaults_ignore_fields_of_wrong_type(kind: Kind, spec: object) -> None:
    filled = with_kube_defaults(kind, {"metadata": {"name": "web"}, "spec": spec})
    assert isinstance(spec, dict) or filled["spec"] == spec


def test_null_replicas_get_the_default() -> None:
    body = a_deployment()
    body["spec"]["replicas"] = None
    assert with_kube_defaults(DEPLOYMENT, body)["spec"]["replicas"] == 1
