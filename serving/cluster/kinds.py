"""The kinds of resources that this project reads and writes, by their names in the Kubernetes API.

``serving.knative.dev/v1`` has Knative's own shapes, so that Knative manifests apply unchanged; ``serving.dev/v1alpha1`` is
ours; the rest is Kubernetes'. The memory store knows only these kinds.
"""

import msgspec

from serving.model.knative import OWN_GROUP, SERVING_GROUP


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: ``group`` is "" for Kubernetes' core. ``durable`` kinds are written by users and journalled.

    ``is_view`` marks a kind that the controller derives from other objects; the API server rejects writes to it.
    """

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_status: bool = True
    has_scale: bool = False
    durable: bool = False
    is_view: bool = False

    def __hash__(self) -> int:
        # By text: msgspec's own hash differs between processes, and so would the order of a set of keys.
        return hash(self.plural)

    @property
    def api_version(self) -> str:
        """The API version in manifests: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The resource name in messages: "pods", "services.serving.knative.dev"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _core(name: str, plural: str, *short_names: str, durable: bool = False, has_status: bool = False) -> Kind:
    return Kind(
        group="",
        version="v1",
        name=name,
        plural=plural,
        short_names=short_names,
        has_status=has_status,
        durable=durable,
    )


def _knative(name: str, plural: str, *short_names: str, categories: tuple[str, ...]) -> Kind:
    return Kind(
        group=SERVING_GROUP,
        version="v1",
        name=name,
        plural=plural,
        short_names=short_names,
        categories=categories,
        durable=True,
    )


NAMESPACE = msgspec.structs.replace(
    _core("Namespace", "namespaces", "ns", durable=True, has_status=True), namespaced=False
)
# Durable, because users cordon and taint.
NODE = msgspec.structs.replace(_core("Node", "nodes", "no", has_status=True, durable=True), namespaced=False)
POD = _core("Pod", "pods", "po", has_status=True)
SERVICE = _core("Service", "services", "svc", has_status=True)
CONFIG_MAP = _core("ConfigMap", "configmaps", "cm", durable=True)
SECRET = _core("Secret", "secrets", durable=True)
SERVICE_ACCOUNT = _core("ServiceAccount", "serviceaccounts", "sa", durable=True)
RESOURCE_QUOTA = _core("ResourceQuota", "resourcequotas", "quota", durable=True, has_status=True)
LIMIT_RANGE = _core("LimitRange", "limitranges", "limits", durable=True)
EVENT = _core("Event", "events", "ev")
DEPLOYMENT = Kind(
    group="apps", version="v1", name="Deployment", plural="deployments", short_names=("deploy",), has_scale=True
)
ENDPOINT_SLICE = Kind(
    group="discovery.k8s.io", version="v1", name="EndpointSlice", plural="endpointslices", has_status=False
)
HORIZONTAL_POD_AUTOSCALER = Kind(
    group="autoscaling",
    version="v2",
    name="HorizontalPodAutoscaler",
    plural="horizontalpodautoscalers",
    short_names=("hpa",),
)
# Of the Gateway API, which installs its own definitions.
HTTP_ROUTE = Kind(
    group="gateway.networking.k8s.io",
    version="v1",
    name="HTTPRoute",
    plural="httproutes",
    categories=("gateway-api",),
)
LEASE = Kind(group="coordination.k8s.io", version="v1", name="Lease", plural="leases", has_status=False)
POD_DISRUPTION_BUDGET = Kind(
    group="policy",
    version="v1",
    name="PodDisruptionBudget",
    plural="poddisruptionbudgets",
    short_names=("pdb",),
    durable=True,
)


def _machines(name: str, plural: str, *short_names: str, has_scale: bool = True) -> Kind:
    """A kind of Cluster API, which installs its own definitions."""
    return Kind(
        group="cluster.x-k8s.io",
        version="v1beta1",
        name=name,
        plural=plural,
        short_names=short_names,
        categories=("cluster-api",),
        has_scale=has_scale,
    )


MACHINE = _machines("Machine", "machines", "ma", has_scale=False)
MACHINE_SET = _machines("MachineSet", "machinesets", "ms")
MACHINE_DEPLOYMENT = _machines("MachineDeployment", "machinedeployments", "md")
MACHINE_POOL = _machines("MachinePool", "machinepools", "mp")
# Resource usage of nodes and pods. In a cluster metrics-server serves it, without watches.
NODE_METRICS = Kind(
    group="metrics.k8s.io", version="v1beta1", name="NodeMetrics", plural="nodes", namespaced=False, has_status=False
)
POD_METRICS = Kind(group="metrics.k8s.io", version="v1beta1", name="PodMetrics", plural="pods", has_status=False)
# A query and not an object: only the response to its creation exists.
TOKEN_REVIEW = Kind(
    group="authentication.k8s.io", version="v1", name="TokenReview", plural="tokenreviews", namespaced=False
)
SERVING_SERVICE = _knative("Service", "services", "kservice", "ksvc", categories=("all", "knative", "serving"))
CONFIGURATION = _knative("Configuration", "configurations", "config", "cfg", categories=("all", "knative", "serving"))
REVISION = _knative("Revision", "revisions", "rev", categories=("all", "knative", "serving"))
ROUTE = _knative("Route", "routes", "rt", categories=("all", "knative", "serving"))
DOMAIN_MAPPING = msgspec.structs.replace(
    _knative("DomainMapping", "domainmappings", "dm", categories=("all", "knative", "serving")), version="v1beta1"
)
CLUSTER_DOMAIN_CLAIM = Kind(
    group="networking.internal.knative.dev",
    version="v1alpha1",
    name="ClusterDomainClaim",
    plural="clusterdomainclaims",
    namespaced=False,
    short_names=("cdc",),
    categories=("knative-internal", "networking"),
    durable=True,
)
# Knative's internal kinds. Here they are views of a revision's scale and traffic path.
SERVERLESS_SERVICE = Kind(
    group="networking.internal.knative.dev",
    version="v1alpha1",
    name="ServerlessService",
    plural="serverlessservices",
    short_names=("sks",),
    categories=("knative-internal", "networking"),
    is_view=True,
)
POD_AUTOSCALER = Kind(
    group="autoscaling.internal.knative.dev",
    version="v1alpha1",
    name="PodAutoscaler",
    plural="podautoscalers",
    short_names=("kpa", "pa"),
    categories=("knative-internal", "autoscaling"),
    is_view=True,
)


def _unused(group: str, name: str, plural: str, *, namespaced: bool = True) -> Kind:
    return Kind(group=group, version="v1", name=name, plural=plural, namespaced=namespaced, is_view=True)


UNUSED_KINDS = (
    _unused("", "Endpoints", "endpoints"),
    _unused("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    _unused("", "PersistentVolume", "persistentvolumes", namespaced=False),
    _unused("", "ReplicationController", "replicationcontrollers"),
    _unused("apps", "DaemonSet", "daemonsets"),
    _unused("apps", "ReplicaSet", "replicasets"),
    _unused("apps", "StatefulSet", "statefulsets"),
    _unused("batch", "Job", "jobs"),
    _unused("batch", "CronJob", "cronjobs"),
    _unused("networking.k8s.io", "Ingress", "ingresses"),
)
"""Kinds that clients list although nothing here runs them: ``kubectl apply --prune`` asks for each. They are only read."""

SCALING_POLICY = Kind(
    group=OWN_GROUP,
    version="v1alpha1",
    name="ScalingPolicy",
    plural="scalingpolicies",
    short_names=("sp",),
    durable=True,
)
# Cluster-scoped, as the nodes are.
NODE_GROUP = Kind(
    group=OWN_GROUP,
    version="v1alpha1",
    name="NodeGroup",
    plural="nodegroups",
    namespaced=False,
    short_names=("ng",),
    durable=True,
)

KINDS: tuple[Kind, ...] = (
    NAMESPACE,
    NODE,
    POD,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    SERVICE_ACCOUNT,
    RESOURCE_QUOTA,
    LIMIT_RANGE,
    EVENT,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    LEASE,
    MACHINE,
    MACHINE_SET,
    MACHINE_DEPLOYMENT,
    MACHINE_POOL,
    NODE_METRICS,
    POD_METRICS,
    POD_DISRUPTION_BUDGET,
    SERVING_SERVICE,
    CONFIGURATION,
    REVISION,
    ROUTE,
    DOMAIN_MAPPING,
    CLUSTER_DOMAIN_CLAIM,
    SERVERLESS_SERVICE,
    POD_AUTOSCALER,
    SCALING_POLICY,
    NODE_GROUP,
    *UNUSED_KINDS,
)

_BY_TYPE = {(kind.api_version, kind.name): kind for kind in KINDS}


def kind_of(api_version: str, name: str) -> Kind | None:
    """The kind with this ``apiVersion`` and ``kind``; None if it is unknown."""
    return _BY_TYPE.get((api_version, name))
