"""Contradictions between the settings of a node group."""

import pytest

from serving.core.settings.nodegroup import ORIGINAL
from tests.unit.nodes.nodegroup.builders import SETTINGS, settings


def first_fields(**changes: object) -> list[str]:
    return [clash.fields[0] for clash in settings(**changes).check()]


def test_valid_settings_have_no_clash() -> None:
    assert list(SETTINGS.check()) == []


@pytest.mark.parametrize(
    ("field", "value", "blamed"),
    [
        ("taint_lower_capacity_threshold_percent", 40, "taint_lower_capacity_threshold_percent"),
        ("scale_up_threshold_percent", 40, "taint_upper_capacity_threshold_percent"),
        ("min_nodes", 31, "min_nodes"),
        ("max_nodes", 0, "max_nodes"),
        ("max_nodes", -1, "max_nodes"),
        ("slow_node_removal_rate", 6, "slow_node_removal_rate"),
        ("hard_delete_grace_period_s", 60.0, "soft_delete_grace_period_s"),
    ],
)
def test_each_clash_is_reported_once(field: str, value: float, blamed: str) -> None:
    assert first_fields(**{field: value}) == [blamed]


def test_equal_rates_and_equal_bounds_are_valid() -> None:
    assert first_fields(slow_node_removal_rate=5, min_nodes=30) == []


def test_bounds_0_and_0_use_cloud_bounds() -> None:
    assert settings(min_nodes=0, max_nodes=0).takes_cloud_bounds
    assert first_fields(min_nodes=0, max_nodes=0) == []


def test_original_reports_both_clashes_of_max_nodes_0() -> None:
    assert first_fields(max_nodes=0, quirks=ORIGINAL) == ["max_nodes", "min_nodes"]


def test_clash_names_both_values() -> None:
    (clash,) = settings(min_nodes=31).check()
    assert (clash.what, clash.expected) == ("min_nodes 31 is not at most max_nodes 30", "at most 30")
    (clash,) = settings(hard_delete_grace_period_s=60.0).check()
    assert clash.what == "soft_delete_grace_period_s 60 is not less than hard_delete_grace_period_s 60"
