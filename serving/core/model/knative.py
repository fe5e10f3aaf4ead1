"""The words of the resource API: groups, labels, annotations, states, condition types, and fields of specs.

Each word is defined here and nowhere else (``tests/tidy/test_vocabulary.py``). The names and values are Knative's and
Kubernetes' own; ``serving.dev`` is the group of this project's additions.

Source: knative/serving 98e5ef90, pkg/apis/serving/register.go, pkg/apis/autoscaling/register.go.
"""

import enum
from typing import TypedDict

SERVING_GROUP = "serving.knative.dev"
SERVING_API_VERSION = f"{SERVING_GROUP}/v1"
AUTOSCALING_GROUP = "autoscaling.knative.dev"
OWN_AUTOSCALING_GROUP = "autoscaling.serving.dev"
NETWORKING_GROUP = "networking.knative.dev"
OWN_GROUP = "serving.dev"
OWN_API_VERSION = f"{OWN_GROUP}/v1alpha1"

RevisionKey = tuple[str, str]
"""Namespace and name of a revision."""

QUEUE_PROXY = "queue-proxy"
"""The name of the queue-proxy's container in a pod."""

APP_PROBE = "app"
"""The value of K-Network-Probe for the app itself, where the queue-proxy is in its process."""

# Labels: which object an object belongs to.
APP_LABEL = "app"
POD_TEMPLATE_HASH_LABEL = "pod-template-hash"
UPDATE_TIMESTAMP_ANNOTATION = "client.knative.dev/updateTimestamp"
"""The time of an update on a template, as kn writes it: an unchanged template becomes a new revision."""

SERVICE_LABEL = f"{SERVING_GROUP}/service"
SERVICE_UID_LABEL = f"{SERVING_GROUP}/serviceUID"
CONFIGURATION_LABEL = f"{SERVING_GROUP}/configuration"
CONFIGURATION_UID_LABEL = f"{SERVING_GROUP}/configurationUID"
CONFIGURATION_GENERATION_LABEL = f"{SERVING_GROUP}/configurationGeneration"
REVISION_LABEL = f"{SERVING_GROUP}/revision"
REVISION_UID_LABEL = f"{SERVING_GROUP}/revisionUID"
ROUTE_LABEL = f"{SERVING_GROUP}/route"
ROUTING_STATE_LABEL = f"{SERVING_GROUP}/routingState"
VISIBILITY_LABEL = f"{NETWORKING_GROUP}/visibility"
CLUSTER_LOCAL = "cluster-local"
"""The one value of that label: the service is not public."""

# Annotations that Knative defines.
ROUTING_STATE_MODIFIED_ANNOTATION = f"{SERVING_GROUP}/routingStateModified"
DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
ROUTES_ANNOTATION = f"{SERVING_GROUP}/routes"
"""Names of the routes that reference a revision, separated by commas."""
COMPONENTS_ANNOTATION = f"{OWN_GROUP}/components"
"""The components of an installation, at its namespace: a later one without ``--component`` keeps them."""
CREATOR_ANNOTATION = f"{SERVING_GROUP}/creator"
LAST_MODIFIER_ANNOTATION = f"{SERVING_GROUP}/lastModifier"
BECAME_READY_ANNOTATION = f"{SERVING_GROUP}/lastPinned"
"""When a revision first became ready. The journal keeps metadata and no status, so this survives a restart.

Knative marked with it that a route had a revision, and writes it no longer; ``kn service export`` still leaves it out.
"""
FORMER_BECAME_READY_ANNOTATION = f"{OWN_GROUP}/became-ready"
"""Where earlier versions keep that time. It is still read; the next write of a routing state replaces it."""
BECAME_READY_ANNOTATIONS = frozenset({BECAME_READY_ANNOTATION, FORMER_BECAME_READY_ANNOTATION})
FAILURE_ANNOTATION = f"{OWN_GROUP}/failure"
"""Why a revision was given up before it was ever ready, as JSON: the journal keeps no status."""
NO_GC_ANNOTATION = f"{SERVING_GROUP}/no-gc"
"""The value "true" exempts a revision from garbage collection."""
PROGRESS_DEADLINE_ANNOTATION = f"{SERVING_GROUP}/progress-deadline"
ROLLOUT_DURATION_ANNOTATION = f"{SERVING_GROUP}/rollout-duration"
ROLLOUT_ANNOTATION = "networking.internal.knative.dev/rollout"
"""The state of a route's gradual rollouts (``core/model/rollout.py``)."""
METRIC_ANNOTATION = f"{AUTOSCALING_GROUP}/metric"
CLASS_ANNOTATION = f"{AUTOSCALING_GROUP}/class"
WINDOW_ANNOTATION = f"{AUTOSCALING_GROUP}/window"
RETENTION_ANNOTATION = f"{AUTOSCALING_GROUP}/scale-to-zero-pod-retention-period"
UTILIZATION_ANNOTATION = f"{AUTOSCALING_GROUP}/target-utilization-percentage"
MIN_SCALE_ANNOTATION = f"{AUTOSCALING_GROUP}/min-scale"
MAX_SCALE_ANNOTATION = f"{AUTOSCALING_GROUP}/max-scale"
REQUEST_TARGET_ANNOTATION = f"{AUTOSCALING_GROUP}/target"
SCALE_DOWN_DELAY_ANNOTATION = f"{AUTOSCALING_GROUP}/scale-down-delay"

# Annotations that Kubernetes defines.
LAST_APPLIED_ANNOTATION = "kubectl.kubernetes.io/last-applied-configuration"
POD_DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"

# Annotations that Prometheus' configurations read by convention: where a pod's page of metrics is.
METRICS_PATH_ANNOTATION = "prometheus.io/path"
METRICS_PORT_ANNOTATION = "prometheus.io/port"

# Annotations and labels that this project defines.
POLICY_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/policy"
COLD_START_WORTH_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/cold-start-worth"
SHARDS_LABEL = f"{OWN_GROUP}/shards-of"
"""On a Lease: the daemon among whose replicas the shards are divided."""
REPLICA_ADDRESS_ANNOTATION = f"{OWN_GROUP}/address"
"""On such a Lease: where the replica is reached."""
ORIGIN_LABEL = f"{OWN_GROUP}/managed-by"
"""On a NodeGroup: the daemon has created it from a ConfigMap."""
MACHINE_LABEL = f"{OWN_GROUP}/machine"
"""On a Node that the kubelet of one machine has created: its installation."""
POOL_LABEL = f"{OWN_GROUP}/pool"
"""On a virtual node of one machine: its pool."""
TRAFFIC_PATH_ANNOTATION = f"{OWN_GROUP}/traffic-path"
"""A ``TrafficPath``, written by the autoscaler only: "serve" puts a revision's pods into its public Service."""
LEARNT_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/learnt"
"""The state learnt by the adaptive policy about a revision, written by the autoscaler only."""
SAVINGS_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/savings"
"""On a revision: costs of both policies by hour of the last day, written by the autoscaler only."""
TARGET_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/target"
"""On a revision: a ``TargetMode``. Knative's "target" is a number."""
LOAD_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/metric"
"""On a revision: the metrics that it is scaled by, each with its target (``core/model/loadmetric.py``)."""
SLO_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/slo"
"""On a revision: a goal for its latency, "p95<300ms" or "p99-wait<100ms" (``core/model/slo.py``)."""
LOADING_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/loading-max"
"""On a revision: for how long a pod that is not ready yet is kept, whatever the load."""
LEARNT_TARGET_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/learnt-target"
"""The learnt target of requests in flight per pod, written by the autoscaler only."""
SHORTAGE_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/shortage"
"""On a revision: why a budget is too small for it, written by the autoscaler only; the condition WithinBudget."""
POLICY_FAILURE_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/policy-failure"
"""On a revision: why Knative's policy decides in place of its own, written by the autoscaler only; the condition PolicyInForce."""
CONTESTED_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/contested"
"""On a ScaledWorkload: who else sets its scale, written by the autoscaler only; the condition ScaledAlone."""
ANTICIPATED_PODS_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/anticipated-pods"
"""Pods expected within the boot time of a node (``core/model/anticipation.py``), written by the autoscaler."""
CLAIMED_TAGS_ANNOTATION = f"{OWN_GROUP}/claimed-tags"
"""When a route claimed the host of each of its tags, as a JSON object of timestamps by tag."""
COMMAND_ANNOTATION = f"{OWN_GROUP}/command"
"""The command that runs a container whose manifest names only an image."""
FOLDER_ANNOTATION = f"{OWN_GROUP}/dir"
"""The working directory of that command."""
GRANT_ROLE, GRANT_NAMESPACES = f"{OWN_GROUP}/role", f"{OWN_GROUP}/namespaces"
"""What a TokenReview of a user adds: its role, and its namespaces or "*"."""

ACCESS_TOKEN_LABEL = f"{OWN_GROUP}/access-token"
"""On the Secret of a user's token for the API of one machine: its name. It is also the type of the Secret."""
IMAGES_ONLY_ANNOTATION = f"{OWN_GROUP}/images-only"
"""On a template, set by the API server of one machine: its writer may not run programs of the machine, so that it runs only as containers."""
ACCESS_ANNOTATION = f"{OWN_GROUP}/access"
"""On a Service or Route: "private" answers only requests with the service's token, "public" (the default) all."""
ACCESS_TOKEN_VERSION_ANNOTATION = f"{OWN_GROUP}/access-token-version"
"""On a Service or Route: a new value creates a new token and revokes the old one."""
ALLOW_FROM_ANNOTATION = f"{OWN_GROUP}/allow-from"
"""On a Service or Route: its callers, as "namespace/NS, serviceaccount/NS/NAME, service/NS/NAME", or "*" (``core/model/accessrules.py``)."""
JWT_ANNOTATION = f"{OWN_GROUP}/jwt"
"""On a Service or Route: the tokens that requests need, as "issuer=URL, audience=NAME, jwks=URL" (``core/model/accessrules.py``)."""
GUARDED_ANNOTATION = f"{OWN_GROUP}/guarded"
"""On the pods of a revision, by the controller: "true" takes requests of activators only."""
GUARDED_VARIABLE = "SERVING_POD_GUARDED"
"""The same in the environment of a queue-proxy."""
ROUTE_BY_HEADER_ANNOTATION = f"{OWN_GROUP}/route-by-header"
"""On a Service or Route: "X-Beta=yes:candidate" routes requests with this header to the revision tagged
``candidate``.
"""
SESSION_AFFINITY_ANNOTATION = f"{OWN_GROUP}/session-affinity"
"""On a Service or Route: "cookie" or "header:X-User" keeps the requests of a session on one pod."""
NODE_GROUP_STATE_ANNOTATION = f"{OWN_GROUP}/node-group-state"
"""On a NodeGroup: its scale lock and failure breaker, by the daemon. The journal of one machine keeps metadata and no status."""
IN_PLACE_ANNOTATION = f"{OWN_GROUP}/in-place"
"""On a ScaledWorkload, by ``serving adopt``: the user's Service, which has no selector and leads to activators."""
SELECTOR_BEFORE_ANNOTATION = f"{OWN_GROUP}/selector-before"
"""On such a Service: its selector before, as JSON, which ``serving release`` restores."""
REPLICAS_BEFORE_ANNOTATION = f"{OWN_GROUP}/replicas-before"
"""On a ScaledWorkload, by ``serving adopt``: the replicas of the target before it, which ``serving release`` restores."""
SERVING_STATE_ANNOTATION = f"{OWN_GROUP}/serving-state"
"""On a ScaledWorkload, written by activator and autoscaler only: its ``ServingState``. A Revision has it in its spec."""
PATHS_ANNOTATION = f"{OWN_GROUP}/paths"
"""On a Service or Route: further hosts, alone or with a path, as "shop.example.com/api, *.example.com"."""
PLACEHOLDER_PAGE_ANNOTATION = f"{OWN_GROUP}/placeholder-page"
"""On a Service or Route: "true" shows browsers a page that reloads itself while a pod starts."""
START_EVENTS_ANNOTATION = f"{OWN_GROUP}/start-events"
"""On a Service or Route: "true" gives clients of event streams status 200 and comments while a pod starts."""
TCP_ANNOTATION = f"{OWN_GROUP}/tcp"
"""On a Service or Route: the ports at which activators take TCP connections for it."""
NAMED_PORT_ANNOTATION = f"{OWN_GROUP}/named-port"
"""On a Service or Route: the port at which pods of its namespace reach it by its short name, on one machine."""
NETWORK_ANNOTATION = f"{OWN_GROUP}/network"
"""On a template of process pods: "pod" gives each pod its own network, with the manifest's port."""
TEMPLATE_ANNOTATION = f"{OWN_GROUP}/template"
"""On a template: "preload" forks pods from a process that has imported the app."""
PRELOAD_MODULES_ANNOTATION = f"{OWN_GROUP}/preload-modules"
"""Modules to import ahead, separated by commas; by default those named in the command."""
QUEUE_PROXY_ANNOTATION = f"{OWN_GROUP}/queue-proxy"
"""On a template: a ``QueueProxyPlace``."""
DORMANT_ANNOTATION = f"{OWN_GROUP}/dormant"
"""On a template: when an idle pod's app is frozen: "after=10s", "only" or "never"."""
DORMANT_CALL_ANNOTATION = f"{OWN_GROUP}/dormant-call"
"""On a template: the app's own calls to sleep and to wake, "POST /sleep?level=1, POST /wake_up"."""
START_CPU_ANNOTATION = f"{OWN_GROUP}/start-cpu"
"""On a template: the cpu of a pod until it is ready, such as "2"; in a cluster that resizes pods in place."""
AWAKE_RESOURCES_ANNOTATION = f"{OWN_GROUP}/awake-resources"
"""On a pod in a cluster: what its app's containers request while they run, as JSON by name. A dormant or starting pod differs."""
ROLLOUT_CHECK_ANNOTATION = f"{OWN_GROUP}/rollout-check"
"""Of a Service or Route: the conditions of a gradual rollout (``rolloutcheck.py``)."""
ROLLED_BACK_ANNOTATION = f"{OWN_GROUP}/rolled-back"
"""Of a Route, written by the controller: by revision, the check that it broke and how."""
SNAPSHOT_ANNOTATION = f"{OWN_GROUP}/snapshot"
"""The digest of a copy of that directory, used as working directory: an old revision keeps its files."""

REVISION_STATE_ANNOTATIONS = BECAME_READY_ANNOTATIONS | {
    *(ROUTES_ANNOTATION, ROUTING_STATE_MODIFIED_ANNOTATION, SHORTAGE_ANNOTATION, TRAFFIC_PATH_ANNOTATION),
    *(FAILURE_ANNOTATION, POLICY_FAILURE_ANNOTATION, SERVING_STATE_ANNOTATION, CONTESTED_ANNOTATION),
    *(ANTICIPATED_PODS_ANNOTATION, LEARNT_ANNOTATION, LEARNT_TARGET_ANNOTATION, SAVINGS_ANNOTATION),
}
"""Annotations that daemons write on a running revision. Templates and pods do not have them."""

SYSTEM_KEYS = REVISION_STATE_ANNOTATIONS | {
    *(SERVICE_LABEL, SERVICE_UID_LABEL, CONFIGURATION_LABEL, CONFIGURATION_UID_LABEL, CONFIGURATION_GENERATION_LABEL),
    *(
        REVISION_LABEL,
        REVISION_UID_LABEL,
        ROUTE_LABEL,
        ROUTING_STATE_LABEL,
        CREATOR_ANNOTATION,
        LAST_MODIFIER_ANNOTATION,
    ),
    *(NO_GC_ANNOTATION, ROLLED_BACK_ANNOTATION, CLAIMED_TAGS_ANNOTATION, IMAGES_ONLY_ANNOTATION, ORIGIN_LABEL),
    *(
        GUARDED_ANNOTATION,
        AWAKE_RESOURCES_ANNOTATION,
        ACCESS_TOKEN_LABEL,
        MACHINE_LABEL,
        POOL_LABEL,
        NODE_GROUP_STATE_ANNOTATION,
    ),
    *(f"{SERVING_GROUP}/{name}" for name in ("forceUpgrade", "domainMappingUID", "domainMappingNamespace")),
    *(f"{SERVING_GROUP}/{name}" for name in ("routeNamespace", "configurationMetadataGeneration", "buildHash")),
    *(f"{NETWORKING_GROUP}/{name}" for name in ("serviceType", "wildcardDomain", "certificate-type")),
}
"""Labels and annotations of exported objects: daemons write them, or only a real Knative reads them."""
NETWORKING_KEYS = frozenset(
    f"{NETWORKING_GROUP}/{name}"
    for name in (
        *("certificate-class", "certificate.class", "disable-auto-tls", "disableAutoTLS"),
        *("http-option", "http-protocol", "httpOption", "httpProtocol", "ingress-class", "ingress.class"),
    )
)
"""Annotations of a Service, a Route or a DomainMapping for Knative's networking layers."""

# What Escalator defines, so that its nodes carry over: taints, and the annotation that keeps a node.
REMOVAL_TAINT = "atlassian.com/escalator"
"""Taint of a node to be removed; its value is the time in unix seconds."""
FORCE_REMOVAL_TAINT = "atlassian.com/escalator-force"
NO_DELETE_ANNOTATION = "atlassian.com/no-delete"
"""A value that is not empty keeps a node."""
CONFIG_SOURCE_ANNOTATION = "kubernetes.io/config.source"
"""The value "file" marks a static pod."""
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
"""Marks the API's copy of a static pod, which no API call can evict."""

CONDITION_READY = "Ready"
CONDITION_ACTIVE = "Active"
CONDITION_ISOLATED = f"{OWN_GROUP}/Isolated"
"""On a pod of one machine that is a process: whether it has all layers of isolation. Only pods without some have it, as False."""
CONDITION_DORMANT = f"{OWN_GROUP}/Dormant"
"""On a pod: its app sleeps. Only pods that may sleep have it."""
CONDITION_LISTENS = f"{OWN_GROUP}/Listens"
"""On a pod of a cluster: whether its app listens on its port. Only pods have it whose app listens on others and was never ready, as False."""
OTHER_PORT = " and was given PORT="
"""Part of the message about an app that listens on the wrong port."""
DORMANT_REASONS = (AWAKE_REASON, IDLE_REASON) = ("Running", "Idle")
"""Reasons of that condition while nothing is refused: the app runs, or it sleeps."""


class ConditionStatus(enum.StrEnum):
    """The status of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ServingState(enum.StrEnum):
    """``Revision.spec.servingState``: whether a revision may have pods.

    Active: it may. Reserve: it is scaled to zero and the next request activates it. Retired: it must not have any.
    """

    ACTIVE = "Active"
    RESERVE = "Reserve"
    RETIRED = "Retired"


class TrafficPath(enum.StrEnum):
    """The endpoints of a revision's public Service: its pods (serve) or the activators (proxy)."""

    SERVE = "serve"
    PROXY = "proxy"


class TargetMode(enum.StrEnum):
    """The use of the learnt target of requests per pod.

    off: nothing is learnt. shadow: it is shown. protect: it may lower a target that cpu or memory bound. use: it is the target.
    """

    OFF = "off"
    SHADOW = "shadow"
    PROTECT = "protect"
    USE = "use"

    @classmethod
    def _missing_(cls, value: object) -> "TargetMode | None":
        """Earlier spellings: "learnt" on a revision, true and false in the settings."""
        return {"learnt": cls.USE, "true": cls.SHADOW, "false": cls.OFF}.get(str(value))


class QueueProxyPlace(enum.StrEnum):
    """The place of a pod's queue-proxy: beside the app, or in its process (``serving.asgi``)."""

    BESIDE = "beside"
    IN_PROCESS = "in-process"


# The fields of specs, as JSON has them. Tests hold them to config/crd, in both directions, and to the code that reads them. What
# is Kubernetes' own has no record here: it goes to pods unchanged.
class TrafficFields(TypedDict, total=False):
    """A revision's share of a route's requests."""

    revisionName: str
    configurationName: str
    latestRevision: bool
    percent: int
    tag: str
    url: str


class TemplateFields(TypedDict, total=False):
    """The fields of a template beside those of a pod."""

    containerConcurrency: int
    timeoutSeconds: int
    responseStartTimeoutSeconds: int
    idleTimeoutSeconds: int


class RevisionFields(TemplateFields, total=False):
    """The spec of a Revision, beside the fields of a pod."""

    servingState: str


class RevisionTemplate(TypedDict, total=False):
    """The template of a Configuration's revisions."""

    spec: TemplateFields


class RouteFields(TypedDict, total=False):
    """The spec of a Route."""

    traffic: list[TrafficFields]


class ConfigurationFields(TypedDict, total=False):
    """The spec of a Configuration."""

    template: RevisionTemplate


class ServiceFields(ConfigurationFields, RouteFields, total=False):
    """The spec of a Service: a Configuration's and a Route's."""


class MappingReference(TypedDict, total=False):
    """The object that a DomainMapping sends requests to. ``apiVersion`` or ``group`` names its API."""

    apiVersion: str
    group: str
    kind: str
    name: str
    namespace: str
    address: str


class MappingCertificate(TypedDict, total=False):
    """The Secret with the certificate of a DomainMapping's host."""

    secretName: str


class DomainMappingFields(TypedDict, total=False):
    """The spec of a DomainMapping, whose name is the host."""

    ref: MappingReference
    tls: MappingCertificate


class DomainClaimFields(TypedDict, total=False):
    """The spec of a ClusterDomainClaim: the namespace that has the host."""

    namespace: str
