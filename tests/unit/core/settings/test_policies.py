"""The admission policies and the annotation reader accept the same annotations."""

import copy
import re
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.model.errors import Invalid
from serving.core.model.knative import SERVING_GROUP
from serving.core.model.objects import Object
from serving.core.settings.annotations import annotation_fields, read_annotations
from serving.core.settings.autoscaler import AutoscalerSettings
from serving.core.settings.controller import ControllerSettings
from serving.core.settings.policies import render_policies
from serving.home.admission.admission import admit
from serving.home.schemas.crds import crds
from serving.net.cluster.kinds import CONFIGURATION, DOMAIN_MAPPING, REVISION, ROUTE, SERVING_SERVICE
from serving.tools.cli.client.tree import tree_folder
from tests.unit.config.policies import CASES, policies, refusals, service

FILES = ("annotations", "pods")
FIELDS = {field.knob.key: field for field in annotation_fields()}
# Texts that are valid for some annotations.
WORDS = st.sampled_from(
    [
        *(
            "0",
            "1",
            "-1",
            "+5",
            "3",
            "0.5",
            "100",
            "101",
            "1e3",
            "1e300",
            "2147483648",
            "999999999999999999",
            ".5",
            "5.",
            "many",
        ),
        *(
            "6s",
            "5s",
            "1h",
            "1h1s",
            "6.5s",
            "0",
            "-1s",
            "10",
            "1m30s",
            "99999999h",
            "1500ms",
            "7\u00b5s",
            "s",
            "",
            " 6s ",
            "'",
        ),
        *(
            "linear",
            "use",
            "learnt",
            "never",
            "only",
            "after=10s",
            "only,after=1s",
            "only,only",
            "adaptive",
            "rps",
            "gauge:a",
        ),
        *(
            "p95<300ms",
            "p99-wait<1s",
            "p40<1s",
            "p95<1h",
            "rps=5, gauge:x=1",
            "rps=",
            "heat=1",
            "POST /a, PUT /b",
            "GET /a",
        ),
        *(
            "500m",
            "2",
            "2000",
            "Ki",
            "kpa.autoscaling.knative.dev",
            "hpa.autoscaling.knative.dev",
            "a.knative.dev",
            "x.org",
        ),
    ]
)


def as_service(annotations: dict[str, str]) -> Object:
    return service(annotations)


def refused(new: Object, old: Object | None = None, params: Mapping[str, str] | None = None) -> list[str]:
    """The messages with which all policies reject a write."""
    return [text for file in FILES for text in refusals(file, new, old, params=params)]


def local_refusal(new: Object) -> str:
    """The message with which the local admission rejects an object."""
    try:
        admit(SERVING_SERVICE, new, is_one_machine=True, features=ControllerSettings())
    except Invalid as error:
        return str(error).partition(" is invalid: ")[2]
    return ""


def test_shipped_admission_file_equals_renderer_output() -> None:
    assert (tree_folder() / "admission" / "annotations.yaml").read_text() == render_policies()


@pytest.mark.parametrize("name", CASES)
def test_policies_reject_same_objects_as_local_admission(name: str) -> None:
    new, expected = CASES[name]
    results = refused(new)
    assert [text[: len(expected)] for text in results] == ([expected] if expected else [])
    assert local_refusal(copy.deepcopy(new)) == "".join(results)


@given(name=st.sampled_from(sorted(FIELDS)), text=WORDS)
def test_policies_reject_only_annotations_that_reader_rejects(name: str, text: str) -> None:
    reading = read_annotations({name: text}, AutoscalerSettings())
    results = refused(as_service({name: text}))
    if results:
        # CEL accepts values that it cannot read exactly, and rejects no valid value.
        assert reading.problems
    elif reading.problems:
        unit = FIELDS[name].knob.unit
        assert unit.form
        assert re.fullmatch(unit.form, text.strip(), re.ASCII)
        assert not unit.cel or not re.fullmatch(unit.exact, text.strip(), re.ASCII)


@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), WORDS, max_size=4))
def test_valid_annotations_are_accepted_together(annotations: dict[str, str]) -> None:
    if not read_annotations(annotations, AutoscalerSettings()).problems:
        assert refused(as_service(annotations)) == []


def test_policies_apply_values_of_config_autoscaler() -> None:
    both = as_service({"autoscaling.knative.dev/min-scale": "7", "autoscaling.knative.dev/max-scale": "12"})
    limit = "annotation autoscaling.knative.dev/max-scale: 12 is above max-scale-limit 10; expected at most 10"
    assert refused(both, params={"max-scale-limit": "10"}) == [limit]
    settings = msgspec.structs.replace(AutoscalerSettings(), max_scale_limit=10)
    problems = read_annotations(both["spec"]["template"]["metadata"]["annotations"], settings).problems
    assert [f"{problem.where}: {problem.what}; expected {problem.expected}" for problem in problems] == [limit]
    least = as_service({"autoscaling.knative.dev/min-scale": "12"})
    assert refused(least, params={"max-scale-limit": "10"})[0].startswith(
        "annotation autoscaling.knative.dev/min-scale: 12 is above"
    )
    zero = as_service({"autoscaling.knative.dev/initial-scale": "0"})
    assert refused(zero, params={"allow-zero-initial-scale": "True"}) == []
    any_metric = as_service({"autoscaling.knative.dev/metric": "heat"})
    assert refused(any_metric, params={"pod-autoscaler-class": "hpa.autoscaling.knative.dev"}) == []


def test_policies_apply_feature_flags() -> None:
    added = CASES["added capabilities"][0]
    assert refused(added, params={"kubernetes.containerspec-addcapabilities": "Allowed"}) == []
    assert refused(added, params={"kubernetes.containerspec-addcapabilities": "disabled"})
    folder = CASES["a folder of the node"][0]
    assert refused(folder, params={"kubernetes.podspec-volumes-hostpath": "enabled"}) == []
    assert refused(folder, params={"kubernetes.podspec-volumes-hostpath": "allowed"})


def test_unchanged_spec_is_not_checked() -> None:
    new, _ = CASES["a window below its range"]
    old = copy.deepcopy(new)
    assert refused(new, old) == []
    assert refused({**new, "metadata": {**new["metadata"], "generation": 2}}, old)
    rollout, _ = CASES["a rollout without a unit"]
    assert refused(rollout, copy.deepcopy(rollout)) == []


def test_revision_is_checked_when_scaling_annotation_changes() -> None:
    def revision(**annotations: str) -> Object:
        metadata = {"name": "r", "generation": 1, "annotations": annotations}
        pod = {"containers": [{"image": "x", "securityContext": {"privileged": True}}]}
        return {"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": metadata, "spec": pod}

    bad = revision(**{"autoscaling.knative.dev/window": "5s"})
    learnt = revision(**{"autoscaling.knative.dev/window": "5s", "autoscaling.serving.dev/learnt": "1"})
    own = revision(**{"serving.dev/dormant": "soon"})
    window = "annotation autoscaling.knative.dev/window: '5s' is not right; expected a duration from 6s to 1h, in whole seconds"
    privileged = "spec.containers[0].securityContext.privileged: must not set the field(s)"
    assert refused(bad) == [window, privileged]
    assert refused(bad, revision()) == [window]
    assert refused(learnt, bad) == []
    assert len(refused(own, revision())) == 1


def test_object_without_template_is_accepted() -> None:
    assert refused({**service(), "spec": {}}) == []
    assert refused({key: value for key, value in service().items() if key != "spec"}) == []


def test_policies_match_each_kind_that_has_their_annotations() -> None:
    rules = {
        policy["metadata"]["name"]: policy["spec"]["matchConstraints"]["resourceRules"]
        for policy in policies("annotations")
    }
    served = {kind for kind in crds() if kind.group == SERVING_GROUP}
    templated = {kind for kind in served if "template" in crds()[kind].schema["properties"]["spec"]["properties"]}
    expected = {
        # A Revision gets the annotations of the template.
        "serving-annotations": templated | {REVISION},
        "serving-rollout-duration": {SERVING_SERVICE, ROUTE},
        "serving-keys": templated | {ROUTE, DOMAIN_MAPPING},
    }
    assert templated == {SERVING_SERVICE, CONFIGURATION}
    assert rules == {
        name: [
            {
                "apiGroups": [SERVING_GROUP],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": sorted(kind.plural for kind in kinds),
            }
        ]
        for name, kinds in expected.items()
    }
