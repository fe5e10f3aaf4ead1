#!/usr/bin/env bash
# Knative's performance benchmarks against `serving up`, with containers, in a network namespace of its own.
#
#   bench/knative_performance.sh BUILT SOURCE RUN...
#
# BUILT   folder with the benchmarks (perf/NAME) and the static programs of Knative's test images (images/NAME); docs/conformance.md builds them
# SOURCE  work tree of knative/serving, whose manifests are applied
# RUN     warm-N, zero-N: scale-from-zero with N services, as it is, and with its wait for zero mended
#         probe-activator, probe-queue, load-zero, load-always, load-200, rollout-queue-proxy-with-cc, rollout-activator-with-cc,
#         rollout-activator-with-cc-lin, traffic, reconciliation
#
# DURATION is that of probe, rollout (3m) and reconciliation (2m). Output goes to OUT (a new folder), a summary to standard output.
# Needs root, crun, unshare, kubectl. The metrics that the benchmarks send to InfluxDB are dropped.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
if [ -z "${IN_NAMESPACE:-}" ]; then
  export IN_NAMESPACE=1
  exec unshare --net --mount --propagation private "$0" "$@"
fi
built=$(realpath "$1") source=$(realpath "$2"); shift 2
root=$(realpath "$(dirname "$0")/.."); python=$root/.venv/bin/python
out=$(realpath "${OUT:-$(mktemp -d)}"); state=$out/state
mkdir -p "$out/archives"
serving() { "$root/.venv/bin/serving" "$@"; }
settings() { kubectl create configmap "$1" -n knative-serving --from-literal="$2" >/dev/null; }

cleanup() {
  for pid in "${influx:-}" "${system:-}"; do [ -n "$pid" ] && kill "$pid" 2>/dev/null && wait "$pid" || true; done
}
trap cleanup EXIT
ip link set lo up
(cd "$root" && "$python" -m bench.parts.static_image "$built/images" "$out/archives" conf.test)
# The program itself, so that its process is the one that is ended: a function in the background is a shell.
"$root/.venv/bin/serving" up --state "$state" --isolation none >"$out/system.log" 2>&1 & system=$!
export KUBECONFIG=$state/kubeconfig
for _ in $(seq 300); do kubectl get --raw /readyz >/dev/null 2>&1 && break; sleep 0.2; done
for archive in "$out"/archives/*.tar; do serving image import --state "$state" "$archive" >/dev/null; done
# The address at which pods find names and cluster-local services at port 80; the benchmarks are no pods and get the same names.
inner=$(cd "$root" && "$python" -c "
import sys; from pathlib import Path; from serving.home.containers.network import gateway_of; print(gateway_of(Path(sys.argv[1])).inner)" "$state")
echo "nameserver $inner" >"$out/resolv.conf"
"$python" - <<'P' & influx=$!
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Sink(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0)); self.send_response(204); self.end_headers()
    def log_message(self, *_): pass
ThreadingHTTPServer(("127.0.0.1", 9999), Sink).serve_forever()
P
kubectl create namespace knative-serving >/dev/null 2>&1 || true
settings config-features kubernetes.podspec-init-containers=enabled
settings config-autoscaler scale-to-zero-grace-period=10s

# run NAME PROGRAM FLAGS...: one benchmark, with the names of pods.
run() {
  local name=$1 program=$2 code=0; shift 2
  echo "== $name, load average $(cut -d' ' -f1 /proc/loadavg)"
  SYSTEM_NAMESPACE=knative-serving INFLUX_URL=http://127.0.0.1:9999 INFLUX_TOKEN=x KO_DOCKER_REPO=conf.test \
    JOB_NAME=local BUILD_ID=local POD_NAMESPACE=default POD_NAME=perf HOME=$out \
    unshare --mount --propagation private sh -c 'mount --bind "$0" /etc/resolv.conf && exec "$@"' \
    "$out/resolv.conf" "$built/perf/$program" "$@" >"$out/$name.log" 2>&1 || code=$?
  grep -v influxdb2client "$out/$name.log" | grep -E '^(Requests|Duration|Latencies|Success|Status)|SLA|Created all|rror' | grep -v 'SLA [0-9] passed' | tail -n 12
  echo "   exit $code, load average $(cut -d' ' -f1 /proc/loadavg)"
  kubectl delete ksvc --all --wait=true >/dev/null 2>&1 || true
}
# applied FILE NAMES...: the services of a manifest of the benchmark that are named.
applied() {
  local file=$source/test/performance/benchmarks/$1; shift
  sed 's#ko://knative.dev/serving/test/test_images/#conf.test/#' "$file" >"$out/setup.yaml"
  kubectl apply -f "$out/setup.yaml" >/dev/null
  for service in $(kubectl get ksvc -o name); do case " $* " in *" ${service##*/} "*) ;; *) kubectl delete "$service" >/dev/null ;; esac; done
  kubectl wait --timeout=800s --for=condition=Ready ksvc --all >/dev/null
}
for one in "$@"; do
  case $one in
    warm-*) run "$one" scale-from-zero -parallel="${one#*-}" ;;
    zero-*) run "$one" scale-from-zero-waits -parallel="${one#*-}" ;;
    probe-activator) applied dataplane-probe/dataplane-probe-setup.yaml activator; run "$one" dataplane-probe -target=activator -duration="${DURATION:-3m}" ;;
    probe-queue) applied dataplane-probe/dataplane-probe-setup.yaml queue-proxy; run "$one" dataplane-probe -target=queue -duration="${DURATION:-3m}" ;;
    load-*) applied load-test/load-test-setup.yaml "load-test-${one#*-}"; run "$one" load-test -flavor="${one#*-}" ;;
    rollout-*) target=${one#*-} file=${one#rollout-}
      case $target in queue-*) file=queue-proxy-direct ;; *-lin) file=activator-direct-lin ;; *) file=activator-direct ;; esac
      applied "rollout-probe/rollout-probe-setup-$file.yaml" "$target"; run "$one" rollout-probe -target="$target" -duration="${DURATION:-3m}" ;;
    traffic) run "$one" real-traffic-test ;;
    reconciliation) run "$one" reconciliation-delay-without-ingress -duration="${DURATION:-2m}" ;;
    *) echo "$one is no run; see the head of this script" >&2; exit 2 ;;
  esac
done
echo "logs: $out"
