"""The Services of a route's tags: a name in the cluster for each, and the user's word about which tags are public.

Each tag has a Service, "blue-hello" for tag "blue" of "hello", which leads to the activators as the route's own does. The label
``networking.knative.dev/visibility: cluster-local`` on it takes the tag from the public listener. A Service whose tag is gone is
deleted. Follows knative/serving 98e5ef90, pkg/reconciler/route (placeholder Services) and its visibility resolver.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serving.controller.revisions.public import PublicService, public_writes
from serving.controller.values.writes import ResourceKind, Write, deletion_of
from serving.model.objects import Object, is_controlled_by
from serving.model.routehosts import hosts_of, is_cluster_local
from serving.settings.controller import ControllerSettings


class TagServices(msgspec.Struct, frozen=True, kw_only=True):
    """What there is: by tag, and Services of the route that no tag has any more."""

    by_tag: Mapping[str, PublicService] = {}
    unused: Sequence[Object] = ()


def tag_service_name(route: Object, settings: ControllerSettings, tag: str) -> str:
    """The name of a tag's Service: the first label of its cluster-local host."""
    return hosts_of(route, settings.host_rules, tag=tag).inner.partition(".")[0]


def is_local_tag(route: Object, services: TagServices, tag: str) -> bool:
    """Whether only the cluster-local listener serves a tag."""
    found = services.by_tag.get(tag)
    service = found.service if found else None
    return is_cluster_local(route) or (service is not None and is_cluster_local(service))


def tag_service_writes(route: Object, services: TagServices, settings: ControllerSettings) -> Iterator[Write]:
    """What is to be written so that each tag has its Service, and none is left over."""
    for tag, public in services.by_tag.items():
        yield from public_writes(route, public, name=tag_service_name(route, settings, tag))
    for one in services.unused:
        if is_controlled_by(one, route):
            yield deletion_of(ResourceKind.CORE_SERVICE, one)
