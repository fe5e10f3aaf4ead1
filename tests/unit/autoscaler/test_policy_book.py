import json

import msgspec

from serving.autoscaler.policy_book import PolicyBook
from serving.scaling.adaptive.policy import policy_of
from serving.scaling.scaler.scaler import DecisionCause, Scaler, StatSource
from serving.scaling.scaler.shadow import shadow_of
from serving.scaling.spec import ScalingSpec
from tests.unit.scaling.kpa_builders import spec_with
from tests.unit.scaling.scaler_builders import SETTINGS, World, facts_of, revision_with, told

ADAPTIVE, KNATIVE, UNKNOWN = ("default", "a"), ("default", "k"), ("other", "u")
SPEC = spec_with(policy="adaptive", container_concurrency=10, total_value=10.0, target_value=7.0)
WALL_S = 1e9


def lived(spec: ScalingSpec = SPEC) -> World:
    world = World(revision_with(spec), facts_of(1), policy=policy_of(spec, SETTINGS))
    world.scaler.shadow = shadow_of(
        spec, SETTINGS, present_scale=1, wall_offset_s=WALL_S - world.now_s, now_s=world.now_s
    )
    for second in range(120):
        world.hear(told(1.0 if second % 24 < 4 else 0.0, by="pod-0"), StatSource.POD)
        world.now_s += 1.0
        world.scaler.tick(world.facts, DecisionCause.PERIOD, world.now_s)
    return world


def test_the_book_has_savings_and_curves_of_adaptive_revisions() -> None:
    world = lived()
    knative = Scaler(revision_with(), facts_of(1), SETTINGS, is_restart=False, now_s=0.0)
    scalers = {ADAPTIVE: world.scaler, KNATIVE: knative}
    book = PolicyBook(keys=lambda: [ADAPTIVE, KNATIVE, UNKNOWN], scaler=scalers.get)

    (story,) = json.loads(book.encoded({}, now_s=world.now_s))
    assert (story["namespace"], story["revision"]) == ADAPTIVE
    assert story["costs"]["covered_s"] == 120.0
    assert story["sentence"].startswith("over the last 2 minutes: 0 cold requests in both cases, ")
    # The last request ended 20 s ago, as far as whole seconds tell.
    assert 18.0 <= WALL_S + 120.0 - story["idle_since_wall_s"] <= 21.0
    assert story["curve"] is None
    costs = book.costs(ADAPTIVE, world.now_s)
    assert costs is not None
    assert costs.adaptive_pod_seconds == story["costs"]["adaptive_pod_seconds"] == 120.0
    assert (story["policy"], story["shadow_scale"]) == ("adaptive", 1)
    assert book.costs(KNATIVE, world.now_s) is None
    (with_curve,) = json.loads(book.encoded({"revision": "a", "curve": ""}, now_s=world.now_s))
    assert len(with_curve["curve"]["ages_s"]) == len(with_curve["curve"]["rates"]) > 50
    assert json.loads(book.encoded({"namespace": "other"}, now_s=world.now_s)) == []
    assert repr(book) == "PolicyBook(3 revisions)"


def test_under_knatives_policy_the_book_has_the_curve_and_the_costs_of_the_adaptive_shadow() -> None:
    world = lived(msgspec.structs.replace(SPEC, policy="knative"))
    book = PolicyBook(keys=lambda: [KNATIVE], scaler=lambda _: world.scaler)

    (story,) = json.loads(book.encoded({"curve": ""}, now_s=world.now_s))
    assert world.scaler.policy is None
    assert (story["policy"], story["shadow_scale"], story["costs"]["knative_pod_seconds"]) == ("knative", 1, 120.0)
    assert "; the adaptive policy would have had " in story["sentence"]
    assert story["curve"]["gap_count"] == 4


def test_before_the_first_request_there_is_no_gap() -> None:
    world = World(revision_with(SPEC), facts_of(0), policy=policy_of(SPEC, SETTINGS))
    world.scaler.shadow = shadow_of(SPEC, SETTINGS, present_scale=0, wall_offset_s=0.0, now_s=world.now_s)
    book = PolicyBook(keys=lambda: [ADAPTIVE], scaler=lambda _: world.scaler)

    (story,) = json.loads(book.encoded({"curve": ""}, now_s=world.now_s))
    assert (story["sentence"], story["idle_since_wall_s"], story["curve"]) == ("", None, None)
