"""The vocabulary of the resource API: groups, labels, annotations, states, condition types, and fields of specs.

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
"""The namespace and name of a revision."""

QUEUE_PROXY = "queue-proxy"
"""The name of the queue-proxy's container in a pod."""

APP_PROBE = "app"
"""The K-Network-Probe value that an app answers if its queue-proxy runs inside its process."""

# Labels that relate an object to its owner.
APP_LABEL = "app"
POD_TEMPLATE_HASH_LABEL = "pod-template-hash"
UPDATE_TIMESTAMP_ANNOTATION = "client.knative.dev/updateTimestamp"
"""kn writes the time of an update to this annotation, so that an unchanged template becomes a new revision."""

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
"""The only value of the visibility label: the service is not public."""

# Annotations that Knative defines.
ROUTING_STATE_MODIFIED_ANNOTATION = f"{SERVING_GROUP}/routingStateModified"
DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
ROUTES_ANNOTATION = f"{SERVING_GROUP}/routes"
"""Names of the routes that reference a revision, separated by commas."""
COMPONENTS_ANNOTATION = f"{OWN_GROUP}/components"
"""The components of an installation, on its namespace; a later install without ``--component`` keeps them."""
CREATOR_ANNOTATION = f"{SERVING_GROUP}/creator"
LAST_MODIFIER_ANNOTATION = f"{SERVING_GROUP}/lastModifier"
BECAME_READY_ANNOTATION = f"{SERVING_GROUP}/lastPinned"
"""When a revision first became ready. The journal stores metadata and no status, so this survives a restart.

On a cluster the status of a ready revision has this time. The annotation is written with the next routing state, or
when the revision is no longer ready.

Knative no longer writes this annotation, which marked a revision as routed. ``kn service export`` still omits it.
"""
FORMER_BECAME_READY_ANNOTATION = f"{OWN_GROUP}/became-ready"
"""The former annotation for the ready time, which is still read; the next write of a routing state replaces it."""
BECAME_READY_ANNOTATIONS = frozenset({BECAME_READY_ANNOTATION, FORMER_BECAME_READY_ANNOTATION})
FAILURE_ANNOTATION = f"{OWN_GROUP}/failure"
"""The reason that a revision failed before it was ever ready, as JSON, because the journal keeps no status."""
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

# Annotations that Prometheus configurations read by convention: the address of a pod's metrics.
METRICS_PATH_ANNOTATION = "prometheus.io/path"
METRICS_PORT_ANNOTATION = "prometheus.io/port"

# Annotations and labels that this project defines.
POLICY_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/policy"
COLD_START_WORTH_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/cold-start-worth"
SHARDS_LABEL = f"{OWN_GROUP}/shards-of"
"""On a Lease: the daemon whose replicas divide the shards."""
REPLICA_ADDRESS_ANNOTATION = f"{OWN_GROUP}/address"
"""On a replica's Lease: the address of the replica."""
ORIGIN_LABEL = f"{OWN_GROUP}/managed-by"
"""On a NodeGroup: the daemon created it from a ConfigMap."""
MACHINE_LABEL = f"{OWN_GROUP}/machine"
"""On a Node created by the kubelet of a single machine: its installation."""
POOL_LABEL = f"{OWN_GROUP}/pool"
"""On a virtual node of a single machine: its pool."""
TRAFFIC_PATH_ANNOTATION = f"{OWN_GROUP}/traffic-path"
"""A ``TrafficPath`` that only the autoscaler writes: "serve" puts a revision's pods into its public Service."""
LEARNT_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/learnt"
"""The adaptive policy's learnt state about a revision; only the autoscaler writes it."""
SAVINGS_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/savings"
"""On a revision: the hourly costs of both policies over the last day; only the autoscaler writes it."""
TARGET_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/target"
"""On a revision: a ``TargetMode``. Knative's "target" is a number."""
LOAD_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/metric"
"""On a revision: the metrics that scale it, each with its target (``core/model/loadmetric.py``)."""
SLO_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/slo"
"""On a revision: a latency goal, "p95<300ms" or "p99-wait<100ms" (``core/model/slo.py``)."""
LOADING_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/loading-max"
"""On a revision: how long a pod that is not ready yet is kept, regardless of load."""
LEARNT_TARGET_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/learnt-target"
"""The learnt target of requests in flight per pod; only the autoscaler writes it."""
SHORTAGE_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/shortage"
"""On a revision: why its budget is too small. Only the autoscaler writes it; source of the condition WithinBudget."""
POLICY_FAILURE_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/policy-failure"
"""On a revision: why Knative's policy replaces its own.

Only the autoscaler writes it; source of the condition PolicyInForce.
"""
CONTESTED_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/contested"
"""On a ScaledWorkload: the other controller that sets its scale.

Only the autoscaler writes it; source of ScaledAlone.
"""
ANTICIPATED_PODS_ANNOTATION = f"{OWN_AUTOSCALING_GROUP}/anticipated-pods"
"""Pods expected within the boot time of a node (``core/model/anticipation.py``); only the autoscaler writes it."""
CLAIMED_TAGS_ANNOTATION = f"{OWN_GROUP}/claimed-tags"
"""The times at which a route claimed the hosts of its tags, as a JSON object by tag."""
COMMAND_ANNOTATION = f"{OWN_GROUP}/command"
"""The command that runs a container whose manifest names only an image."""
FOLDER_ANNOTATION = f"{OWN_GROUP}/dir"
"""The working directory of the command."""
GRANT_ROLE, GRANT_NAMESPACES = f"{OWN_GROUP}/role", f"{OWN_GROUP}/namespaces"
"""The annotations that a TokenReview adds to a user: its role, and its namespaces or "*"."""

ACCESS_TOKEN_LABEL = f"{OWN_GROUP}/access-token"
"""On the Secret of a user's API token on a single machine: the token's name. It is also the Secret's type."""
IMAGES_ONLY_ANNOTATION = f"{OWN_GROUP}/images-only"
"""On a template, set by the single machine's API server: run only as containers.

Its author may not run programs of the host.
"""
ACCESS_ANNOTATION = f"{OWN_GROUP}/access"
"""On a Service or Route: "private" accepts only requests with the service's token; "public" (default) accepts all."""
ACCESS_TOKEN_VERSION_ANNOTATION = f"{OWN_GROUP}/access-token-version"
"""On a Service or Route: a changed value creates a new token and revokes the old one."""
ALLOW_FROM_ANNOTATION = f"{OWN_GROUP}/allow-from"
"""On a Service or Route: its allowed callers (``core/model/accessrules.py``).

Form: "namespace/NS, serviceaccount/NS/NAME, service/NS/NAME", or "*".
"""
JWT_ANNOTATION = f"{OWN_GROUP}/jwt"
"""On a Service or Route: the tokens that requests need (``core/model/accessrules.py``).

Form: "issuer=URL, audience=NAME, jwks=URL".
"""
GUARDED_ANNOTATION = f"{OWN_GROUP}/guarded"
"""On the pods of a revision, set by the controller: "true" accepts only requests from activators."""
GUARDED_VARIABLE = "SERVING_POD_GUARDED"
"""The environment variable of a queue-proxy with the same meaning."""
ROUTE_BY_HEADER_ANNOTATION = f"{OWN_GROUP}/route-by-header"
"""On a Service or Route: "X-Beta=yes:candidate" routes requests with this header to the revision tagged
``candidate``.
"""
AFFINITY_ANNOTATION = f"{OWN_GROUP}/affinity"
"""On a Service or Route: what keeps related requests on one pod.

"cookie" and "header:X-User" select requests of one session, "prefix" selects prompts with the same beginning.
"""
SESSION_AFFINITY_ANNOTATION = f"{OWN_GROUP}/session-affinity"
"""The former name of the same annotation."""
NODE_GROUP_STATE_ANNOTATION = f"{OWN_GROUP}/node-group-state"
"""On a NodeGroup: its scale lock and failure breaker.

The daemon writes them, because a single machine's journal stores no status.
"""
SCALED_WORKLOADS_LABEL = f"{OWN_GROUP}/scaled-workloads"
"""The label of a namespace whose ScaledWorkloads may be scaled; its value is "enabled"."""

IN_PLACE_ANNOTATION = f"{OWN_GROUP}/in-place"
"""On a ScaledWorkload, set by ``serving adopt``: the user's selectorless Service, whose endpoints are activators."""
SELECTOR_BEFORE_ANNOTATION = f"{OWN_GROUP}/selector-before"
"""On an adopted Service: its former selector, as JSON, which ``serving release`` restores."""
REPLICAS_BEFORE_ANNOTATION = f"{OWN_GROUP}/replicas-before"
"""On a ScaledWorkload: the former replicas of its target.

``serving adopt`` sets the annotation, and ``serving release`` restores the replicas.
"""
SERVING_STATE_ANNOTATION = f"{OWN_GROUP}/serving-state"
"""On a ScaledWorkload: its ``ServingState``; a Revision has it in its spec.

Only activator and autoscaler write it.
"""
PATHS_ANNOTATION = f"{OWN_GROUP}/paths"
"""On a Service or Route: further hosts, with or without a path, as "shop.example.com/api, *.example.com"."""
PLACEHOLDER_PAGE_ANNOTATION = f"{OWN_GROUP}/placeholder-page"
"""On a Service or Route: "true" shows browsers a self-reloading page while a pod starts."""
START_EVENTS_ANNOTATION = f"{OWN_GROUP}/start-events"
"""On a Service or Route: "true" sends clients of event streams status 200 and comments while a pod starts."""
TCP_ANNOTATION = f"{OWN_GROUP}/tcp"
"""On a Service or Route: the ports at which activators accept TCP connections for it."""
NAMED_PORT_ANNOTATION = f"{OWN_GROUP}/named-port"
"""On a Service or Route of a single machine: the port at which pods of its namespace reach it by its short name."""
NETWORK_ANNOTATION = f"{OWN_GROUP}/network"
"""On a template of process pods: "pod" gives each pod a separate network, with the manifest's port."""
TEMPLATE_ANNOTATION = f"{OWN_GROUP}/template"
"""On a template: "preload" forks pods from a process that has imported the app."""
PRELOAD_MODULES_ANNOTATION = f"{OWN_GROUP}/preload-modules"
"""Modules that the preload process imports, separated by commas; the default is the modules named in the command."""
QUEUE_PROXY_ANNOTATION = f"{OWN_GROUP}/queue-proxy"
"""On a template: a ``QueueProxyPlace``."""
DORMANT_ANNOTATION = f"{OWN_GROUP}/dormant"
"""On a template: when the app of an idle pod is frozen: "after=10s", "only" or "never"."""
DORMANT_CALL_ANNOTATION = f"{OWN_GROUP}/dormant-call"
"""On a template: the app's HTTP calls for sleeping and waking, "POST /sleep?level=1, POST /wake_up"."""
START_CPU_ANNOTATION = f"{OWN_GROUP}/start-cpu"
"""On a template: the cpu of a starting pod, such as "2"; only in a cluster that resizes pods in place."""
AWAKE_RESOURCES_ANNOTATION = f"{OWN_GROUP}/awake-resources"
"""On a pod of a cluster: the requests of its app's running containers, as JSON by name.

Dormant or starting pods request other amounts.
"""
ROLLOUT_CHECK_ANNOTATION = f"{OWN_GROUP}/rollout-check"
"""On a Service or Route: the conditions of a gradual rollout (``rolloutcheck.py``)."""
ROLLED_BACK_ANNOTATION = f"{OWN_GROUP}/rolled-back"
"""On a Route, written by the controller: for each rolled-back revision, the check that it broke and how."""
SNAPSHOT_ANNOTATION = f"{OWN_GROUP}/snapshot"
"""The digest of a copy of the working directory, which an old revision uses instead of the changed original."""

REVISION_STATE_ANNOTATIONS = BECAME_READY_ANNOTATIONS | {
    *(ROUTES_ANNOTATION, ROUTING_STATE_MODIFIED_ANNOTATION, SHORTAGE_ANNOTATION, TRAFFIC_PATH_ANNOTATION),
    *(FAILURE_ANNOTATION, POLICY_FAILURE_ANNOTATION, SERVING_STATE_ANNOTATION, CONTESTED_ANNOTATION),
    *(ANTICIPATED_PODS_ANNOTATION, LEARNT_ANNOTATION, LEARNT_TARGET_ANNOTATION, SAVINGS_ANNOTATION),
}
"""Annotations that daemons write on a running revision. Templates and pods never have them."""

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
"""Labels and annotations that an export leaves out: daemons write them, or only Knative itself reads them."""
DISABLE_TLS_ANNOTATIONS = tuple(
    f"{NETWORKING_GROUP}/{name}" for name in ("disable-external-domain-tls", "disable-auto-tls", "disableAutoTLS")
)
"""The spellings of an annotation of a Service, a Route or a DomainMapping: its public hosts need no certificate."""
NETWORKING_KEYS = frozenset(
    {
        *DISABLE_TLS_ANNOTATIONS,
        *(f"{NETWORKING_GROUP}/{name}" for name in ("certificate-class", "certificate.class", "http-option")),
        *(f"{NETWORKING_GROUP}/{name}" for name in ("http-protocol", "httpOption", "httpProtocol")),
        *(f"{NETWORKING_GROUP}/{name}" for name in ("ingress-class", "ingress.class")),
    }
)
"""Annotations of a Service, a Route or a DomainMapping for Knative's networking layers."""

# Taints and an annotation defined by Escalator, so that its nodes can be taken over.
REMOVAL_TAINT = "atlassian.com/escalator"
"""The taint of a node that will be removed; its value is the time in unix seconds."""
FORCE_REMOVAL_TAINT = "atlassian.com/escalator-force"
NO_DELETE_ANNOTATION = "atlassian.com/no-delete"
"""Any non-empty value protects a node from deletion."""
CONFIG_SOURCE_ANNOTATION = "kubernetes.io/config.source"
"""The value "file" marks a static pod."""
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
"""Marks the API's copy of a static pod; no API call can evict it."""

CONDITION_READY = "Ready"
CONDITION_ACTIVE = "Active"
CONDITION_ISOLATED = f"{OWN_GROUP}/Isolated"
"""On a process pod of a single machine, as False only: some layers of isolation are missing."""
CONDITION_DORMANT = f"{OWN_GROUP}/Dormant"
"""On a pod that may sleep: whether its app sleeps. Other pods lack this condition."""
CONDITION_LISTENS = f"{OWN_GROUP}/Listens"
"""On a pod of a cluster, as False only: the app was never ready and listens on other ports than its own."""
NO_OWN_NETWORK = "NoOwnNetwork"
"""The reason of an Event of a pod that shares the machine's network although it asked for its own."""
OTHER_PORT = " and was given PORT="
"""A fragment of the message about an app that listens on the wrong port."""
DORMANT_REASONS = (AWAKE_REASON, IDLE_REASON) = ("Running", "Idle")
"""Reasons of the condition Dormant in normal operation: the app runs, or it sleeps."""


class ConditionStatus(enum.StrEnum):
    """The status of a condition; Unknown while the result is pending."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ServingState(enum.StrEnum):
    """``Revision.spec.servingState``: whether a revision may have pods.

    Active: it may have pods. Reserve: it is scaled to zero, and the next request activates it. Retired: it must not
    have pods.
    """

    ACTIVE = "Active"
    RESERVE = "Reserve"
    RETIRED = "Retired"


class TrafficPath(enum.StrEnum):
    """The endpoints of a revision's public Service: its pods ("serve") or the activators ("proxy")."""

    SERVE = "serve"
    PROXY = "proxy"


class TargetMode(enum.StrEnum):
    """How the learnt target of requests per pod is used.

    off: nothing is learnt. shadow: the learnt target is only shown. protect: it may lower a target that cpu or memory
    limits. use: it replaces the target.
    """

    OFF = "off"
    SHADOW = "shadow"
    PROTECT = "protect"
    USE = "use"

    @classmethod
    def _missing_(cls, value: object) -> "TargetMode | None":
        """Accept earlier spellings: "learnt" on a revision, true and false in the settings."""
        return {"learnt": cls.USE, "true": cls.SHADOW, "false": cls.OFF}.get(str(value))


class QueueProxyPlace(enum.StrEnum):
    """Where a pod's queue-proxy runs: beside the app, or in the app's process (``serving.asgi``)."""

    BESIDE = "beside"
    IN_PROCESS = "in-process"


# The fields of specs in JSON. Tests compare them with config/crd and with the code that reads them. Fields of
# Kubernetes have no record here and go to pods unchanged.
class TrafficFields(TypedDict, total=False):
    """A revision's share of a route's requests."""

    revisionName: str
    configurationName: str
    latestRevision: bool
    percent: int
    tag: str
    url: str


class TemplateFields(TypedDict, total=False):
    """The fields of a revision template's spec in addition to those of a pod's spec."""

    containerConcurrency: int
    timeoutSeconds: int
    responseStartTimeoutSeconds: int
    idleTimeoutSeconds: int


class RevisionFields(TemplateFields, total=False):
    """The fields of a Revision's spec in addition to those of a pod's spec."""

    servingState: str


class RevisionTemplate(TypedDict, total=False):
    """The template that a Configuration creates revisions from."""

    spec: TemplateFields


class RouteFields(TypedDict, total=False):
    """The spec of a Route."""

    traffic: list[TrafficFields]


class ConfigurationFields(TypedDict, total=False):
    """The spec of a Configuration."""

    template: RevisionTemplate


class ServiceFields(ConfigurationFields, RouteFields, total=False):
    """The spec of a Service: the fields of a Configuration and of a Route."""


class MappingReference(TypedDict, total=False):
    """The object to which a DomainMapping sends requests. ``apiVersion`` or ``group`` identifies its API."""

    apiVersion: str
    group: str
    kind: str
    name: str
    namespace: str
    address: str


class MappingCertificate(TypedDict, total=False):
    """The Secret with the certificate for a DomainMapping's host."""

    secretName: str


class DomainMappingFields(TypedDict, total=False):
    """The spec of a DomainMapping, whose name is the host."""

    ref: MappingReference
    tls: MappingCertificate


class DomainClaimFields(TypedDict, total=False):
    """The spec of a ClusterDomainClaim: the namespace that owns the host."""

    namespace: str
