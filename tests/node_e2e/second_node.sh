#!/usr/bin/env bash
# A second node for a Kubernetes of one node that runs in a network namespace, on the same machine.
#
#   second_node.sh up | down | kill | cut | join
#
# up starts containerd, kubelet and kube-proxy in namespaces of their own, down ends them and removes the node; kill ends all of
# them and every container at once, as a power failure does; cut and join take the network from the node and give it back.
#
# BIN         folder with containerd, kubelet, kube-proxy, ctr and cni/
# STATE       folder for the state of this node
# FIRST       PID of a process in the network namespace of the first node, whose bridge is node0 with 10.44.0.1/24
# PKI         folder with ca.crt and ca.key of the cluster
# KUBECONFIG  access of an administrator
# IMAGES      OCI archives that the node has, NAME=FILE, separated by spaces
# LABELS      labels of the node, NAME=VALUE, separated by commas
set -euo pipefail
: "${BIN:?}" "${STATE:?}" "${FIRST:?}" "${PKI:?}" "${KUBECONFIG:?}"
NAME=node-b ADDRESS=10.44.0.2 FIRST_ADDRESS=10.44.0.1 PODS=10.45.1.0/24 FIRST_PODS=10.45.0.0/24
RUN=/run/serving-$NAME SERVER=https://$FIRST_ADDRESS:6443
CONTROLLERS=(cpu cpuacct cpuset memory devices freezer blkio pids systemd)
export PATH=$BIN:/usr/sbin:/sbin:$PATH
mkdir -p "$STATE"/{log,run,pki,cni}

inside() { nsenter -t "$(cat "$STATE/run/holder.pid")" -m -n "$@"; }
first() { nsenter -t "$FIRST" -n "$@"; }
lives() { [ -f "$STATE/run/$1.pid" ] && kill -0 "$(cat "$STATE/run/$1.pid")" 2>/dev/null; }
launch() { local name=$1; shift; lives "$name" && return
  setsid nsenter -t "$(cat "$STATE/run/holder.pid")" -m -n "$@" >>"$STATE/log/$name.log" 2>&1 </dev/null & echo $! >"$STATE/run/$name.pid"; }
leaf() { [ -f "$STATE/pki/$1.crt" ] && return
  openssl req -newkey rsa:2048 -nodes -keyout "$STATE/pki/$1.key" -out "$STATE/pki/$1.csr" -subj "$2" 2>/dev/null
  printf 'extendedKeyUsage=%s\n%s\n' "$3" "${4:+subjectAltName=$4}" >"$STATE/pki/$1.ext"
  openssl x509 -req -in "$STATE/pki/$1.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -CAserial "$STATE/pki/serial" \
    -days 30 -out "$STATE/pki/$1.crt" -extfile "$STATE/pki/$1.ext" 2>/dev/null; }
access() { kubectl config --kubeconfig="$1" set-cluster one --server=$SERVER --certificate-authority="$PKI/ca.crt" --embed-certs
  kubectl config --kubeconfig="$1" set-credentials one --client-certificate="$STATE/pki/$2.crt" --client-key="$STATE/pki/$2.key" --embed-certs
  kubectl config --kubeconfig="$1" set-context one --cluster=one --user=one
  kubectl config --kubeconfig="$1" use-context one; }

network() {
  setsid unshare --mount --net --propagation private sleep infinity </dev/null >/dev/null 2>&1 & echo $! >"$STATE/run/holder.pid"
  sleep 0.5
  inside mount --make-rshared /
  if mountpoint -q /sys/fs/cgroup/unified; then inside umount /sys/fs/cgroup/unified; fi  # crun and runc refuse hybrid cgroups
  inside ip link set lo up
  first ip link add to-$NAME type veth peer name uplink netns "$(cat "$STATE/run/holder.pid")"
  first ip link set to-$NAME master node0 up
  inside ip addr add $ADDRESS/24 dev uplink
  inside ip link set uplink up
  inside ip route add default via $FIRST_ADDRESS
  first ip route replace $PODS via $ADDRESS
  inside ip route replace $FIRST_PODS via $FIRST_ADDRESS
  inside sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
}

configure() {
  leaf kubelet "/O=system:nodes/CN=system:node:$NAME" clientAuth
  leaf serving "/O=system:nodes/CN=system:node:$NAME" serverAuth "IP:$ADDRESS,DNS:$NAME"
  leaf proxy "/CN=system:kube-proxy" clientAuth
  access "$STATE/kubelet.conf" kubelet >/dev/null
  access "$STATE/proxy.conf" proxy >/dev/null
  cat >"$STATE/cni/10-bridge.conflist" <<Y
{"cniVersion":"1.0.0","name":"pods","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,"ipMasq":false,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"$PODS"}]],"routes":[{"dst":"0.0.0.0/0"}],"dataDir":"$STATE/cni-ipam"}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
Y
  cat >"$STATE/containerd.toml" <<Y
version = 3
root = "$STATE/containerd"
state = "$RUN/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.zfs","io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.devmapper","io.containerd.nri.v1.nri","io.containerd.snapshotter.v1.erofs"]
[grpc]
  address = "$RUN/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "localhost/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$BIN/cni"]
    conf_dir = "$STATE/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "$(command -v runc)"
      SystemdCgroup = false
Y
  cat >"$STATE/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $ADDRESS
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $STATE/pki/serving.crt
tlsPrivateKeyFile: $STATE/pki/serving.key
clusterDomain: cluster.local
clusterDNS: ["$FIRST_ADDRESS"]
resolvConf: $STATE/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: /serving-$NAME
cgroupsPerQOS: true
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: ["pods"]
oomScoreAdj: 0
containerRuntimeEndpoint: unix://$RUN/containerd.sock
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%"}
podLogsDir: /var/log/serving-$NAME-pods
Y
  echo "options ndots:1" >"$STATE/resolv.conf"
  # kube-proxy ends when its file is written.
  [ -f "$STATE/proxy.yaml" ] || cat >"$STATE/proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $STATE/proxy.conf}
clusterCIDR: 10.45.0.0/16
hostnameOverride: $NAME
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
oomScoreAdj: 0
metricsBindAddress: 127.0.0.1:10249
healthzBindAddress: 127.0.0.1:10256
Y
  for one in "${CONTROLLERS[@]}"; do mkdir -p /sys/fs/cgroup/$one/serving-$NAME; done
  for one in cpus mems; do cat /sys/fs/cgroup/cpuset/cpuset.$one >/sys/fs/cgroup/cpuset/serving-$NAME/cpuset.$one; done
}

start() {
  launch containerd containerd -c "$STATE/containerd.toml"
  until inside ctr -a $RUN/containerd.sock version >/dev/null 2>&1; do sleep 0.2; done
  for image in ${IMAGES:-}; do
    inside ctr -a $RUN/containerd.sock -n k8s.io images ls -q | grep -qx "${image%%=*}" ||
      inside ctr -a $RUN/containerd.sock -n k8s.io images import --local --index-name "${image%%=*}" "${image#*=}" >/dev/null
  done
  launch kubelet kubelet --config="$STATE/kubelet.yaml" --kubeconfig="$STATE/kubelet.conf" --root-dir="$STATE/kubelet" \
    --hostname-override=$NAME --node-ip=$ADDRESS --node-labels="${LABELS:-}"
  launch kube-proxy kube-proxy --config="$STATE/proxy.yaml"
}

# Ends all of the node at once. Containers are found by the cgroup of the node's pods.
kill_all() {
  for one in kubelet kube-proxy containerd; do lives $one && kill -9 "$(cat "$STATE/run/$one.pid")"; rm -f "$STATE/run/$one.pid"; done
  for pid in $(pgrep -f "containerd-shim-runc-v2.*$RUN/containerd.sock"); do kill -9 "$pid" 2>/dev/null || true; done
  find /sys/fs/cgroup/pids/serving-$NAME -name cgroup.procs -exec cat {} + | xargs --no-run-if-empty kill -9 2>/dev/null || true
}

case "${1:-}" in
  up) lives holder || network; configure; start ;;
  kill) kill_all ;;
  cut) first ip link set to-$NAME down ;;
  join) first ip link set to-$NAME up; first ip route replace $PODS via $ADDRESS ;;
  down) kill_all; lives holder && kill "$(cat "$STATE/run/holder.pid")"; rm -f "$STATE/run/holder.pid"
        kubectl delete node $NAME --ignore-not-found ;;
  *) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
