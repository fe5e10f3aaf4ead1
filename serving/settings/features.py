"""The keys of Knative's ConfigMap config-features that are accepted without effect.

What they turn on is always on here (fields of pods, sidecars and their probes, the tag header) or is reported when a
manifest asks for it. A key that Knative does not have is still a mistake. Source: knative/serving 98e5ef90.
"""

FEATURES = "config-features"
_POD_FIELDS = (
    *("affinity", "dnsconfig", "dnspolicy", "fieldref", "hostaliases", "hostipc", "hostnetwork", "hostpid"),
    *("init-containers", "nodeselector", "persistent-volume-claim", "persistent-volume-write", "priorityclassname"),
    *("runtimeclassname", "schedulername", "securitycontext", "shareprocessnamespace", "tolerations"),
    *("topologyspreadconstraints", "volumes-csi", "volumes-emptydir", "volumes-ephemeral", "volumes-hostpath"),
    *("volumes-image", "volumes-mount-propagation"),
)
ACCEPTED_FEATURES = frozenset(
    {
        "kubernetes.containerspec-addcapabilities",
        "multi-container",
        "multi-container-probing",
        "queueproxy.mount-podinfo",
        "queueproxy.resource-defaults",
        "tag-header-based-routing",
        *(f"kubernetes.podspec-{name}" for name in _POD_FIELDS),
    }
)
