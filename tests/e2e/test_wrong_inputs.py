"""Invalid commands and the errors that they print."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from serving.tools.cli.main import main
from tests.e2e.cli_stage import Stage

pytestmark = pytest.mark.timeout(300)

_SERVICE = """apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: a}
spec: {template: {spec: {containers: [{image: x}]}}}
"""
# Files by their placeholder in commands.
FILES = {
    "FILE": "not a manifest: [",
    "NOTHING": "",
    "BADLIST": "{apiVersion: v1, kind: List, items: 5}",
    "BADKIND": _SERVICE.replace("Service", "Servise"),
    "BADFIELD": _SERVICE.replace("image: x", "imag: x"),
    "BADVALUE": _SERVICE.replace("{spec", "{metadata: {annotations: {autoscaling.knative.dev/min-scale: few}}, spec"),
    "BADPORT": "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: NodePort, ports: [{port: 80, nodePort: 80}]}}",
    "NONAME": _SERVICE.replace("name: a", ""),
    "TWICE": _SERVICE.replace("spec:", "metadata: {name: b}\nspec:", 1),
}
# Commands without --state.
ALONE = (
    "convert",
    "replay",
    "simulate",
    "policy",
    "tune",
    "config",
    "get --kubeconfig",
    "nodegroups nope",
    "frob",
    "deplyo",
)
COMMANDS = """
frobnicate => No such command 'frobnicate'. `main --help` lists the commands.
tune hello => hello: an argument without an option; expected options only: see `main tune --help`
get services -n 'No Where' => --namespace: 'No Where' is not a namespace's name: at most 63 of a-z, 0-9 and '-', with a letter or digit at each end
compare shop shop-00001 => shop-00001: expected two revisions after the service's name, as `serving compare shop shop-00001 shop-00002`, or none
apply -f BADLIST => BADLIST:1: List: items is 5; expected a list of manifests
deplyo x => No such command 'deplyo'. Did you mean deploy or replay?
deploy shop_x FOLDER --command true => 'shop_x' is not a service's name: at most 63 of a-z, 0-9 and '-', beginning with a letter, not ending with '-'
deploy shop MISSING --command true => MISSING is missing: expected a folder, as in `serving deploy shop .`
deploy shop FILE --command true => FILE is a file: expected a folder, as in `serving deploy shop .`
deploy shop EMPTY => EMPTY has nothing to run: expected a Containerfile, a Procfile, a Python or Node app or an index.html in it, a command after --command, as 'python app.py', or an --image
deploy shop FOLDER --command 'echo "' => 'echo "' is not a command as in a shell (no closing quotation)
deploy shop FOLDER --command '  ' => --command is empty: name a command after --command, as 'python app.py'
deploy shop FOLDER --command '' => Invalid value for '--command': it is empty; expected a value. Is a variable of the shell not set?
deploy shop FOLDER --command true --image= => Invalid value for '--image': it is empty; expected a value
deploy shop '' --command true => Invalid value for '[FOLDER]': it is empty; expected a value
delete '' => Invalid value for '[NAME|KIND/NAME]...': it is empty; expected a value
delete ksvc/ => '' is not the name of a Service
get services '' => Invalid value for '[NAME]...': it is empty; expected a value
get ksvc/ => ksvc/ has no name: expected ksvc/NAME, or ksvc for all
apply -f '' => Invalid value for '-f' / '--filename': it is empty; expected a value
apply -f BADPORT => spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767
volume create v --size '' => Invalid value for '--size': it is empty; expected a value
deploy shop FOLDER --command true --port 0 => Invalid value for '--port': 0 is not in the range 1<=x<=65535.
deploy shop FOLDER --command true --port http => Invalid value for '--port': 'http' is not a whole number.
deploy shop FOLDER --command true --fixed-port 70000 => Invalid value for '--fixed-port': 70000 is not in the range 1<=x<=65535.
deploy shop FOLDER --command true --min -1 => Invalid value for '--min' / '--min-scale': -1 is not in the range x>=0.
deploy shop FOLDER --command true --min 3 --max 1 => annotation autoscaling.knative.dev/min-scale: 3 is above max-scale 1; expected at most 1
deploy shop FOLDER --command true --memory lots => '--memory lots' is not a memory quantity such as "128Mi" or "1G"
deploy shop FOLDER --command true --memory -1Gi => '--memory -1Gi' is not a limit: it is more than 0
deploy shop FOLDER --command true --timeout 0 => Invalid value for '--timeout': '0' is not a time of whole seconds, from 1s on
deploy shop FOLDER --command true --timeout soon => Invalid value for '--timeout': 'soon' is not a time; expected seconds as 90, or 90s, 5m, 1h
deploy shop FOLDER --command true --timeout 90000 => spec.template.spec.timeoutSeconds: Invalid value: 90000: expected 0 <= 90000 <= 3600
deploy shop FOLDER --command true --window 1s => annotation autoscaling.knative.dev/window: '1s' is not right; expected a duration from 6s to 1h, in whole seconds
deploy shop FOLDER --command true --target 0 => Invalid value for '--target': 0.0 is not in the range x>0.
deploy shop FOLDER --command true -e NOVALUE => 'NOVALUE' is not NAME=VALUE after --env
deploy shop FOLDER --command true -e A=1 -e A=2 => 'A=2' is not the only --env for A: each name is given once
deploy shop FOLDER --command true --env-file MISSING => Invalid value for '--env-file': File 'MISSING' does not exist.
deploy shop FOLDER --command true --env-file FILE => FILE:1: 'not a manifest: ['; expected NAME=VALUE, a comment or an empty line
deploy shop FOLDER --command true --secret X => 'X' is not NAME=SECRET:KEY after --secret, as in DB_PASSWORD=db:password
deploy shop FOLDER --command true --secret A=absent:key => --secret: there is no Secret absent in namespace default; `kubectl create secret generic absent --from-literal=key=...` creates it
deploy shop FOLDER --command true --volume x => 'x' is not NAME:/PATH after --volume, as in db:/var/lib/db
deploy shop FOLDER --command true --volume absent:/data => --volume: there is no volume absent in namespace default; `serving volume create absent`
deploy shop FOLDER --command true --access everyone => Invalid value for '--access': 'everyone' is not one of 'public', 'private'.
deploy shop FOLDER --command true --session-affinity x => annotation serving.dev/session-affinity is "x", expected "cookie", "header:NAME", "prefix" or "none"
deploy shop FOLDER --command true --route-by-header x => annotation serving.dev/route-by-header is "x", expected HEADER=VALUE:TAG, as in X-Beta=yes:candidate
deploy shop FOLDER --command true --tcp x => annotation serving.dev/tcp: "x" in "x" is not right; expected a port from 1 to 65535, as in "5432", or several with commas, as in "5432,8883/tls"
deploy shop FOLDER --command true --annotate 'bad key=1' => spec.template.metadata.annotations: Invalid value: 'bad key': not an annotation's name
deploy shop FOLDER --command true --memory 1e400 => resources.limits[memory]: Invalid value: "1e400": must be less than or equal to 9223372036854775807
deploy shop FOLDER --command true --policy nope => "nope": no such policy; expected one of knative, adaptive
deploy shop FOLDER --command true --labels a=b => No such option: --labels; `main deploy --help` lists the options
deploy shop FOLDER --command true --annotate x => 'x' is not KEY=VALUE after --annotate
deploy shop FOLDER --command true --annotate autoscaling.knative.dev/min-scale=x => annotation autoscaling.knative.dev/min-scale: 'x' is not right; expected a whole number from 0 to 2147483647
deploy shop FOLDER --command true --annotate serving.dev/dormant=sometimes => annotation serving.dev/dormant: 'sometimes' is not right; expected "never", "only", "after=10s" or "only,after=10s", with a time from 100ms to 24h
deploy shop FOLDER --command true --annotate serving.dev/dorment=only => invalid key name "serving.dev/dorment": spec.template.metadata.annotations: did you mean serving.dev/dormant?
deploy shop FOLDER --image 'bad image!!' => 'bad image!!' is not an image's name, such as nginx, ghcr.io/owner/app:1.2 or registry:5000/app@sha256:...
deploy --image nginx => --image needs a name, as in `serving deploy shop --image IMAGE`
deploy shop FOLDER --asgi app => 'app' is not a module and the name of an ASGI app in it, as in --asgi app:app
deploy shop FOLDER --asgi app:app --command true => --asgi says what to run, and how: leave out --command
deploy shop FOLDER --command true --wait-timeout never => Invalid value for '--wait-timeout': 'never' is not a time; expected seconds as 90, or 90s, 5m, 1h
deploy shop FOLDER --command true -o yaml => Invalid value for '-o' / '--output': 'yaml' is not one of 'text', 'json'.
deploy shop FOLDER --command true --no-traffic => --no-traffic: shop is new, and its first revision gets all traffic: leave it out
deploy shop FOLDER --command true --frob => No such option: --frob; `main deploy --help` lists the options
deploy shop FOLDER extra --command true => Got unexpected extra argument (extra); expected [NAME] [FOLDER]
deploy shop FOLDER --command true -n absent => no namespace absent; there are default,
dev hello FOLDER --command true => the service hello exists, and dev deletes its service at the end: choose another name, as in `serving dev hello-dev .`
update hello => name a change: see `serving update --help`
update absent -e A=1 => no service absent in namespace default; there are hello
update hello --remove-env NOPE => 'NOPE' is not one of its variables: it has none
scale hello => give COUNT, --min, --max or another option of scaling: see `serving scale --help`
scale hello few => Invalid value for '[COUNT]': 'few' is not a whole number.
scale hello 3 --min 1 => COUNT sets both bounds: omit --min and --max
traffic hello 1=50 => hello-00001=50 is 50 % together; expected 100 %
traffic hello 1=half => '1=half' is not REVISION=PERCENT, as hello-00001=90
traffic hello 9=100 => '9' is not a revision of it; there are hello-00001, and @latest
traffic hello --rollback => hello-00001 is the newest revision with traffic, and no older revision is ready: there is nothing to roll back to
traffic hello --to-latest --rollback => REVISION=PERCENT, --to-latest and --rollback each direct all traffic: use only one of them
traffic hello --tag x => 'x' is not REVISION=TAG, as hello-00002=canary
traffic hello --tag 1=BAD_TAG => spec.traffic[1].tag: Invalid value: "BAD_TAG": must be a DNS label: at most 63 lower case letters, digits and '-', beginning with a letter and not ending with '-'
traffic hello --untag nope => 'nope' is not a tag of it; there are none
logs hello --pod nope => no pod of hello ends with nope; there
adopt deploy/nope => no deployment nope in namespace default; there
scale hello -1 => -1 is not an option; expected a number of 0 or more
invoke hello --timeout x => Invalid value for '--timeout': 'x' is not a number.
backup /missing/x => /missing/x: No such file or directory; expected a path that exists
simulate --seed x => Invalid value for '--seed': 'x' is not a whole number.
simulate --node-boot 5s => --node-boot: there are no nodes; expected --nodes COUNT beside it
policy test hello/app.py:Nope => 'hello/app.py:Nope' is not a class with observe(second) and propose(view)
describe a/b => 'a' is not a kind such as services
get frobs => 'frobs' is not a kind such as services
get servces => 'servces' is not a kind; the nearest is services. A service is shown by `serving get services servces`
get services nope => no service nope in namespace default; there are hello
get services -n nope => no namespace nope; there are default,
get all => 'all' is not a kind: `serving get` lists the services, `serving describe NAME` shows all of one
get configmap nope => no configmap nope in namespace default; there
get -o frob => Invalid value for '-o' / '--output': 'frob' is not one of 'table', 'wide', 'json', 'yaml', 'name'.
get -o 'jsonpath={.x' => -o jsonpath={.x: '{.x' is not text, or an expression in braces as {.metadata.name}
get services -l 'a in' => unable to parse label selector 'a in': syntax error at 'a in'
deploy hello => ; `serving deploy ./hello` runs the folder hello
logs ksvc/hello => no service ksvc/hello in namespace default; there are hello; name the service alone: hello
wait nope => no service nope in namespace default; there are hello
delete ksvc => no service ksvc in namespace default; there are hello; ksvc is a kind: for one object write ksvc/NAME
reload => No such command 'reload'. Did you mean serving up --reload?
image frob => No such command 'frob'. `serving image` has import, list, pull, rm.
describe nope => no service nope in namespace default; there are hello
logs hello nope => no service nope in namespace default; there are hello
logs hello --since yesterday => --since 'yesterday' is not a time: expected 10m (ago), 13:05 (of today) or 2026-11-24T13:05
logs hello --grep '(' => --grep '(' is not a regular expression: missing ), unterminated subpattern at position 0
logs hello --since 1m --until 2m => --since 1m is after --until 2m
logs hello --tail 3 --grep x => --tail excludes --until and --grep
deploy x --image y --tag A_B => 'A_B' is not a tag: expected at most 63 of a-z, 0-9 and '-', as in --tag candidate
update x --tag a --no-wait => leave out --no-wait, or later `serving traffic NAME --tag`
stats a/b => 'a/b' is not a service's name; `serving get` lists the services
stats ksvc/hello => 'ksvc/hello' is not a service's name; name the service alone: hello; `serving get` lists the services
requests nope => no request of nope in default is recorded, and there is no such service, workload or revision; `serving get` lists services
compare hello 1 9 => '9' is not a revision of it; there are hello-00001, and @latest
exec hello => Missing argument '-- COMMAND...'.
invoke hello -d @MISSING => MISSING: No such file or directory
invoke hello -H bad => --header: 'bad' is not right; expected NAME:VALUE
invoke hello -X 'BAD METHOD' => --request: 'BAD METHOD' is not a method such as GET or POST
invoke hello --tag none => hello has no tag none that has traffic; its tags are: none
url hello --tag x => hello has no tag x that has traffic; its tags are: none
url hello --tag x --cluster-local => --tag and --cluster-local exclude each other
token revoke nobody => there is no token nobody; `serving token list` shows them
wait hello --for done => Invalid value for '--for': 'done' is not one of 'ready', 'gone', 'zero'.
delete => nothing to delete: name services, or use -f FILE
delete nope => no service nope in namespace default; there are hello
delete -f MISSING => MISSING: not readable: No such file or directory; expected a file of YAML or JSON
apply => Missing option '-f' / '--filename'.
apply -f MISSING => MISSING: not readable: No such file or directory; expected a file of YAML or JSON
apply -f FILE => FILE:2: not YAML: did not find expected node content; expected YAML or JSON
apply -f NOTHING => NOTHING: it is empty; expected a manifest: apiVersion, kind and metadata.name
apply -f BADKIND => BADKIND:1: Servise/a: serving.knative.dev/v1 Servise is not served here; expected a kind of
apply -f BADFIELD => BADFIELD:1: service/a: Service in version "v1" cannot be handled as a Service: strict decoding error: unknown field "spec.template.spec.containers[0].imag"
apply -f BADVALUE => annotation autoscaling.knative.dev/min-scale: 'few' is not right; expected a whole number from 0 to 2147483647
apply -f NONAME => NONAME:1: metadata.name is missing or not a text; expected a name
apply -f TWICE => TWICE:4: not YAML: duplicate key 'metadata'; expected YAML or JSON
convert => Missing argument 'FILE...'.
convert MISSING => MISSING: No such file or directory
convert BADKIND => BADKIND: nothing to convert; expected a compose file with services, an HTTPScaledObject or an InterceptorRoute
image rm nope => no image nope; `serving image list` shows those that are here
image import MISSING => Invalid value for 'FILE': Path 'MISSING' does not exist.
image import FILE => FILE: 'FILE' is not an OCI image layout, or a file of `docker save` or `podman save`
image pull 'bad!!' => 'bad!!' is not an image's name, such as nginx, ghcr.io/owner/app:1.2 or registry:5000/app@sha256:...
volume create BAD_NAME => volume BAD_NAME, --size 1Gi: 'BAD_NAME' is not a volume's name: at most 63 of a-z, 0-9 and '-', beginning with a letter, not ending with '-'
volume create v --size lots => volume v, --size lots: 'lots' is not a memory quantity such as "128Mi" or "1G"
volume delete nope => no persistentvolumeclaim nope in namespace default; there is none
why nope => no decision about nope in default: there is no service, workload or revision of this name; `serving get` lists them
why hello --since soon => --since: 'soon' is not a duration such as "60s", "1m30s" or "500ms"
nodegroups nope => No such command 'nope'.
replay MISSING => Invalid value for 'FILES...': File 'MISSING' does not exist.
replay FILE => FILE:1: 'not a manifest: [' is not a line of the decision log: JSON is malformed: invalid character (byte 4)
simulate --trace MISSING => MISSING: No such file or directory; expected a trace that can be read
simulate --trace FILE => FILE:1: 'not a manifest: [' is not right; expected one of: function,1,2,...; at_s,function,duration_s; at_s,count
simulate --load x => 'x' is not SECOND:REQUESTS_PER_SECOND in rising order, up to 3.16224e+08:1e+06, as in "0:0 10:50 60:0"
simulate --stable-window 1s => stable-window: '1s' is not right; expected a duration from 6s to 1h, in whole seconds
simulate --compare frob => --compare: there is nothing to compare; expected --trace FILE beside it
policy test frob => 'frob' is not FILE.py:Class, a Python file and a class in it with observe(second) and propose(view)
config show frob => Invalid value for '[DAEMON]...': 'frob' is not one of 'activator', 'autoscaler', 'controller', 'dashboard', 'election', 'nodegroup', 'placement', 'queueproxy'.
config check BADVALUE => BADVALUE:1: kind is Service; expected kind: ConfigMap with a metadata.name
restore MISSING => MISSING: there is no such file; expected one of `serving backup`
get --kubeconfig MISSING => MISSING: not readable: No such file or directory; expected a kubeconfig, as `serving up` or a cluster's tool writes it
status extra => Got unexpected extra argument (extra); expected options only
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong")
    for name in ("FOLDER", "EMPTY", "hello"):
        (folder / name).mkdir()
    (folder / "hello" / "index.html").touch()
    (folder / "hello" / "app.py").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _hello(serving: Stage, folder: Path) -> None:
    serving("deploy", str(folder / "hello"))


@pytest.mark.parametrize("row", COMMANDS.strip().splitlines())
def test_invalid_command_prints_the_expected_error(
    serving: Stage, folder: Path, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, _, expected = row.partition(" => ")
    monkeypatch.chdir(folder)
    state_option = [] if command.startswith(ALONE) else ["--state", str(serving.state)]
    first, *rest = shlex.split(command)
    group = [rest.pop(0)] if first in {"image", "volume"} or rest[:1] == ["revoke"] else []
    done = CliRunner().invoke(main, [first, *group, *state_option, *rest], env={"KUBECONFIG": None, "COLUMNS": "200"})
    assert done.exit_code in {1, 2}, done.output
    assert expected in done.stderr.replace(f"{folder}/", ""), done.stderr
