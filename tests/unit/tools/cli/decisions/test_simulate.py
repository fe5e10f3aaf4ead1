import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from serving.tools.cli.main import main
from tests.unit.nodes.nodegroup.test_groups import ESCALATOR_FILE
from tests.unit.tools.simulator.test_population import neighbours

POLICIES = Path(__file__).parents[5] / "examples" / "policies"
TRACE = "at_s,function,duration_s\n10,a,0.5\n150,a,0.5\n20,b,0.5\n170,b,\n400,b,1\n"


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_simulated_load_prints_scale_changes_with_reasons() -> None:
    done = simulate("--load", "5:2 20:0", "--until", "120")
    assert done.exit_code == 0
    assert " 0 → 1: " in done.stdout
    assert " 1 → 0: " in done.stdout
    assert "0 refused" in done.stdout


def test_annotate_option_sets_revision_annotations() -> None:
    done = simulate("--load", "5:200 20:0", "--until", "40", "--annotate", "max-scale=2")
    assert done.stdout.splitlines()[-2].endswith("max 2")
    assert done.exit_code == 0


def test_prefix_affinity_improves_cache_hits_of_a_prompt_trace(tmp_path: Path) -> None:
    path = tmp_path / "chat.csv"
    path.write_text(
        "at_s,input_tokens,output_tokens,blocks\n" + "".join(f"{at_s},1024,9,{at_s % 2} 7\n" for at_s in range(40))
    )
    load = ("--trace", str(path), "--policy", "knative", "--slo", "p90-wait<9s", "--annotate", "min-scale=2")
    affinity = simulate(*load, "--annotate", "serving.dev/affinity=prefix")
    assert "prompts of knative 95.0% of blocks in a cache" in affinity.stdout
    assert "100.0%" in affinity.stdout


def test_second_metric_of_a_revision_scales_it() -> None:
    load = (
        "--load",
        "0:0 5:40 30:0",
        "--until",
        "40",
        "--annotate",
        "autoscaling.serving.dev/metric=rps=1000,concurrency=3",
    )
    assert "concurrency wants" in simulate(*load).output


def test_workload_and_policy_options_apply_to_a_load() -> None:
    load = ("--load", "5:20 20:0", "--until", "120")
    plain, failing = simulate(*load), simulate(*load, "--failing-starts", "0.9")
    assert (plain.exit_code, failing.exit_code) == (0, 0)
    assert plain.stdout != failing.stdout
    # Once gaps are known, the policies differ in the idle pods that they keep.
    bursts = ("--load", " ".join(f"{start}:5 {start + 1}:0" for start in range(5, 1000, 90)), "--until", "1000")
    adaptive = simulate(*bursts, "--policy", "adaptive")
    assert adaptive.stdout not in {"", simulate(*bursts, "--policy", "knative").stdout}


def test_load_of_zero_reports_no_request() -> None:
    assert "no request in 30 s" in simulate("--load", "0:0", "--until", "30").stdout


def test_invalid_load_and_annotations_are_reported() -> None:
    assert simulate("--load", "5").exit_code == 2
    done = simulate("--annotate", "max-scale=many", "--annotate", "min-scal=1")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 2)


def written(folder: Path, text: str = TRACE) -> str:
    path = folder / "t.csv"
    path.write_text(text)
    return str(path)


def test_policies_are_compared_on_a_trace_as_one_json_object(tmp_path: Path) -> None:
    done = simulate(
        "--trace", written(tmp_path), "--compare", "knative,default", "--json", "--equal-pod-seconds", "--jobs", "1"
    )
    assert done.exit_code == 0, done.output
    response = json.loads(done.stdout)
    assert list(response["policies"]) == ["knative", "default"]
    assert {
        "requests", "cold_requests", "pod_starts", "pod_seconds", "wasted_pod_seconds", "wait_p50_s", "wait_p99_s",
        "wait_p999_s", "late_share", "flaps_per_hour", "refused", "per_revision",
    } <= set(response["policies"]["knative"])  # fmt: skip
    assert set(response["at_equal_pod_seconds"]) == {"default"}
    assert set(response["at_equal_pod_seconds"]["default"]) >= {
        "cold_change", "wait_p99_change", "late_change", "flaps_change",
    }  # fmt: skip


def test_own_prior_option_stops_learning_from_other_functions(tmp_path: Path) -> None:
    rows = [f"{at_s},{function.name},0.5" for function in neighbours() for at_s in function.arrivals_s]
    trace = written(tmp_path, "at_s,function,duration_s\n" + "\n".join(rows))
    shared, own = (
        simulate("--trace", trace, "--policy", "adaptive", "--json", *flag) for flag in ((), ("--own-prior",))
    )
    costs = [json.loads(result.stdout)["policies"]["adaptive"]["pod_seconds"] for result in (shared, own)]
    assert costs[0] != costs[1]


def test_comparison_reports_the_distance_to_oracle_and_clairvoyant(tmp_path: Path) -> None:
    arguments = ("--trace", written(tmp_path), "--compare", "knative,fixed-300s,oracle,clairvoyant", "--jobs", "1")
    done = simulate(*arguments, "--equal-pod-seconds")
    assert done.exit_code == 0, done.output
    assert "pod-seconds of clairvoyant: knative" in done.stdout
    assert "100% of the way to the oracle" in done.stdout
    answer = json.loads(simulate(*arguments, "--equal-pod-seconds", "--json").stdout)
    assert answer["at_equal_pod_seconds"]["oracle"]["way_to_oracle"] == pytest.approx(1.0)


def test_oracle_needs_a_trace_and_clairvoyant_rejects_nodes(tmp_path: Path) -> None:
    load = simulate("--policy", "oracle")
    assert (load.exit_code, "--policy: oracle knows all future requests" in load.stderr) == (2, True)
    nodes = simulate("--trace", written(tmp_path), "--policy", "clairvoyant", "--node-pods", "2")
    assert (nodes.exit_code, "clairvoyant with nodes" in nodes.stderr) == (2, True)


def test_comparison_prints_a_table_and_bars(tmp_path: Path) -> None:
    done = simulate("--trace", written(tmp_path), "--compare", "knative,fixed-300s", "--jobs", "1")
    assert done.exit_code == 0
    assert "fixed-300s" in done.stdout
    assert "█" in done.stdout


def test_invalid_trace_row_is_reported_with_file_and_line(tmp_path: Path) -> None:
    done = simulate("--trace", written(tmp_path, TRACE + "x,b,1\n"))
    assert done.exit_code == 2
    assert "t.csv:7" in done.stderr
    assert "'x,b,1'" in done.stderr
    assert "expected" in done.stderr


def test_unknown_policy_or_setting_is_rejected(tmp_path: Path) -> None:
    unknown = simulate("--trace", written(tmp_path), "--policy", "nothing")
    assert (unknown.exit_code, "'nothing' is not a policy" in unknown.stderr) == (2, True)
    setting = simulate("--trace", written(tmp_path), "--set", "stable-windo=30s")
    assert (setting.exit_code, "stable-windo" in setting.stderr) == (2, True)
    assert simulate("--compare", "knative,default").exit_code == 2


def test_settings_are_accepted_as_options_by_their_key(tmp_path: Path) -> None:
    path = written(tmp_path)
    pods = [
        json.loads(simulate("--trace", path, "--policy", "knative", "--json", *more).stdout)["policies"]["knative"][
            "pod_seconds"
        ]
        for more in (
            (),
            ("--scale-to-zero-pod-retention-period", "300s"),
            ("--set", "scale-to-zero-pod-retention-period=300s"),
        )
    ]
    assert pods[0] < pods[1] == pods[2]
    for wrong in (("--polcy", "x"), ("--stable-window",), ("extra",), ("--stable-window", "many")):
        refused = simulate("--trace", path, *wrong)
        assert (refused.exit_code, wrong[0].removeprefix("--") in refused.stderr) == (2, True)


def test_start_and_service_times_accept_constants_quantiles_or_a_file(tmp_path: Path) -> None:
    path, times = written(tmp_path), tmp_path / "times.csv"
    times.write_text("function,mean_s,p50_s,p99_s\na,3,3,3\nb,4,4,8\n")
    for text in ("3", "3:9", str(times)):
        done = simulate("--trace", path, "--start-time", text, "--policy", "knative", "--json")
        assert json.loads(done.stdout)["policies"]["knative"]["wait_p50_s"] >= 1.0, done.output
    for wrong in ("0", "-1", "nan", "none.csv", "1:2:3"):
        refused = simulate("--trace", path, "--service-time", wrong)
        assert (refused.exit_code, "--service-time" in refused.stderr) == (2, True)
    times.write_text("function,mean_s,p50_s,p99_s\na,3,x,3\n")
    assert "times.csv:2" in simulate("--trace", path, "--start-time", str(times)).stderr
    times.write_text("function,p50_s\n")
    assert "times.csv:1" in simulate("--trace", path, "--start-time", str(times)).stderr
    times.write_text("function,mean_s,p50_s,p99_s\n")
    assert simulate("--trace", path, "--start-time", str(times)).exit_code == 2


def test_trace_interval_without_requests_is_rejected(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert "no request" in simulate("--trace", path, "--from", "200", "--until", "300").stderr
    assert simulate("--trace", path, "--from", "300", "--until", "200").exit_code == 2
    assert simulate("--trace", path, "--from", "100", "--until", "200", "--json").exit_code == 0


def test_access_log_is_simulated_as_a_workload(tmp_path: Path) -> None:
    line = {"at_s": 10.0, "listener": "public", "host": "a", "status": 200, "duration_s": 0.5}
    path = tmp_path / "activator.log"
    path.write_text("".join(json.dumps({**line, "at_s": 10.0 + index}) + "\n" for index in range(30)))
    done = simulate("--from-log", str(path), "--policy", "knative", "--json")
    assert json.loads(done.stdout)["policies"]["knative"]["requests"] == 30
    assert simulate("--from-log", str(path), "--trace", written(tmp_path)).exit_code == 2


def test_nodes_are_simulated_below_a_load(tmp_path: Path) -> None:
    nodes = ("--nodes", "1", "--nodes-max", "3", "--node-cpu", "1", "--pod-cpu", "500m", "--node-boot", "20s")
    load = ("--load", "5:20 60:0", "--until", "200", "--concurrency", "1")
    done = simulate(*load, *nodes)
    assert done.exit_code == 0
    assert "node-seconds" in done.stdout
    assert json.loads(simulate(*load, *nodes, "--json").stdout)["policies"]["default"]["nodes"]["nodes_max"] == 3
    (tmp_path / "t.csv").write_text(TRACE)
    without = simulate("--trace", str(tmp_path / "t.csv"), "--json")
    assert "nodes" not in json.loads(without.stdout)["policies"]["default"]


def test_node_group_file_in_escalator_format_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "groups.yaml"
    path.write_text(ESCALATOR_FILE)
    load = ("--load", "5:1 60:0", "--until", "100", "--nodes", "1")
    assert simulate(*load, "--node-group", str(path), "--node-anticipation").exit_code == 0
    path.write_text("node_groups: []")
    done = simulate(*load, "--node-group", str(path))
    assert (done.exit_code, "0 node groups" in done.stderr) == (2, True)
    path.write_text("node_groups: [{name: a}]")
    assert "label_key" in simulate(*load, "--node-group", str(path)).stderr


def test_all_invalid_node_options_are_reported() -> None:
    wrong = ("--node-cpu", "much", "--pod-memory", "0", "--nodes-max", "1", "--node-scan", "soon")
    done = simulate("--nodes", "2", *wrong)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 4)
    assert "larger than a node" in simulate("--nodes", "1", "--pod-cpu", "9").stderr
    assert "--node-pods" in simulate("--nodes", "1", "--node-pods", "2").stderr


def test_json_output_of_a_load_contains_its_moments() -> None:
    document = json.loads(simulate("--load", "0:5 20:0", "--until", "30", "-o", "json").stdout)
    assert document["moments"][0]["at_s"] == 0
    assert (len(document["latencies_s"]) > 0, document["refused"]) == (True, 0)


def compared(tmp_path: Path, policy: str, trace: str, *more: str) -> tuple[dict[str, float], dict[str, float]]:
    done = simulate("--trace", written(tmp_path, trace), "--compare", f"knative,{policy}", "--json", *more)
    assert done.exit_code == 0, done.stderr
    knative, other = json.loads(done.stdout)["policies"].values()
    return knative, other


def test_keep_alive_example_reduces_cold_requests(tmp_path: Path) -> None:
    trace = "at_s,function,duration_s\n" + "".join(f"{at_s},a,0.5\n" for at_s in range(10, 2000, 300))
    knative, keep_alive = compared(tmp_path, f"{POLICIES}/keep_alive.py:KeepAlive", trace)
    assert (knative["cold_requests"], keep_alive["cold_requests"]) == (7, 1)
    assert keep_alive["pod_seconds"] > knative["pod_seconds"]


def test_office_hours_example_runs_pods_only_in_its_hours(tmp_path: Path) -> None:
    # A trace begins on a Thursday, at midnight.
    trace = "at_s,function,duration_s\n10,a,0.5\n28810,a,0.5\n68000,a,0.5\n"
    knative, office = compared(tmp_path, f"{POLICIES}/schedule.py:OfficeHours", trace)
    assert (knative["cold_requests"], office["cold_requests"]) == (3, 2)
    hours = office["pod_seconds"] / 3 / 3600
    assert 10.0 < hours < 10.2


def test_queue_length_example_scales_by_waiting_requests() -> None:
    done = simulate("--load", "5:40 20:0", "--until", "30", "--policy", f"{POLICIES}/queue_length.py:QueueLength")
    assert done.exit_code == 0, done.stderr
    assert "QueueLength wants " in done.stdout
    assert " wait, " in done.stdout
    knative = simulate("--load", "5:40 20:0", "--until", "30", "--policy", "knative")
    assert done.stdout.splitlines()[-1] != knative.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["keep_alive", "schedule", "queue_length"])
def test_policy_example_has_at_most_50_lines(name: str) -> None:
    assert len((POLICIES / f"{name}.py").read_text().splitlines()) <= 50


def test_policy_file_without_its_class_is_rejected(tmp_path: Path) -> None:
    for text in (f"{POLICIES}/schedule.py:Missing", f"{tmp_path}/none.py:A"):
        done = simulate("--policy", text)
        assert (done.exit_code, text in done.stderr) == (2, True)


def test_load_with_two_policies_is_rejected() -> None:
    done = simulate("--policy", "knative,adaptive")
    assert (done.exit_code, "is more than one policy" in done.stderr) == (2, True)


def test_scaling_policy_manifest_scales_a_load(tmp_path: Path) -> None:
    manifest = tmp_path / "policy.yaml"
    manifest.write_text(
        "apiVersion: serving.dev/v1alpha1\nkind: ScalingPolicy\nmetadata: {name: busy}\n"
        "spec:\n  targetRef: {kind: Service, name: hello}\n  max: 3\n"
        "  up: {cooldownSeconds: 20, triggers: [{type: cpu, usagePercent: 70, timeSeconds: 20}]}\n"
    )
    load = ("--load", "5:8 60:0", "--until", "60", "--service-time", "0.5", "--scaling-policy", str(manifest))
    done = simulate(*load, "--request-cpu", "200m", "--pod-cpu", "200m")
    assert done.exit_code == 0, done.stderr
    assert "policy load wants 3" in done.stdout
    manifest.write_text(manifest.read_text().replace("usagePercent: 70", "usagePercent: many"))
    wrong = simulate(*load)
    assert (wrong.exit_code, "--scaling-policy" in wrong.stderr, "usagePercent" in wrong.stderr) == (2, True, True)
    manifest.write_text("kind: Service\n")
    assert "has another kind" in simulate(*load).stderr
