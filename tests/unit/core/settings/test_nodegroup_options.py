"""Options of a node group as written in its file."""

from typing import Any

import pytest

from serving.core.model.errors import Problem, SettingsError
from serving.core.settings.nodegroup import ORIGINAL, NodeGroupQuirks, NodeGroupSettings
from serving.core.settings.nodegroup_options import (
    AwsOptions,
    aws_options_of,
    ignored_options,
    problems_of_node_group,
    read_node_group,
)

OPTIONS: dict[str, object] = {
    "name": "test",
    "label_key": "customer",
    "label_value": "shared",
    "cloud_provider_group_name": "asg",
    "min_nodes": 1,
    "max_nodes": 3,
    "taint_lower_capacity_threshold_percent": 60,
    "taint_upper_capacity_threshold_percent": 70,
    "scale_up_threshold_percent": 100,
    "slow_node_removal_rate": 1,
    "fast_node_removal_rate": 2,
    "soft_delete_grace_period": "10m",
    "hard_delete_grace_period": "1h10m",
    "scale_up_cool_down_period": "55m",
}


def without(*keys: str, **changes: object) -> dict[str, object]:
    return {key: value for key, value in {**OPTIONS, **changes}.items() if key not in keys}


def problems(**changes: object) -> tuple[Problem, ...]:
    return problems_of_node_group({**OPTIONS, **changes}, where="groups.yaml: test")


def original_count(*missing: str, **changes: object) -> int:
    return len(problems_of_node_group(without(*missing, **changes), where="", quirks=ORIGINAL))


def test_options_become_settings_in_seconds_and_counts() -> None:
    read = read_node_group({**OPTIONS, "max_node_age": "24h", "dry_mode": True, "max_nodes": "4"}, where="here")
    assert read == NodeGroupSettings(
        name="test",
        label_key="customer",
        label_value="shared",
        cloud_provider_group_name="asg",
        min_nodes=1,
        max_nodes=4,
        taint_lower_capacity_threshold_percent=60,
        taint_upper_capacity_threshold_percent=70,
        scale_up_threshold_percent=100,
        slow_node_removal_rate=1,
        fast_node_removal_rate=2,
        soft_delete_grace_period_s=600.0,
        hard_delete_grace_period_s=4200.0,
        scale_up_cool_down_period_s=3300.0,
        max_node_age_s=86400.0,
        dry_mode=True,
    )


def test_quirks_are_read() -> None:
    read = read_node_group({**OPTIONS, "quirks": {"lock_stops_reaping": True}}, where="here")
    assert read.quirks == NodeGroupQuirks(lock_stops_reaping=True)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        read_node_group(without("name", min_nodes=-1, soft_delete_grace_period="10 minutes"), where="g")
    assert [problem.where for problem in caught.value.problems] == [
        "g: name",
        "g: min_nodes",
        "g: soft_delete_grace_period",
    ]


def test_problem_has_place_defect_and_expected_value() -> None:
    assert problems(soft_delete_grace_period="10 minutes") == (
        Problem(
            where="groups.yaml: test: soft_delete_grace_period",
            what="'10 minutes' is not right",
            expected="a duration above 0s",
        ),
    )
    assert problems(taint_lower_capacity_threshold_percent=70)[0].where == (
        "groups.yaml: test: taint_lower_capacity_threshold_percent"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("label_key", None),
        ("min_nodes", "one"),
        ("min_nodes", True),
        ("min_nodes", 1.5),
        ("max_nodes", [1]),
        ("dry_mode", 1),
        ("dry_mode", "maybe"),
        ("name", 5),
        ("soft_delete_grace_period", 600),
        ("soft_delete_grace_period", "0s"),
        ("soft_delete_grace_period", ""),
        ("slow_node_removal_rate", None),
        ("slow_node_removal_rate", -1),
        ("scale_up_threshold_percent", None),
        ("taint_effect", "Never"),
        ("max_node_age", "a day"),
        ("unhealthy_node_grace_period", "0s"),
        ("drain_grace_period", "-1s"),
        ("scale_up_failure_threshold", -1),
        ("aws", {"lifecycle": "sport"}),
        ("aws", "spot"),
        ("quirks", {"no_such": True}),
    ],
)
def test_each_invalid_option_is_reported_once(key: str, value: object) -> None:
    assert len(problems(**{key: value})) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("taint_effect", ""),
        ("taint_effect", "NoExecute"),
        ("max_node_age", ""),
        ("max_node_age", "0"),
        ("max_node_age", "-1h"),
        ("unhealthy_node_grace_period", ""),
        ("dry_mode", "true"),
        ("aws", {"lifecycle": "spot", "instance_type_overrides": ["t2.large"], "resource_tagging": True}),
        ("aws", None),
        ("scale_up_failure_threshold", 0),
    ],
)
def test_valid_option_is_accepted(key: str, value: object) -> None:
    assert problems(**{key: value}) == ()


def test_unknown_option_is_ignored_with_suggestion() -> None:
    options: dict[Any, object] = {
        **OPTIONS,
        "max_node": 4,
        "zzz": 4,
        5: 6,
        "aws": {"lifecicle": "spot", "lifecycle": "spot"},
    }
    assert problems_of_node_group(options, where="g") == ()
    ignored = ignored_options(options, where="g")
    assert [problem.where for problem in ignored] == ["g: max_node", "g: zzz", "g: 5", "g: aws.lifecicle"]
    assert [problem.expected for problem in ignored][::3] == ["max_nodes, perhaps", "lifecycle, perhaps"]
    assert ignored[1].expected.startswith("one of name, ")
    assert aws_options_of(options) == AwsOptions(lifecycle="spot")


def test_known_options_are_not_reported_as_ignored() -> None:
    assert ignored_options({**OPTIONS, "aws": "spot", "quirks": {"no_such": True}}, where="g") == ()


@pytest.mark.parametrize(
    ("newest", "most", "count"),
    [(1, 0, 0), (100, 99, 0), (0, 0, 1), (101, 0, 1), (50, -1, 1), (50, 100, 1), (0, 100, 2)],
)
def test_health_percentages_are_validated_only_with_health_grace(newest: int, most: int, count: int) -> None:
    percentages = {"health_check_newest_nodes_percent": newest, "max_unhealthy_nodes_percent": most}
    assert len(problems(unhealthy_node_grace_period="5m", **percentages)) == count
    assert problems(**percentages) == ()


def test_invalid_health_grace_is_the_only_problem() -> None:
    assert len(problems(unhealthy_node_grace_period="soon")) == 1


@pytest.mark.parametrize(
    ("missing", "changes", "count"),
    [
        ((), {}, 0),
        (("name", "label_key", "label_value", "cloud_provider_group_name"), {}, 4),
        (("soft_delete_grace_period",), {}, 2),
        (("hard_delete_grace_period",), {}, 3),
        (("soft_delete_grace_period", "hard_delete_grace_period"), {}, 5),
        (("scale_up_cool_down_period",), {}, 2),
        ((), {"hard_delete_grace_period": "10 hours"}, 2),
        ((), {"soft_delete_grace_period": "10 minutes"}, 1),
        ((), {"soft_delete_grace_period": "-1m"}, 1),
        ((), {"taint_upper_capacity_threshold_percent": 0}, 2),
        ((), {"taint_lower_capacity_threshold_percent": 0}, 1),
        (("scale_up_threshold_percent",), {}, 2),
        (("slow_node_removal_rate", "fast_node_removal_rate"), {}, 0),
        (("fast_node_removal_rate",), {}, 1),
        (("min_nodes", "max_nodes"), {}, 0),
        ((), {"min_nodes": -1, "max_nodes": -1}, 3),
        ((), {"max_nodes": -1}, 2),
        ((), {"min_nodes": 3}, 1),
        ((), {"unhealthy_node_grace_period": "soon"}, 2),
        ((), {"unhealthy_node_grace_period": "5m"}, 1),
        ((), {"max_node_age": "soon"}, 1),
    ],
)
def test_original_reports_one_problem_per_failed_predicate(
    missing: tuple[str, ...], changes: dict[str, object], count: int
) -> None:
    assert original_count(*missing, **changes) == count


def test_problems_are_in_order_of_checks_of_original() -> None:
    unknown_last = {**dict.fromkeys(OPTIONS, ""), "quirks": 1}
    keys = [
        problem.where.removeprefix("x: ")
        for problem in problems_of_node_group(unknown_last, where="x", quirks=ORIGINAL)
    ]
    assert keys == [
        "quirks",
        "name",
        "label_key",
        "label_value",
        "cloud_provider_group_name",
        "taint_upper_capacity_threshold_percent",
        "taint_lower_capacity_threshold_percent",
        "scale_up_threshold_percent",
        "taint_lower_capacity_threshold_percent",
        "taint_upper_capacity_threshold_percent",
        "soft_delete_grace_period",
        "hard_delete_grace_period",
        "soft_delete_grace_period",
        "hard_delete_grace_period",
        "soft_delete_grace_period",
        "scale_up_cool_down_period",
        "scale_up_cool_down_period",
    ]


def test_null_aws_options_read_as_absent() -> None:
    nulls = {"lifecycle": None, "instance_type_overrides": None}
    assert problems(aws=nulls) == ()
    assert aws_options_of({"aws": nulls}) == AwsOptions()
