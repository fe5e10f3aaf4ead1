"""Commands of a new user, against one running system."""

import re
import shlex
import signal
import ssl
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

import httpx
import msgspec
import pytest

from serving.core.model.knative import SERVICE_LABEL
from serving.core.model.objects import Object
from serving.home.apiserver.reviews import TOKEN_REVIEW_PATH
from serving.home.processes import mounts
from serving.home.processes.mounts import can_mount
from tests.e2e.cli_stage import SAMPLE, Stage

pytestmark = pytest.mark.timeout(300)

APP = f"{sys.executable} app.py"


def test_wrong_port_of_an_app_is_reported(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import http.server\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "print('listening on', server.server_port, flush=True)\n"
        "server.serve_forever()\n"
    )
    command = shlex.join([sys.executable, "app.py"])
    # The error is reported long before the timeout of five minutes.
    done = serving("deploy", "fixed", str(tmp_path), "--command", command, code=1)
    assert "is not ready after" not in done.stderr
    assert re.search(r"listens on port \d+ and was given PORT=\d+; it must listen on \$PORT", done.stderr), done.stderr
    assert re.search(r"fixed-00001 is not ready: .* was given PORT=\d+", serving("why", "fixed").stdout)
    assert re.search(r"fixed-00001-deployment-\w+ +WrongPort", serving("describe", "fixed").stdout)


def test_deploy_succeeds_after_a_failed_deploy(serving: Stage, tmp_path: Path) -> None:
    for number in range(3):
        name = f"mended-{number}"
        bad = shlex.join([sys.executable, "-c", "raise SystemExit('no such luck')"])
        done = serving("deploy", name, str(tmp_path), "--command", bad, code=1)
        assert "no such luck" in done.stderr
        # While the new revision starts, the service's status still has the old failure.
        done = serving("deploy", name, str(tmp_path), "--command", f"sh -c 'sleep 0.5; exec {SAMPLE}'")
        assert "no such luck" not in done.stderr
        assert done.stdout.startswith(f"http://{name}.default.localhost:")


def test_repeated_deploy_after_an_external_fix_creates_a_revision(serving: Stage, tmp_path: Path) -> None:
    package, folder = tmp_path / "package", tmp_path / "app"
    folder.mkdir()
    command = shlex.join(["sh", "-c", f"test -f {package} || {{ echo no package; exit 1; }}; exec {SAMPLE}"])
    assert "no package" in serving("deploy", "outside", str(folder), "--command", command, code=1).stderr
    package.touch()
    assert "no package" not in serving("deploy", "outside", str(folder), "--command", command).stderr
    names = re.findall(r"^outside-\d+", serving("get", "revisions").stdout, re.MULTILINE)
    assert names == ["outside-00001", "outside-00002"]


def test_logs_before_restart_and_of_deleted_pods_are_retained(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import http.server, os, pathlib\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        os._exit(1) if self.path == '/end' else self.send_response(200)\n"
        "        self.end_headers()\n"
        "    def log_message(self, *_):\n"
        "        pass\n"
        "ended = pathlib.Path('ended')\n"
        "if not ended.exists():\n"
        "    print('of the first run', flush=True)\n"
        "    ended.touch()\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Handler).serve_forever()\n"
    )
    serving("deploy", "quiet", str(tmp_path), "--command", APP, "--min-scale", "1", "--no-snapshot")
    assert "of the first run" in serving("logs", "quiet").stdout
    assert "502" in serving("invoke", "quiet", "/end", code=1).stderr
    serving("invoke", "quiet")
    silent = serving("logs", "quiet")
    assert (silent.stdout, "--previous shows what ran before" in silent.stderr) == ("", True)
    assert "of the first run" in serving("logs", "quiet", "--previous").stdout
    (pod,) = re.findall(r"^quiet-00001-deployment-\w+", serving("get", "pods").stdout, re.MULTILINE)
    serving("delete", f"pod/{pod}")
    assert "of the first run" in serving("logs", "quiet", "--previous").stdout


def test_apply_succeeds_after_a_failed_apply(serving: Stage) -> None:
    text = """
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: applied}
spec:
  template:
    metadata:
      annotations: {serving.dev/command: COMMAND}
    spec:
      containers: [{image: applied}]
"""
    slow = f"sh -c 'sleep 0.5; exec {SAMPLE}'"
    for _ in range(3):
        failed = serving("apply", "-f", "-", "--wait", code=1, stdin=text.replace("COMMAND", "sh -c 'exit 7'"))
        assert "exit code 7" in failed.stderr
        done = serving("apply", "-f", "-", "--wait", stdin=text.replace("COMMAND", slow))
        assert "service/applied is ready at" in done.stdout


def written(folder: Path, word: str) -> Path:
    """An app that responds with a word."""
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(
        "import http.server, os\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        f"        self.wfile.write({word!r}.encode() + b' ' + os.environ.get('WHO', '').encode())\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Answer).serve_forever()\n"
    )
    return folder


def test_edited_code_creates_a_revision_and_rollback_restores_code(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "edit", "one")
    serving("deploy", "edit", str(folder), "--command", APP)
    assert serving("invoke", "edit").stdout == "one "
    serving("deploy", "edit", str(folder), "--command", APP)
    written(folder, "two")
    serving("deploy", "edit", str(folder), "--command", APP)
    assert serving("invoke", "edit").stdout == "two "
    names = re.findall(r"^edit-\d+", serving("get", "revisions").stdout, re.MULTILINE)
    assert names == ["edit-00001", "edit-00002"], "unchanged files must not create a revision"
    written(folder, "three, which is not deployed")
    serving("traffic", "edit", "--rollback")
    serving.until_status("one", "edit")


def test_dev_redeploys_changed_files_and_deletes_its_service(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "watched", "before")
    with serving.process("dev", str(folder), "--command", APP) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        until_printed(process.stderr, "watching ")
        assert serving("invoke", "watched").stdout == "before "
        written(folder, "after")
        until_printed(process.stderr, "watching ")
        serving.until_status("after", "watched")
        until_printed(process.stdout, '"GET / HTTP/1.1" 200')
        process.send_signal(signal.SIGTERM)
        until_printed(process.stderr, "deleting the service watched")
        assert process.wait(60) == 0
    assert "no service watched" in serving("describe", "watched", code=1).stderr


def test_dev_rejects_an_existing_service(serving: Stage, tmp_path: Path) -> None:
    serving("deploy", "stays", str(tmp_path), "--command", SAMPLE)
    assert "`serving dev stays-dev .`" in serving("dev", "stays", str(tmp_path), "--command", SAMPLE, code=2).stderr
    assert serving("describe", "stays").exit_code == 0


def test_deploy_detects_and_reports_the_command(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "Found_It", "found")
    done = serving("deploy", str(folder))
    assert "app.py: running `python3 app.py`; --command runs another" in done.stderr
    assert re.search(r"^ready after \d+\.\d s", done.stderr, re.MULTILINE)
    assert serving("invoke", "found-it").stdout == "found "
    # An explicit command is retained.
    serving("deploy", "found-it", str(folder), "--command", f"{APP} --mine")
    assert "running" not in serving("deploy", str(folder)).stderr
    assert "--mine" in serving("get", "ksvc", "found-it", "-o", "yaml").stdout


def test_ambiguous_commands_are_rejected_with_choices(serving: Stage, tmp_path: Path) -> None:
    for name in ("app.py", "main.py"):
        (tmp_path / name).write_text("print(1)")
    done = serving("deploy", "several", str(tmp_path), code=2)
    assert "choose one by --command '...'\n  main.py: python3 main.py\n  app.py: python3 app.py" in done.stderr


def test_deploy_build_installs_missing_packages(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "listed", "built")
    (folder / "requirements.txt").write_text("")
    make = f"python3 -m venv {folder}/.venv && {folder}/.venv/bin/python -m pip install -r {folder}/requirements.txt"
    done = serving("deploy", str(folder), code=2)
    assert f"to install them: {make}" in done.stderr
    assert "--build runs it" in done.stderr
    serving("deploy", str(folder), "--build")
    assert serving("invoke", "listed").stdout == "built "


@pytest.mark.skipif(not can_mount(), reason="no network of a pod's own here")
def test_detected_app_with_fixed_port_is_redeployed_with_it(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "stubborn", "heard")
    (folder / "app.py").write_text((folder / "app.py").read_text().replace("int(os.environ['PORT'])", "8123"))
    assert "deploying it with --fixed-port 8123" in serving("deploy", str(folder)).stderr
    assert serving("invoke", "stubborn").stdout == "heard "
    # The revision with the wrong port must not remain.
    revisions = serving("get", "revisions", "-l", f"{SERVICE_LABEL}=stubborn", "-o", "name").stdout.split()
    assert len(revisions) == 1, revisions


def test_cluster_local_url_warns_without_mount_namespaces(
    serving: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("found")
    serving("deploy", "named", str(tmp_path))
    monkeypatch.setattr(mounts, "can_mount", lambda: False)
    done = serving("url", "named", "--cluster-local")
    assert "apps cannot resolve the names of other services" in done.stderr
    assert "sysctl user.max_user_namespaces" in done.stderr


def until_printed(lines: Iterable[str], message: str) -> None:
    assert any(message in line for line in lines), f"ended before it printed {message!r}"


@pytest.mark.parametrize("port", ["$PORT", "${PORT}", "$(PORT)"])
def test_port_reference_in_a_command_is_expanded(serving: Stage, tmp_path: Path, port: str) -> None:
    (tmp_path / "index.html").write_text("found")
    name = f"expanded-{len(port)}"
    serving("deploy", name, str(tmp_path), "--command", f"{sys.executable} -m http.server {port} --bind 127.0.0.1")
    assert serving("invoke", name).stdout == "found"


def test_deploy_reports_a_revision_without_traffic(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "pinned", "one")
    assert "0 %" not in serving("deploy", "pinned", str(folder), "--command", APP).stderr
    serving("traffic", "pinned", "1=100")
    written(folder, "two")
    done = serving("deploy", "pinned", str(folder), "--command", APP)
    assert "pinned-00002 gets 0 % of the traffic" in done.stderr
    assert "`serving traffic pinned --to-latest` sends it all there" in done.stderr
    serving("traffic", "pinned", "--to-latest")
    serving.until_status("two", "pinned")


def test_second_deploy_retains_variables_and_scaling_unless_replaced(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "kept", "hello")
    serving("deploy", "kept", str(folder), "--command", APP, "-e", "WHO=moon", "--min-scale", "1")
    done = serving("deploy", "kept", str(folder), "--command", APP, "--concurrency", "3")
    assert "kept from the previous revision: -e WHO, --min-scale 1; --replace removes them" in done.stderr
    assert serving("invoke", "kept").stdout == "hello moon"
    done = serving("deploy", "kept", str(folder), "--command", APP, "--replace")
    assert "kept" not in done.stderr
    assert serving("invoke", "kept").stdout == "hello "


def test_virtualenv_in_the_folder_is_used_and_reported(serving: Stage, tmp_path: Path) -> None:
    folder = written(tmp_path / "isolated", "hello")
    venv.create(folder / ".venv", symlinks=True)
    module = next((folder / ".venv" / "lib").glob("python*/site-packages")) / "only_here.py"
    module.write_text("")
    app = (folder / "app.py").read_text()
    (folder / "app.py").write_text(f"import only_here\n{app}")
    done = serving("deploy", "isolated", str(folder), "--command", "python app.py")
    assert f"using the virtual environment {folder / '.venv'}" in done.stderr
    assert serving("invoke", "isolated").stdout == "hello "


@pytest.mark.parametrize(
    ("name", "command", "message"),
    [
        ("", "true", "it is empty; expected a value"),
        ("héllo", "true", "a service's name"),
        ("unclosed", "echo 'hello", "no closing quotation"),
        ("empty", "  ", "a command after --command"),
    ],
)
def test_invalid_name_or_command_is_rejected_before_creation(
    serving: Stage, tmp_path: Path, name: str, command: str, message: str
) -> None:
    before = serving("get").stdout
    done = serving("deploy", name, str(tmp_path), "--command", command, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert [line.split()[0] for line in serving("get").stdout.splitlines()] == [
        line.split()[0] for line in before.splitlines()
    ]


def test_interrupted_deploy_reports_that_the_service_exists(serving: Stage, tmp_path: Path) -> None:
    with serving.process("deploy", "slow", str(tmp_path), "--command", "sleep 1000") as process:
        assert process.stderr is not None
        until_printed(process.stderr, "waiting for slow to be ready")
        process.send_signal(signal.SIGINT)
        until_printed(process.stderr, "the service slow exists and continues to start")
        assert process.wait(timeout=60) == 130


def test_superseded_failed_revision_does_not_make_service_unready(serving: Stage, tmp_path: Path) -> None:
    serving("deploy", "patched", str(tmp_path), "--command", "sh -c 'exit 1'", code=1)
    serving("deploy", "patched", str(tmp_path), "--command", SAMPLE, "--min-scale", "1")
    (row,) = (line for line in serving("get").stdout.splitlines() if line.startswith("patched "))
    assert row.split()[1:3] == ["True", "1"]


def test_several_services_are_deleted_by_one_command(serving: Stage, tmp_path: Path) -> None:
    names = [f"many-{number}" for number in range(4)]
    for name in names:
        serving("deploy", name, str(tmp_path), "--command", SAMPLE, "--no-wait")
    done = serving("delete", *names, "--wait-timeout", "2m")
    assert done.stdout.splitlines() == [f"service/{name} deleted" for name in names]
    assert not any(f"{name} " in serving("get").stdout for name in names)


def test_config_show_prints_values_and_sources_of_daemon_settings(
    serving: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = """
apiVersion: v1
kind: ConfigMap
metadata: {name: config-autoscaler, namespace: knative-serving}
data: {stable-window: 20s}
"""
    serving("apply", "-f", "-", stdin=text)
    lines = [line.split() for line in serving("config", "show", "autoscaler").stdout.splitlines()]
    assert lines[0] == ["DAEMON", "CONFIGMAP", "KEY", "VALUE", "FROM"]
    (window,) = (line for line in lines if line[2] == "stable-window")
    assert window[3] == "20s"
    assert "config-autoscaler" in " ".join(window[4:])
    (initial,) = (line for line in lines if line[2] == "allow-zero-initial-scale")
    assert initial[3:5] == ["true", "environment"]
    assert "SERVING_AUTOSCALER_ALLOW_ZERO_INITIAL_SCALE".startswith(initial[5].rstrip("…"))
    serving("delete", "configmap/config-autoscaler", "-n", "knative-serving")
    assert " 20s " not in serving("config", "show", "autoscaler").stdout


def test_projected_volume_serves_files_of_every_source(serving: Stage) -> None:
    text = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: project}}
data: {{config: from the config, run.sh: "exec {sys.executable} -m http.server $PORT --bind 127.0.0.1 --directory $1"}}
---
apiVersion: v1
kind: Secret
metadata: {{name: project}}
stringData: {{secret: from the secret}}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {{name: projected}}
spec:
  template:
    metadata:
      labels: {{tier: gold}}
      annotations:
        autoscaling.knative.dev/metric-aggregation-algorithm: weightedExponential
        serving.dev/command: sh $HOME/etc/all/run.sh $HOME/etc/all
    spec:
      containers:
      - image: none
        volumeMounts: [{{name: all, mountPath: /etc/all}}]
      volumes:
      - name: all
        projected:
          sources:
          - configMap: {{name: project}}
          - secret: {{name: project}}
          - downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}
          - serviceAccountToken: {{path: token, audience: vault}}
"""
    done = serving("apply", "-f", "-", "--wait", stdin=text)
    assert "warning" not in done.stderr
    assert serving("invoke", "projected", "/config").stdout == "from the config"
    assert serving("invoke", "projected", "/secret").stdout == "from the secret"
    assert 'tier="gold"' in serving("invoke", "projected", "/labels").stdout
    token = serving("invoke", "projected", "/token").stdout
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": ["vault"]},
    }
    assert (
        posted(serving, TOKEN_REVIEW_PATH, review)["status"]["user"]["username"]
        == "system:serviceaccount:default:default"
    )


def posted(serving: Stage, path: str, body: Object) -> Object:
    """The response of the API to an object."""
    credential = (serving.state / "token").read_text()
    port = msgspec.json.decode((serving.state / "ports.json").read_bytes())["api"]
    headers = {"Authorization": f"Bearer {credential}", "Content-Type": "application/json"}
    trusted = ssl.create_default_context(cafile=serving.state / "certificates" / "authority.crt")
    response = httpx.post(f"https://127.0.0.1:{port}{path}", json=body, headers=headers, timeout=60, verify=trusted)
    result: Object = response.raise_for_status().json()
    return result


def test_invoke_streams_the_body_and_reports_truncation(serving: Stage, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import http.server, os, time\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.send_header('Content-Length', '1000')\n"
        "        self.end_headers()\n"
        "        self.wfile.write(b'first\\n')\n"
        "        while self.path == '/held' and not os.path.exists('go-on'):\n"
        "            time.sleep(0.05)\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', int(os.environ['PORT'])), Answer).serve_forever()\n"
    )
    serving("deploy", "stream", str(tmp_path), "--command", APP, "--no-snapshot")
    with serving.process("invoke", "stream", "/held") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # The app delays the rest of the body until this line has been read.
        assert process.stdout.readline() == "first\n"
        (tmp_path / "go-on").touch()
        until_printed(process.stderr, "the response ended early, after 6 bytes: 994 bytes are missing")
        assert process.wait(timeout=60) == 1
