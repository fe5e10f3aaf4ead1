"""``serving arena``: its page, reproducible from a pinned plan."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from serving.tools.cli.main import main

POLICY = Path(__file__).parents[5] / "examples" / "policies" / "keep_alive.py"
TRACE = "function,1,2,3,4,5,6\na,5,0,0,5,0,9\n<b>|,0,30,0,2,0,1\n"
PLAN = """
policies: [knative, adaptive]
seeds: 2
workloads:
- {name: day, trace: day.csv, starts_s: [1, 5], limits: [1]}
"""


def arena(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["arena", "--jobs", "1", *arguments])


def with_trace(folder: Path) -> str:
    (folder / "day.csv").write_text(TRACE)
    return str(folder)


def test_pinned_plan_reproduces_the_page_byte_for_byte(tmp_path: Path) -> None:
    traces, pages = with_trace(tmp_path), [tmp_path / "a", tmp_path / "b"]
    policies = f"knative,adaptive,{POLICY}:KeepAlive"
    options = ("--trace", "day.csv", "--policies", policies, "--seeds", "3", "--equal-pod-seconds", "adaptive")
    done = arena(*options, "--traces", traces, "--out", str(pages[0]))
    assert done.exit_code == 0, done.output
    again = arena(str(pages[0] / "plan.yaml"), "--traces", traces, "--out", str(pages[1]), "--jobs", "2")
    assert again.exit_code == 0, again.output
    for name in ("page.md", "page.html", "plan.yaml"):
        assert (pages[0] / name).read_bytes() == (pages[1] / name).read_bytes()
    page = (pages[0] / "page.md").read_text()
    assert "## day: start of 2 s, 10 requests a pod" in page
    assert "### adaptive at the pod-seconds of the others" in page
    for word in ("cold", "p99 wait", "flaps", "cost at 180", "cost of oracle", "pod-seconds of clairvoyant", " ± "):
        assert word in page
    assert f"policy {POLICY}:KeepAlive" in page
    assert "<b>" not in (pages[0] / "page.html").read_text()


def test_a_plan_runs_each_start_with_each_limit(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    done = arena(str(plan), "--traces", with_trace(tmp_path), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "page.md").read_text()
    assert "## day: start of 1 s, 1 requests a pod" in page
    assert "## day: start of 5 s, 1 requests a pod" in page
    assert "| day | adaptive | " in page
    assert " of 2" in page


def test_mismatched_pin_is_reported(tmp_path: Path) -> None:
    traces, out = with_trace(tmp_path), tmp_path / "out"
    assert arena("--trace", "day.csv", "--seeds", "1", "--traces", traces, "--out", str(out)).exit_code == 0
    (tmp_path / "day.csv").write_text(TRACE.replace("9", "8"))
    done = arena(str(out / "plan.yaml"), "--traces", traces, "--out", str(out))
    assert done.exit_code == 2
    assert done.stderr.startswith("pins: trace day.csv: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ("policies: knative", "Expected `array`"),
        ("polices: [knative]", "unknown field `polices`"),
        ("{", "expected"),
        ("seeds: 0", "`int` >= 1"),
        ("workloads: [{name: a}]", "workload a: one source of requests is needed"),
        ("workloads: [{name: a, shape: step, trace: t.csv}]", "workload a: one source of requests is needed"),
        ("workloads: [{name: a, shape: step}, {name: a, shape: ramp}]", "workload a: it is there twice"),
        ("workloads: [{name: a, trace: t.csv, from_s: 9, until_s: 9}]", "from_s is not before until_s"),
        ("workloads: [{name: a, trace: no.csv}]", "no.csv: No such file"),
        ("policies: [wrong]", "'wrong' is not a policy"),
        ("equal_pod_seconds: oracle", "'oracle' does not run"),
        ("workloads: [{name: a, shape: step, from_s: 5}]", "from_s is for a trace"),
    ],
)
def test_invalid_plan_is_reported_and_writes_nothing(tmp_path: Path, plan: str, problem: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(plan)
    done = arena(str(path), "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert problem in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_plan_and_options_exclude_each_other(tmp_path: Path) -> None:
    done = arena(str(tmp_path / "plan.yaml"), "--shape", "step")
    assert (done.exit_code, "there are options that a plan names" in done.stderr) == (2, True)
