"""The kinds of resources that this project reads and writes, by their Kubernetes API names.

Kinds of ``serving.knative.dev/v1`` have the same fields as Knative's, so that Knative manifests apply unchanged.
``serving.dev/v1alpha1`` has this project's kinds. The other kinds are Kubernetes'. The memory store supports only these
kinds.
"""

import msgspec

from serving.core.model.knative import OWN_API_VERSION, SERVING_GROUP


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of resource. ``group`` is "" for Kubernetes' core. Users write ``durable`` kinds, which are journalled.

    Objects of a ``durable_unowned`` kind are journalled only if no controller owns them, because a controller creates
    its objects again. ``is_view`` marks a kind that the controller derives from other objects; the API server rejects
    writes to it.
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
    durable_unowned: bool = False
    is_view: bool = False

    def __hash__(self) -> int:
        # By text, because msgspec's hash differs between processes, and would change the order of sets.
        return hash(self.plural)

    @property
    def api_version(self) -> str:
        """The API version in manifests: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The resource name in messages: "pods", "services.serving.knative.dev"."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _kind(
    api_version: str, name: str, plural: str, *short_names: str, categories: tuple[str, ...] = (), **flags: bool
) -> Kind:
    group, _, version = api_version.rpartition("/")
    return Kind(
        group=group,
        version=version,
        name=name,
        plural=plural,
        short_names=short_names,
        categories=categories,
        **flags,
    )


def _core(name: str, plural: str, *short_names: str, has_status: bool = False, **flags: bool) -> Kind:
    return _kind("v1", name, plural, *short_names, categories=(), has_status=has_status, **flags)


def _knative(version: str, name: str, plural: str, *short_names: str) -> Kind:
    categories = ("all", "knative", "serving")
    return _kind(f"{SERVING_GROUP}/{version}", name, plural, *short_names, categories=categories, durable=True)


def _machines(name: str, plural: str, *short_names: str, has_scale: bool = True) -> Kind:
    """A kind of the Cluster API, which installs its CustomResourceDefinitions itself."""
    version, categories = "cluster.x-k8s.io/v1beta1", ("cluster-api",)
    return _kind(version, name, plural, *short_names, categories=categories, has_scale=has_scale)


def _internal(group: str, name: str, plural: str, *short_names: str, **flags: bool) -> Kind:
    """One of Knative's internal kinds."""
    version, categories = f"{group}.internal.knative.dev/v1alpha1", ("knative-internal", group)
    return _kind(version, name, plural, *short_names, categories=categories, **flags)


NAMESPACE = _core("Namespace", "namespaces", "ns", durable=True, has_status=True, namespaced=False)
# Durable, because users cordon and taint nodes.
NODE = _core("Node", "nodes", "no", has_status=True, durable=True, namespaced=False)
POD = _core("Pod", "pods", "po", has_status=True)
SERVICE = _core("Service", "services", "svc", has_status=True, durable_unowned=True)
CONFIG_MAP = _core("ConfigMap", "configmaps", "cm", durable=True)
SECRET = _core("Secret", "secrets", durable=True)
SERVICE_ACCOUNT = _core("ServiceAccount", "serviceaccounts", "sa", durable=True)
RESOURCE_QUOTA = _core("ResourceQuota", "resourcequotas", "quota", durable=True, has_status=True)
PERSISTENT_VOLUME_CLAIM = _core("PersistentVolumeClaim", "persistentvolumeclaims", "pvc", durable=True, has_status=True)
LIMIT_RANGE = _core("LimitRange", "limitranges", "limits", durable=True)
EVENT = _core("Event", "events", "ev")
DEPLOYMENT = _kind("apps/v1", "Deployment", "deployments", "deploy", has_scale=True, durable_unowned=True)
ENDPOINT_SLICE = _kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", has_status=False)
HORIZONTAL_POD_AUTOSCALER = _kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa")
# Of the Gateway API, which installs its own definitions.
HTTP_ROUTE = _kind(
    "gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", categories=("gateway-api",), durable_unowned=True
)
# Of cert-manager, which installs its own definitions.
CERTIFICATE = _kind(
    "cert-manager.io/v1",
    "Certificate",
    "certificates",
    "cert",
    "certs",
    categories=("cert-manager",),
    durable_unowned=True,
)
INGRESS = _kind("networking.k8s.io/v1", "Ingress", "ingresses", "ing", durable=True)
HTTP_SCALED_OBJECT = _kind("http.keda.sh/v1alpha1", "HTTPScaledObject", "httpscaledobjects", "httpso", durable=True)
INTERCEPTOR_ROUTE = _kind("http.keda.sh/v1beta1", "InterceptorRoute", "interceptorroutes", durable=True)
KEDA_SCALED_OBJECT = _kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", "so", durable=True)
LEASE = _kind("coordination.k8s.io/v1", "Lease", "leases", has_status=False)
POD_DISRUPTION_BUDGET = _kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", durable=True)
MACHINE = _machines("Machine", "machines", "ma", has_scale=False)
MACHINE_SET = _machines("MachineSet", "machinesets", "ms")
MACHINE_DEPLOYMENT = _machines("MachineDeployment", "machinedeployments", "md")
MACHINE_POOL = _machines("MachinePool", "machinepools", "mp")
# Resource usage of nodes and pods, served by metrics-server in a cluster, without watches.
NODE_METRICS = _kind("metrics.k8s.io/v1beta1", "NodeMetrics", "nodes", namespaced=False, has_status=False)
POD_METRICS = _kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods", has_status=False)
# Only a cluster has them: one machine has no Roles.
ROLE_BINDING = _kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", has_status=False)
# A query rather than an object: only the response to its creation exists.
TOKEN_REVIEW = _kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", namespaced=False)
SERVING_SERVICE = _knative("v1", "Service", "services", "kservice", "ksvc")
CONFIGURATION = _knative("v1", "Configuration", "configurations", "config", "cfg")
REVISION = _knative("v1", "Revision", "revisions", "rev")
ROUTE = _knative("v1", "Route", "routes", "rt")
DOMAIN_MAPPING = _knative("v1beta1", "DomainMapping", "domainmappings", "dm")
CLUSTER_DOMAIN_CLAIM = _internal(
    "networking", "ClusterDomainClaim", "clusterdomainclaims", "cdc", namespaced=False, durable=True
)
# Views of a revision's scale and traffic path.
SERVERLESS_SERVICE = _internal("networking", "ServerlessService", "serverlessservices", "sks", is_view=True)
POD_AUTOSCALER = _internal("autoscaling", "PodAutoscaler", "podautoscalers", "kpa", "pa", is_view=True)
SCALING_POLICY = _kind(OWN_API_VERSION, "ScalingPolicy", "scalingpolicies", "sp", durable=True)
SCALED_WORKLOAD = _kind(OWN_API_VERSION, "ScaledWorkload", "scaledworkloads", "sw", durable=True)
# Cluster-scoped, like nodes.
NODE_GROUP = _kind(OWN_API_VERSION, "NodeGroup", "nodegroups", "ng", namespaced=False, durable=True)


def _unused(group: str, name: str, plural: str, *, namespaced: bool = True) -> Kind:
    return Kind(group=group, version="v1", name=name, plural=plural, namespaced=namespaced, is_view=True)


REPLICA_SET = _unused("apps", "ReplicaSet", "replicasets")
STATEFUL_SET = _unused("apps", "StatefulSet", "statefulsets")
TARGET_KINDS = (DEPLOYMENT, STATEFUL_SET, REPLICA_SET)
"""The kinds that a ScaledWorkload may scale."""

UNUSED_KINDS = (
    _unused("", "Endpoints", "endpoints"),
    _unused("", "PersistentVolume", "persistentvolumes", namespaced=False),
    _unused("", "ReplicationController", "replicationcontrollers"),
    _unused("apps", "DaemonSet", "daemonsets"),
    REPLICA_SET,
    STATEFUL_SET,
    _unused("batch", "Job", "jobs"),
    _unused("batch", "CronJob", "cronjobs"),
)
"""Read-only kinds that clients such as ``kubectl apply --prune`` list although nothing here runs them."""

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
    PERSISTENT_VOLUME_CLAIM,
    EVENT,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    HORIZONTAL_POD_AUTOSCALER,
    HTTP_ROUTE,
    HTTP_SCALED_OBJECT,
    CERTIFICATE,
    INGRESS,
    INTERCEPTOR_ROUTE,
    KEDA_SCALED_OBJECT,
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
    SCALED_WORKLOAD,
    NODE_GROUP,
    *UNUSED_KINDS,
)

_BY_TYPE = {(kind.api_version, kind.name): kind for kind in KINDS}


def kind_of(api_version: str, name: str) -> Kind | None:
    """The kind with this ``apiVersion`` and name; None if unknown."""
    return _BY_TYPE.get((api_version, name))


def target_kind(api_version: str, name: str) -> Kind | None:
    """The kind of a ScaledWorkload's target; None if it cannot be scaled here."""
    kind = kind_of(api_version, name)
    return kind if kind in TARGET_KINDS else None
