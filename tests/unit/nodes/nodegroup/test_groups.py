"""Groups read from Escalator's file and from NodeGroup objects."""

from typing import Any

import pytest
import yaml

from serving.core.settings.nodegroup import NodeGroupQuirks
from serving.nodes.nodegroup.groups import group_of, groups_of_text, spec_of
from tests.unit.nodes.nodegroup.objects import GROUP_SPEC

# As in Escalator's own documentation.
ESCALATOR_FILE = """
node_groups:
  - name: "shared"
    label_key: "customer"
    label_value: "shared"
    cloud_provider_group_name: "asg"
    min_nodes: 1
    max_nodes: 10
    dry_mode: false
    taint_upper_capacity_threshold_percent: 40
    taint_lower_capacity_threshold_percent: 10
    slow_node_removal_rate: 1
    fast_node_removal_rate: 2
    scale_up_threshold_percent: 70
    scale_up_cool_down_period: 2m
    soft_delete_grace_period: 1m
    hard_delete_grace_period: 10m
    aws:
        fleet_instance_ready_timeout: 1m
        launch_template_id: lt-1
"""


def named(**spec: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"metadata": {"name": "shared"}, "spec": {**GROUP_SPEC, **spec}}


def test_escalator_file_is_accepted_unchanged() -> None:
    (group,) = groups_of_text(ESCALATOR_FILE, where="file").groups
    assert (group.settings.name, group.settings.max_nodes, group.settings.hard_delete_grace_period_s) == (
        "shared",
        10,
        600,
    )


def test_node_group_in_camel_case_equals_escalator_file() -> None:
    (written,) = groups_of_text(ESCALATOR_FILE, where="file").groups
    (group,) = group_of(named()).groups
    assert group.settings == written.settings
    (again,) = group_of({"metadata": {"name": "shared"}, "spec": spec_of(written.options)}).groups
    assert again.settings == written.settings
    assert spec_of(written.options)["aws"]["launchTemplateId"] == "lt-1"


def test_empty_file_has_no_groups() -> None:
    assert groups_of_text("", where="file") == groups_of_text("# nothing", where="file")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: [", "not YAML"),
        ("node_groups: !!bool x", "not YAML: this is no bool"),
        ("[]", "no list of node groups"),
        ("node_groups: none", "no list of node groups"),
        ("node_groups: [1]", "1 is not a mapping"),
    ],
)
def test_malformed_file_is_rejected_with_cause(text: str, what: str) -> None:
    (problem,) = groups_of_text(text, where="file").problems
    assert what in problem.what


def test_invalid_group_does_not_affect_valid_groups() -> None:
    whole = yaml.safe_load(ESCALATOR_FILE)
    (good,) = whole["node_groups"]
    wrong = {**good, "name": "wrong", "min_nodes": 20, "slow_node_removal_rate": 9, "colour": "red"}
    text = yaml.safe_dump({"node_groups": [wrong, good, good]})
    reading = groups_of_text(text, where="file")
    assert [group.settings.name for group in reading.groups] == ["shared"]
    assert [problem.where for problem in reading.problems] == [
        "file: node_groups[0] (wrong): min_nodes",
        "file: node_groups[0] (wrong): slow_node_removal_rate",
        "file: node_groups[2]",
    ]


def test_refused_group_has_name_and_all_problems() -> None:
    whole = yaml.safe_load(ESCALATOR_FILE)
    whole["node_groups"][0] |= {"min_nodes": 20, "colour": "red"}
    (refused,) = groups_of_text(yaml.safe_dump(whole), where="file").refused
    assert refused.name == "shared"
    assert [problem.where.rpartition(": ")[2] for problem in refused.problems] == ["min_nodes", "colour"]
    (refused,) = group_of(named(minNodes=20, colour="red")).refused
    assert [problem.where.rpartition(": ")[2] for problem in refused.problems] == ["minNodes", "colour"]


def test_unknown_key_is_ignored_and_reported() -> None:
    whole = yaml.safe_load(ESCALATOR_FILE)
    whole["other"] = 1
    whole["node_groups"][0] |= {"scale_up_cool_down_timeout": "10m"}
    whole["node_groups"][0]["aws"]["colour"] = "red"
    reading = groups_of_text(yaml.safe_dump(whole), where="file")
    place = "file: node_groups[0] (shared)"
    timeout, colour = f"{place}: scale_up_cool_down_timeout", f"{place}: aws.colour"
    assert [problem.where for problem in reading.ignored] == ["file: other", timeout, colour]
    (group,) = reading.groups
    assert [problem.where for problem in group.ignored] == [timeout, colour]
    spec = spec_of(group.options)
    assert spec.keys().isdisjoint({"name", "scaleUpCoolDownTimeout"})
    assert "colour" not in spec["aws"]
    (ignored,) = group_of(named(scaleUpCoolDownTimeout="10m")).ignored
    assert ignored.where == "NodeGroup shared: spec: scaleUpCoolDownTimeout"
    assert ignored.expected == "scaleUpCoolDownPeriod, perhaps"


def test_node_group_problems_have_camel_case_keys() -> None:
    problems = group_of(named(minNodes=20, softDeleteGracePeriod="1h", quirks={"noSuch": True})).problems
    assert [problem.where for problem in problems] == [
        "NodeGroup shared: spec: quirks",
        "NodeGroup shared: spec: minNodes",
        "NodeGroup shared: spec: softDeleteGracePeriod",
    ]
    assert "minNodes 20 is not at most maxNodes 10" in problems[1].what


def test_group_name_is_the_metadata_name() -> None:
    (group,) = group_of({"metadata": {"name": "mine"}, "spec": {**GROUP_SPEC, "name": "other"}}).groups
    assert group.settings.name == "mine"


def test_quirks_are_read_from_node_group_spec() -> None:
    spec: dict[str, Any] = {"quirks": {"lockStopsReaping": True}, "aws": {"launchTemplateId": "lt-1"}}
    (group,) = group_of(named(**spec)).groups
    assert group.settings.quirks == NodeGroupQuirks(lock_stops_reaping=True)
