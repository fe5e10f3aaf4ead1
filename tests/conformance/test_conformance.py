"""Every case that ships with the project holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.adapters.escalator import expected, pure_decision
from tests.conformance.adapters.manifests import DIFFERENCES
from tests.conformance.run import DATA, failure, kinds, read_cases


@pytest.mark.parametrize("kind", kinds())
def test_every_shipped_case_holds(kind: str) -> None:
    cases = list(read_cases(DATA / f"{kind}.jsonl"))
    assert cases
    assert [result for case in cases if (result := failure(kind, case))] == []


def run_py(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("run.py")
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)


def test_runner_exits_0_and_prints_the_count_when_all_hold() -> None:
    done = run_py("queue_stats_head", str(DATA / "queue_stats_head.jsonl"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "queue_stats_head: 20 of 20 cases hold")


def test_runner_prints_a_failing_case_and_exits_1(tmp_path: Path) -> None:
    case = json.loads((DATA / "queue_stats_head.jsonl").read_text().splitlines()[0])
    case["expect"][0][0] += 1
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps(case) + "\n")
    done = run_py("queue_stats_head", str(wrong))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == case["name"]
    assert done.stdout.splitlines()[-1] == "queue_stats_head: 0 of 1 cases hold"


def test_runner_rejects_an_unknown_kind() -> None:
    done = run_py("no_such_kind", "x.jsonl")
    assert done.returncode == 2
    assert "no_such_kind" in done.stderr


def test_pure_node_group_decision_equals_the_recorded_one() -> None:
    cases = [case for case in read_cases(DATA / "escalator.jsonl") if case["kind"] == "decision"]
    assert [case["name"] for case in cases if pure_decision(case["in"]) != expected(case)] == []


def test_listed_differences_differ_from_the_recorded_answers() -> None:
    recorded = {case["name"]: (case["code"], case["fields"]) for case in read_cases(DATA / "manifests.jsonl")}
    assert {name: difference for name, difference in DIFFERENCES.items() if recorded[name] == difference} == {}
