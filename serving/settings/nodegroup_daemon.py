"""Settings of the daemon that runs node groups: how often it looks, which cloud it asks, and the groups themselves.

The options of one group are in ``serving/settings/nodegroup.py``. Source of keys and defaults: the command line of
atlassian/escalator 043bb1b, unless a field says otherwise.
"""

from typing import Annotated

from serving.settings.knob import DURATION, FLAG, TEXT, Knob
from serving.settings.record import SettingsRecord

CLOUDS = ("aws", "cluster-api", "external-grpc", "local", "memory")


class NodeGroupDaemonSettings(SettingsRecord, frozen=True, kw_only=True):
    """All knobs of the node group daemon."""

    node_groups: Annotated[str, Knob(key="nodegroups_config.yaml", unit=TEXT)] = ""
    """Node groups in Escalator's format, a YAML text with the list node_groups. Each becomes a NodeGroup object;
    groups may also be written as NodeGroup objects. Default: ours, no group."""

    scan_interval_s: Annotated[float, Knob(key="scan-interval", unit=DURATION, above=0, high=3600)] = 60.0
    """Time between two passes over all groups, in seconds. Range: above 0, up to 1h. Default: Escalator, 60s."""

    dry_mode: Annotated[bool, Knob(key="dry-mode", unit=FLAG)] = False
    """Whether plans of all groups are only made and not carried out. Default: Escalator, false."""

    cloud_provider: Annotated[str, Knob(key="cloud-provider", unit=TEXT, choices=CLOUDS)] = "cluster-api"
    """The cloud whose groups have the machines; memory is for trials and forgets everything. Default: ours, cluster-api."""

    cloud_timeout_s: Annotated[float, Knob(key="cloud-timeout", unit=DURATION, above=0, high=600)] = 30.0
    """Longest time for one call of the cloud, in seconds. Range: above 0, up to 10m. Default: ours, 30s."""

    aws_region: Annotated[str, Knob(key="aws-region", unit=TEXT)] = ""
    """Region of the Auto Scaling groups. Empty is that of the AWS environment. Default: ours, empty."""

    aws_endpoint_url: Annotated[str, Knob(key="aws-endpoint-url", unit=TEXT)] = ""
    """Another address of the AWS API, for private endpoints and tests. Default: ours, empty."""

    aws_assume_role_arn: Annotated[str, Knob(key="aws-assume-role-arn", unit=TEXT)] = ""
    """Role to assume before the first call. Empty is none. Default: Escalator, empty."""

    grpc_address: Annotated[str, Knob(key="external-grpc-address", unit=TEXT)] = ""
    """Host and port of a provider of cluster-autoscaler's externalgrpc protocol. Default: ours, empty."""

    grpc_ca_file: Annotated[str, Knob(key="external-grpc-ca-file", unit=TEXT)] = ""
    """CA certificates (PEM) of that provider. Empty means plain text without TLS. Default: ours, empty."""

    grpc_certificate_file: Annotated[str, Knob(key="external-grpc-certificate-file", unit=TEXT)] = ""
    """Client certificate (PEM) for that provider. Empty is none. Default: ours, empty."""

    grpc_key_file: Annotated[str, Knob(key="external-grpc-key-file", unit=TEXT)] = ""
    """Key (PEM) of the client certificate. Default: ours, empty."""

    metrics_address: Annotated[str, Knob(key="metrics-address", unit=TEXT)] = "127.0.0.1:6085"
    """Where the metrics page listens, as host and port. Default: ours, 127.0.0.1:6085; Escalator's is :8080."""
