import msgspec

from serving.dashboard.scorewords import SCORE_WORDS, sentence_of
from serving.model.nodata import NoData
from serving.model.resources import Resources
from serving.placement.scores.metrics import NodeUsage, Usage
from serving.placement.scores.nodes import ScoredNode, node_table
from serving.placement.scores.pod import Container, PodContainers, pod_demand
from serving.placement.scores.provider import Scorer
from serving.placement.scores.score import NODE_SCORES
from serving.settings.placement import PlacementSettings

GIB = 2**30


def sentences(used: Usage | None) -> dict[str, str]:
    """Of a node of 4 cores and 8 GiB, for a pod that asks for half of it and may take all."""
    usage = NoData(missing="x") if used is None else NodeUsage(at_s=0.0, cpu=used, memory=used)
    node = ScoredNode(name="a", allocatable_cpu_m=4000, allocatable_memory_bytes=8 * GIB, usage=usage)
    half, whole = Resources(cpu_m=2000, memory_bytes=4 * GIB), Resources(cpu_m=4000, memory_bytes=8 * GIB)
    demand = pod_demand(PodContainers(containers=(Container(request=half, limit=whole),)))
    scorer = Scorer(PlacementSettings(score_weights=", ".join(f"{name}=1" for name in NODE_SCORES)))
    explained = scorer.score(node_table([node], version=1), demand, now_s=1.0).explain("a")
    return {SCORE_WORDS[part.name]: sentence_of(part.why) for part in explained.parts}


def test_each_score_that_there_is_says_why() -> None:
    assert SCORE_WORDS.keys() == NODE_SCORES.keys()
    said = sentences(Usage(mean_percent=20.0, deviation_percent=5.0))
    assert said["least requested"] == "with the pod 2 of 4 cores (5 of 10) and 4 of 8 GiB (5 of 10)"
    assert said["balanced"] == "with the pod 50% of cpu and 50% of memory are requested"
    assert said["low risk"].startswith("risk of overuse: cpu 0.")
    assert said["steady load"] == "measured load with the pod: cpu 70% ± 5%, memory 70% ± 5%; the worse decides"


def test_what_is_not_measured_is_said_to_be_so() -> None:
    assert sentences(None)["steady load"].startswith("measured load with the pod: cpu not measured")


def test_a_reason_of_another_kind_has_no_words() -> None:
    assert sentence_of(msgspec.defstruct("Why", [])()) == ""
