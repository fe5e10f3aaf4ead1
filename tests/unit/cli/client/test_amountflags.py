import pytest

from serving.cli.client.amountflags import AmountFlags
from serving.model.errors import SettingsError
from serving.model.quantity import parse_millicores


def test_a_value_is_read_and_without_problems_nothing_is_raised() -> None:
    reader = AmountFlags({"node_cpu": "1500m", "nodes_max": None})
    assert reader.above_zero("node_cpu", parse_millicores, "an amount") == 1500
    assert (reader.count_max(3), reader.count_max(0)) == (3, 1)
    reader.check()


def test_every_problem_is_kept_with_its_flag() -> None:
    reader = AmountFlags({"node_cpu": "much", "pod_cpu": "0", "nodes_max": 1})
    assert (reader.above_zero("node_cpu", parse_millicores, "an amount"), reader.count_max(2)) == (0, 1)
    assert reader.above_zero("pod_cpu", parse_millicores, "an amount") == 0
    with pytest.raises(SettingsError) as error:
        reader.check()
    assert [(one.where, one.what) for one in error.value.problems] == [
        ("--node-cpu", "'much' is not right"),
        ("--nodes-max", "1 is below --nodes 2"),
        ("--pod-cpu", "'0' is not right"),
    ]
