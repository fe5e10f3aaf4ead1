"""The command line against one running system."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from serving.home.supervisor.binding import PORTS
from serving.tools.cli.main import main
from tests.e2e.cli_stage import SAMPLE, Stage
from tests.eventually import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _hello(serving: Stage) -> None:
    """The service that no test changes."""
    deploy(serving, "hello", "--env", "TARGET=moon", "--min-scale", "1")
    serving("invoke", "hello")


def deploy(serving: Stage, name: str, *options: str) -> str:
    return serving("deploy", name, str(serving.state), "--command", SAMPLE, *options).stdout


def manifest(name: str, *, more: str = "", annotations: str = "", traffic: str = "") -> str:
    return f"""
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: {name}
spec:
  template:
    metadata:
      annotations:
        serving.dev/command: {SAMPLE}
        autoscaling.knative.dev/initial-scale: "1"
{annotations}
    spec:
      containers:
      - image: gcr.io/project/{name}
{more}
{traffic}
"""


def test_deployed_service_is_listed_and_invoked(serving: Stage) -> None:
    url, curl = serving("url", "hello").stdout.splitlines()
    assert re.fullmatch(r"http://hello\.default\.localhost:\d+", url)
    assert curl == f"curl -H 'Host: hello.default.localhost' http://127.0.0.1:{url.rpartition(':')[2]}/"
    assert re.search(r"^hello +True +1 +00001 ", serving("get").stdout, re.MULTILINE)
    header, row = serving("get", "services", "hello").stdout.splitlines()
    assert header.split() == ["NAME", "READY", "PODS", "TRAFFIC", "AGE", "URL"]
    assert (row.split()[:4], row.split()[5]) == (["hello", "True", "1", "00001"], url)
    assert len(row) <= 80
    response = serving("invoke", "hello")
    assert response.stdout.startswith("Hello moon from hello-00001")
    assert re.fullmatch(r"200 OK from hello-00001 in [\d.]+ m?s\n", response.stderr)


def test_second_deploy_creates_a_revision_and_retains_traffic(serving: Stage) -> None:
    deploy(serving, "again")
    serving("traffic", "again", "1=100", "--tag", "1=first")
    deploy(serving, "again", "--env", "TARGET=sun", "--no-wait")
    serving("wait", "again")
    shown = json.loads(serving("traffic", "again", "-o", "json").stdout)
    assert [(target["revisionName"], target["percent"], target["tag"]) for target in shown] == [
        ("again-00001", 100, "first")
    ]
    assert "sun" not in serving("invoke", "again", "/", "--tag", "first").stdout


def test_revision_without_traffic_is_reachable_by_its_tag(serving: Stage) -> None:
    deploy(serving, "dark", "--env", "TARGET=one")
    url = deploy(serving, "dark", "--env", "TARGET=two", "--no-traffic", "--tag", "next")
    assert url.startswith("http://next-dark.default.localhost")
    assert serving("invoke", "dark", "/", "--tag", "next").stdout.startswith("Hello two")
    serving("update", "dark", "--env", "TARGET=three")
    assert serving("invoke", "dark").stdout.startswith("Hello one")
    assert serving("invoke", "dark", "/", "--tag", "next").stdout.startswith("Hello two")


async def test_policy_from_a_file_scales_and_why_prints_its_reason(serving: Stage, tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(
        "from serving.core.scaling.kpa.merge import Proposal\n"
        "class Two:\n"
        "    def observe(self, second): ...\n"
        "    def propose(self, view):\n"
        "        return Proposal(decider='two', desired=2, reason='two at least')\n"
    )
    deploy(serving, "planned", "--policy", f"{file}:Two")
    await until(lambda: re.search(r"two-[0-9a-f]{8} wants 2 \(two at least\)", serving("why", "planned").stdout))
    refusal = serving("update", "planned", "--policy", "missing", code=1)
    assert re.search(r'"missing": no such policy; expected one of knative, adaptive, .*two-[0-9a-f]{8}', refusal.stderr)
    file.write_text(
        "class Two:\n    def observe(self, second): ...\n    def propose(self, view): raise ValueError('no')\n"
    )
    serving("update", "planned", "--policy", f"{file}:Two")
    await until(lambda: "PolicyInForce" in serving("get", "revision", "planned-00002", "-o", "json").stdout)


def test_invoke_reports_a_cold_start(serving: Stage) -> None:
    deploy(serving, "cold", "--initial-scale", "0")
    reported = json.loads(serving("invoke", "cold", "-o", "json").stdout)
    assert (reported["status"], reported["is_cold_start"], reported["revision"]) == (200, True, "cold-00001")
    assert 0 < reported["head_after_s"] <= reported["done_after_s"]


def test_invoke_exits_with_1_on_an_app_error(serving: Stage) -> None:
    done = serving("invoke", "hello", "/", "-d", '{"a": 1}', "-H", "X-A: b", "-i", code=1)
    assert done.stderr.startswith("501 ")
    assert "X-Serving-Revision: hello-00001" in done.stdout
    assert "expected NAME:VALUE" in serving("invoke", "hello", "-H", "wrong", code=2).stderr


def test_cloud_run_manifest_applies_with_warnings_and_events(serving: Stage) -> None:
    text = manifest(
        "cloud",
        annotations="        run.googleapis.com/startup-cpu-boost: 'true'",
        more="      serviceAccountName: robot\n      priorityClassName: high\n      timeoutSeconds: 1800",
    )
    account = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: robot}\n"
    done = serving("apply", "-f", "-", "--wait", stdin=text + account)
    priority = "spec.template.spec.priorityClassName: accepted without effect: pods run on this machine"
    boost = "an export of Cloud Run; left out: run.googleapis.com/startup-cpu-boost"
    assert done.stdout.splitlines()[:2] == ["serviceaccount/robot created", "service/cloud created"]
    assert f"warning: {priority}\n" in done.stderr
    assert f"{boost}\n" in done.stderr
    events = json.loads(serving("describe", "cloud", "-o", "json").stdout)["events"]
    remarks = {event["message"]: event for event in events if event["reason"] == "AcceptedWithoutEffect"}
    assert (len(remarks), remarks[priority]["involvedObject"]["kind"], remarks[priority]["count"]) == (1, "Service", 1)
    serving("apply", "-f", "-", "--dry-run", stdin=text.replace("robot", "human"))
    serving("apply", "-f", "-", stdin=text.replace("robot", "robot # the same"))
    changed = serving("apply", "-f", "-", stdin=text.replace("1800", "1700").replace("robot", "robot "))
    assert changed.stdout.splitlines() == [
        "service/cloud changed",
        "  spec.template.spec.timeoutSeconds: 1800 → 1700",
    ]


def test_apply_is_idempotent_and_removes_omitted_fields(serving: Stage, tmp_path: Path) -> None:
    config = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\ndata: {a: one, b: two}\n"
    file = tmp_path / "all.yaml"
    file.write_text(manifest("twice") + config)
    result = serving("apply", "-f", str(tmp_path))
    assert result.stdout.splitlines() == ["configmap/words created", "service/twice created"]
    assert serving("apply", "-f", str(file)).stdout.splitlines() == [
        "configmap/words unchanged",
        "service/twice unchanged",
    ]
    file.write_text(config.replace("a: one, b: two", "a: uno"))
    planned = serving("apply", "-f", str(file), "--dry-run").stdout
    assert planned.splitlines() == [
        "configmap/words changed (dry run)",
        "  data.a: one → uno",
        "  data.b: two → nothing",
    ]
    (done,) = json.loads(serving("apply", "-f", str(file), "-o", "json").stdout)
    assert (done["result"], done["changes"]) == ("changed", ["data.a: one → uno", "data.b: two → nothing"])
    assert json.loads(serving("get", "cm", "words", "-o", "json").stdout)["data"] == {"a": "uno"}
    assert serving("delete", "-f", str(file)).stdout == "configmap/words deleted\n"


@pytest.mark.parametrize(
    ("before", "after", "code", "message"),
    [
        ("spec:\n", "spec: [\n", 2, ": not YAML: "),
        ("template:", "templte:", 1, 'unknown field "spec.templte"'),
        ("gcr.io/project/wrong", "[3]", 1, "spec.template.spec.containers[0].image"),
        ('initial-scale: "1"', 'initial-scale: "many"', 1, "initial-scale"),
        ("\n\n", "\n  traffic: [{latestRevision: true, percent: 90}]\n", 1, "Traffic targets sum to 90, want 100"),
    ],
)
def test_invalid_manifest_is_reported_with_its_location(
    serving: Stage, before: str, after: str, code: int, message: str
) -> None:
    text = manifest("wrong")
    cut = text.rindex(before)
    done = serving("apply", "-f", "-", code=code, stdin=text[:cut] + after + text[cut + len(before) :])
    assert (done.stdout, done.stderr.startswith("standard input:"), message in done.stderr) == ("", True, True)
    assert "no service wrong in namespace default; there are " in serving("describe", "wrong", code=1).stderr


def test_folder_with_an_invalid_manifest_is_not_applied(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("half"))
    (tmp_path / "b.yaml").write_text("kind: Service\n")
    assert serving("apply", "-f", str(tmp_path), code=2).stdout == ""
    serving("describe", "half", code=1)


def test_second_claim_of_a_host_names_the_first_route(serving: Stage) -> None:
    deploy(serving, "blue-twin")
    deploy(serving, "twin")
    done = serving("traffic", "twin", "@latest=100", "--tag", "@latest=blue", code=1)
    assert 'DomainAlreadyClaimed: The host "blue-twin.default.localhost" is already in use by Route' in done.stderr


def test_traffic_is_split_tagged_and_rolled_back(serving: Stage) -> None:
    deploy(serving, "split", "--env", "TARGET=one")
    deploy(serving, "split", "--env", "TARGET=two")
    serving("traffic", "split", "1=90%", "00002=10", "--tag", "split-00002=canary")
    lines = serving("traffic", "split").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["90%", "split-00001", next(iter(lines[1].split()[2:]))],
        ["10%", "split-00002", "canary"],
    ]
    assert serving("invoke", "split", "/", "--tag", "canary").stdout.startswith("Hello two")
    serving("traffic", "split", "--to-latest")
    serving.until_status("Hello two", "split")
    serving("traffic", "split", "--rollback")
    serving.until_status("Hello one", "split")
    assert "split requested by serving traffic --rollback: 100 % to split-00001" in serving("why", "split").stdout
    assert "nothing to roll back to" in serving("traffic", "split", "--rollback", code=2).stderr
    assert "is 110 % together; expected 100 %" in serving("traffic", "split", "1=90", "2=20", code=2).stderr
    assert "there are split-00002, split-00001, and @latest" in serving("traffic", "split", "9=100", code=2).stderr
    assert "only one of them" in serving("traffic", "split", "1=100", "--to-latest", code=2).stderr
    assert "there are canary" in serving("traffic", "split", "--untag", "blue", code=2).stderr
    assert "canary" not in serving("traffic", "split", "--untag", "canary").stdout


def test_scale_bounds_create_a_new_revision(serving: Stage) -> None:
    deploy(serving, "wide", "--max-scale", "3")
    assert serving("scale", "wide", "2").stdout == "wide: at least 2 pods, at most 2 (wide-00002)\n"
    pods = json.loads(serving("get", "pods", "-l", "serving.knative.dev/revision=wide-00002", "-o", "json").stdout)
    assert (pods["kind"], len(pods["items"])) == ("List", 2)
    assert serving("scale", "wide", "--min", "0", "--no-wait").stdout == "wide: at least 0 pods, at most 2\n"
    for wrong in (["0"], ["2", "--min", "1"], []):
        serving("scale", "wide", *wrong, code=2)


@pytest.mark.slow
def test_wait_for_zero_reports_remaining_pods_until_zero(serving: Stage) -> None:
    deploy(
        serving,
        "brief",
        "--window",
        "6s",
        "--annotate",
        "autoscaling.knative.dev/scale-to-zero-pod-retention-period=0s",
    )
    stderr = serving("wait", "brief", "--for", "zero", "--timeout", "100ms", code=1).stderr
    assert "brief is not at zero after 0.1 s: 1 pod" in stderr
    assert serving("wait", "brief", "--for", "zero", "--timeout", "2m").stdout == "brief is at zero\n"
    assert "it is at zero" in serving("logs", "brief").stderr


def test_wait_for_gone_ends_after_deletion(serving: Stage) -> None:
    deploy(serving, "brief")
    assert (
        "brief is not gone after 0 s: it still exists"
        in serving("wait", "brief", "--for", "gone", "--timeout", "0", code=1).stderr
    )
    serving("delete", "brief", "--no-wait")
    assert serving("wait", "brief", "--for", "gone").stdout == "brief is gone\n"
    assert "no service brief in namespace default; there are " in serving("delete", "brief", code=1).stderr
    assert serving("delete", "brief", "--ignore-not-found").stdout == ""


def test_failed_service_is_reported_with_its_last_log_lines(serving: Stage) -> None:
    command = "sh -c 'echo reading config; echo no such key: database >&2; exit 3'"
    done = serving("deploy", "broken", "/", "--command", command, code=1)
    assert done.stderr.startswith("broken: RevisionFailed: ")
    assert "no such key: database" in done.stderr
    last = "Last lines of the log of broken-00001\n  reading config\n  no such key: database\n"
    # The container restarts repeatedly, so the log may be incomplete for a moment.
    until_s = time.monotonic() + 60
    while last not in (page := serving("describe", "broken").stdout):
        assert time.monotonic() < until_s, page
    assert re.search(r"^State +not ready\n +RevisionFailed: ", page, re.MULTILINE)
    assert "\x1b" not in page
    assert serving("invoke", "broken", code=1).stderr.endswith("`serving describe broken` shows why\n")
    serving("delete", "broken")


def test_logs_are_prefixed_by_pod_and_follow_new_pods(serving: Stage) -> None:
    deploy(serving, "chatty", "--initial-scale", "0")
    with serving.process("logs", "chatty", "-f") as follower:
        assert follower.stderr is not None
        assert follower.stdout is not None
        assert follower.stderr.readline() == "chatty has no pod now: waiting for pods\n"
        serving("invoke", "chatty", "/some/path")
        line = follower.stdout.readline()
    assert re.fullmatch(r'00001-\w{5}  127\.0\.0\.1 .*"GET /some/path HTTP/1\.1" 200 -\n', line)
    serving("invoke", "chatty", "/other")
    (last,) = serving("logs", "chatty", "--tail", "1", "--no-prefix").stdout.splitlines()
    assert "/other" in last
    assert re.search(r"^chatty-00001-\w{5} +127.*GET /other", serving("logs", "--tail", "1").stdout, re.MULTILINE)
    assert "app.readiness_changed" in serving("logs", "chatty", "-c", "queue-proxy").stdout
    assert "container x is not valid" in serving("logs", "chatty", "-c", "x", code=1).stderr
    assert "no pod of chatty ends with x" in serving("logs", "chatty", "--pod", "x", code=1).stderr


def test_exec_runs_a_command_with_streams_and_exit_code(serving: Stage, tmp_path: Path) -> None:
    deploy(serving, "opened", "-e", "COLOUR=red")

    def execute(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(main, ["exec", "--state", str(serving.state), *words], env={"KUBECONFIG": None})
        assert done.exit_code == code, (words, done.output, done.exception)
        return done

    result = execute("opened", "--", "sh", "-c", "echo $COLOUR; echo bad >&2; exit 7", code=7)
    assert (result.stdout, result.stderr) == ("red\n", "bad\n")
    command = [sys.executable, "-m", "serving", "exec", "--state", str(serving.state), "-i", "opened", "--", "cat"]
    text = "line\n" * 10_000
    assert subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout == text
    assert "no-such-command" in execute("opened", "--", "no-such-command", code=1).stderr
    assert "container x is not valid" in execute("-c", "x", "opened", "--", "env", code=1).stderr
    assert "no pod of opened ends with x" in execute("--pod", "x", "opened", "--", "env", code=1).stderr
    assert "No such option" in execute("opened", "ls", "-l", code=2).stderr
    serving("deploy", "faulty", str(tmp_path), "--command", "sh -c 'exit 3'", "--min-scale", "1", code=1)
    assert "does not run: " in execute("faulty", "--", "env", code=1).stderr
    deploy(serving, "asleep", "--initial-scale", "0")
    assert "it is at zero; `serving invoke asleep` starts one" in execute("asleep", "--", "env", code=1).stderr


def test_watch_prints_pod_count_changes(serving: Stage) -> None:
    deploy(serving, "seen", "--initial-scale", "0")
    with serving.process("get", "services", "seen", "-w") as watcher:
        assert watcher.stdout is not None
        assert watcher.stdout.readline().split() == ["NAME", "READY", "PODS", "TRAFFIC", "AGE", "URL"]
        assert watcher.stdout.readline().split()[:3] == ["seen", "True", "0"]
        serving("invoke", "seen")
        # A line for the pod before it is ready may or may not appear in between.
        assert any(line.split()[2] == "1" for line in watcher.stdout)


def test_get_and_describe_support_kinds_and_output_formats(serving: Stage) -> None:
    assert serving("get", "services/hello", "-o", "name").stdout == "service/hello\n"
    assert "kind: Service" in serving("get", "ksvc", "hello", "-o", "yaml").stdout
    assert serving("get", "pods", "-A").stdout.startswith("NAMESPACE  NAME ")
    assert "no leases in namespace default" in serving("get", "leases").stderr
    assert "is not a kind such as services, " in serving("get", "hello", code=2).stderr
    (pod, *_) = serving("get", "pods", "-l", "serving.knative.dev/service=hello", "-o", "name").stdout.splitlines()
    assert "Containers\n  user-container  running" in serving("describe", pod).stdout
    assert serving("describe", "rev", "hello-00001").stdout.startswith("revision hello-00001 in default\n")


def test_shell_completion_lists_names_from_the_server(serving: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(words: str, incomplete: str) -> list[str]:
        environment = {"_SERVING_COMPLETE": "bash_complete", "COMP_WORDS": f"serving {words} {incomplete}"}
        environment["COMP_CWORD"] = str(len(words.split()) + 1)
        with monkeypatch.context() as patch:
            for key, value in environment.items():
                patch.setenv(key, value)
            result = CliRunner().invoke(
                main, prog_name="serving", env={"KUBECONFIG": str(serving.state / "kubeconfig")}
            )
        return [line.partition(",")[2] for line in result.stdout.splitlines()]

    assert completed("describe", "hel") == ["hello"]
    assert completed("traffic hello", "hello") == ["hello-00001="]
    assert completed("get", "rev") == ["revisions"]
    assert completed("get revisions", "hel") == ["hello-00001"]
    assert "describe" in completed("", "des")


def test_deploy_without_terminal_prints_plain_progress_lines(serving: Stage) -> None:
    command = f"sh -c 'sleep 1.5; exec {SAMPLE}'"
    with serving.process("deploy", "slow", "/", "--command", command) as deploying:
        out, error = deploying.communicate(timeout=120)
    assert out.startswith("http://slow.default.localhost:")
    assert re.search(r"^waiting for slow to be ready.* \.\.\.\n", error, re.MULTILINE)
    assert "\x1b" not in out + error


def test_doctor_reports_a_healthy_system(serving: Stage) -> None:
    document = json.loads(serving("doctor", "-o", "json").stdout)
    by_name = {entry["name"]: entry for entry in document}
    assert by_name["state"]["text"] == f"{serving.state}, held by process {serving.pid}"
    daemons = ("template", "control", "autoscaler", "activator", "token")
    assert {name: by_name[name]["text"] for name in daemons if by_name[name]["state"] != "ok"} == {}
    # Without a certificate there is no port for TLS.
    assert all(by_name[f"port {port.name}"]["state"] == "ok" for port in PORTS if port.name != "tls")
    assert " warnings, " in serving("doctor").stdout or "checks passed" in serving("doctor").stdout


def test_exported_manifest_applies_and_creates_its_namespace(serving: Stage) -> None:
    head = "  name: moved\n  namespace: '123456789012'\n  uid: 5e1a\n  resourceVersion: AAYh\n  generation: 4\n"
    text = manifest("moved").replace("  name: moved\n", head) + "\nstatus: {url: https://elsewhere}\n"
    done = serving("apply", "-f", "-", "--wait", stdin=text)
    assert "namespace/123456789012 created: there was none\n" in done.stderr
    assert "service/moved is ready at http://moved.123456789012.localhost:" in done.stdout
    assert serving("apply", "-f", "-", stdin=text).stdout == "service/moved unchanged\n"
    serving("delete", "moved", "-n", "123456789012")
