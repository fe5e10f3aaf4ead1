"""Weighted sums of node scores, and the selected node."""

import importlib
import pkgutil

import msgspec
import numpy as np
import pytest

from serving.core.model.errors import InvalidValue, SettingsError
from serving.core.model.nodata import NoData
from serving.core.settings.knob import fields_of
from serving.core.settings.placement import PlacementSettings
from serving.nodes.placement import scores as package
from serving.nodes.placement.scores.fit import FitWhy
from serving.nodes.placement.scores.nodes import ScoredNode, node_table
from serving.nodes.placement.scores.pod import PodDemand
from serving.nodes.placement.scores.provider import PROVIDERS, Scorer, Scores, pick
from serving.nodes.placement.scores.score import NODE_SCORES
from tests.unit.nodes.placement.scores.builders import demand, load, node

EMPTY, HALF = node("empty"), node("half", demand(2000))


def new_scores(settings: PlacementSettings, *nodes: ScoredNode, pod: PodDemand | None = None) -> Scores:
    return Scorer(settings).score(node_table(nodes, version=3), pod or demand(400), now_s=0.0)


def test_default_provider_spreads_pods() -> None:
    assert new_scores(PlacementSettings(), EMPTY, HALF).total.tolist() == [19.0, 14.0]


def test_cluster_autoscaler_provider_packs_pods() -> None:
    scores = new_scores(PlacementSettings(provider="cluster-autoscaler"), EMPTY, HALF)
    assert scores.total.tolist() == [11.0, 16.0]


def test_low_risk_provider_prefers_less_loaded_node() -> None:
    scores = new_scores(
        PlacementSettings(provider="low-risk"), node("hot", usage=load(90)), node("cool", usage=load(10))
    )
    assert scores.total.tolist() == [5.5, 9.5]


def test_score_weights_setting_replaces_provider_weights() -> None:
    settings = PlacementSettings(score_weights="MostRequested=3")
    assert new_scores(settings, EMPTY, HALF).total.tolist() == [3.0, 18.0]


def test_scores_up_to_100_are_divided_by_10() -> None:
    settings = PlacementSettings(score_weights="LeastRequested=1, LowRiskOverCommitment=2")
    scores = new_scores(settings, node("a", demand(1000, limit_m=4000)), pod=demand(1000))
    assert [int(part.result.score[0]) for part in scores.parts] == [5, 83]
    assert scores.total.tolist() == pytest.approx([5 + 2 * 8.3])


def test_extender_score_is_an_integer_from_0_to_10() -> None:
    settings = PlacementSettings(score_weights="LeastRequested=1, LowRiskOverCommitment=2")
    scores = new_scores(settings, node("a", demand(1000, limit_m=4000)), pod=demand(1000))
    assert scores.extender_score().tolist() == [7]


def test_explanation_has_parts_and_rank() -> None:
    node_explanation = new_scores(PlacementSettings(), EMPTY, HALF).explain("half")
    assert (node_explanation.node, node_explanation.version, node_explanation.total, node_explanation.better_count) == (
        "half",
        3,
        14.0,
        1,
    )
    assert [(part.name, part.weight, part.score, part.score_max) for part in node_explanation.parts] == [
        ("LeastRequested", 1, 4, 10),
        ("BalancedResourceAllocation", 1, 10, 10),
    ]
    assert isinstance(node_explanation.parts[0].why, FitWhy)


def test_explanation_of_every_score_encodes_as_json() -> None:
    settings = PlacementSettings(score_weights=", ".join(f"{name}=1" for name in NODE_SCORES))
    node_explanation = new_scores(settings, node("a", demand(1000), usage=load(40, 5))).explain("a")
    assert msgspec.json.decode(msgspec.json.encode(node_explanation))["parts"][3]["why"]["worst"] == "cpu"


def test_explain_raises_key_error_for_unknown_node() -> None:
    with pytest.raises(KeyError, match="z"):
        new_scores(PlacementSettings(), EMPTY).explain("z")


def test_all_unknown_score_names_are_reported() -> None:
    with pytest.raises(SettingsError, match=r"no node score Magic.*\n.*no node score Luck"):
        Scorer(PlacementSettings(score_weights="Magic=1, LeastRequested=1, Luck=2"))


def test_malformed_weights_are_rejected() -> None:
    with pytest.raises(InvalidValue, match="is not weights such as"):
        Scorer(PlacementSettings(score_weights="LeastRequested"))


def test_providers_equal_choices_of_provider_setting() -> None:
    (knob,) = [field.knob for field in fields_of(PlacementSettings) if field.name == "provider"]
    assert tuple(PROVIDERS) == knob.choices


@pytest.mark.parametrize(("provider", "weights"), PROVIDERS.items())
def test_every_provider_sums_its_weighted_scores(provider: str, weights: dict[str, int]) -> None:
    scores = new_scores(PlacementSettings(provider=provider), node(usage=load(40)))
    assert {part.name: part.weight for part in scores.parts} == weights
    assert scores.total.tolist() == pytest.approx(
        [sum(10 * part.weight * int(part.result.score[0]) / part.score_max for part in scores.parts)]
    )


def test_pick_returns_highest_feasible_total() -> None:
    total = np.array([5.0, 9.0, 7.0])
    assert pick(total, feasible=np.array([True, False, True]), turn=0) == 2


def test_pick_alternates_between_equal_totals() -> None:
    total, feasible = np.array([9.0, 5.0, 9.0]), np.array([True, True, True])
    assert [pick(total, feasible=feasible, turn=turn) for turn in range(4)] == [0, 2, 0, 2]


def test_pick_without_feasible_node_is_no_data() -> None:
    assert pick(np.array([1.0]), feasible=np.array([False]), turn=0) == NoData(missing="node that the pod fits on")


def test_every_score_class_is_registered() -> None:
    modules = [
        importlib.import_module(f"{package.__name__}.{iter_modules.name}")
        for iter_modules in pkgutil.iter_modules(package.__path__)
    ]
    classes = {
        var for module in modules for var in vars(module).values() if isinstance(getattr(var, "score_max", None), int)
    }
    assert classes == set(NODE_SCORES.values())
