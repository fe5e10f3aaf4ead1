"""Workloads for the CLI: an object that can be scaled, the Service before it, and its ScaledWorkload."""

from collections.abc import Iterable
from typing import Any

import msgspec

from serving.core.model.objects import Object, labels_of, name_of, nested
from serving.net.cluster.kinds import (
    DEPLOYMENT,
    REPLICA_SET,
    SCALED_WORKLOAD,
    SERVICE,
    STATEFUL_SET,
    TARGET_KINDS,
    Kind,
)
from serving.tools.cli.client.api import ApiClient, fail, fail_usage, message_of
from serving.tools.cli.client.objects import items_of
from serving.tools.cli.client.resources import path_of

_SHORT_NAMES = {"deploy": DEPLOYMENT, "sts": STATEFUL_SET, "rs": REPLICA_SET}
_KINDS = _SHORT_NAMES | {word: kind for kind in TARGET_KINDS for word in (kind.plural, kind.name.lower())}
_FORM = "expected KIND/NAME, as deploy/shop, sts/shop or rs/shop"
# Ports that serve requests, the likeliest first, where a Service has several.
_PORT_NAMES = ("http", "web", "http-web")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An object with a scale subresource, and the number of its pods that is asked for."""

    kind: Kind
    name: str
    body: Object
    replicas: int

    @property
    def shown(self) -> str:
        """As people write it: "deployment/shop"."""
        return f"{self.kind.name.lower()}/{self.name}"


def target_of(api: ApiClient, text: str) -> Target:
    """The object that a text such as "deploy/shop" names. Exits if there is none, or if it cannot be scaled."""
    word, _, name = text.partition("/")
    if not name or "/" in name:
        fail_usage(f"{text!r} names no workload; {_FORM}")
    kind = _KINDS.get(word.lower())
    if kind is None:
        fail_usage(f"{word!r} is no kind of workload; {_FORM}")
    status, body = api.call("GET", path_of(kind, api.namespace, name))
    if status >= 400:
        fail(f"{kind.name.lower()}/{name}: {message_of(body)}")
    replicas = nested(body, "spec", "replicas")
    return Target(kind=kind, name=name, body=body, replicas=1 if replicas is None else int(replicas))


def service_before(api: ApiClient, target: Target, *, named: str | None) -> Object:
    """The Service whose selector matches the pods of a workload. Exits if there is not exactly one."""
    services = items_of(api, SERVICE)
    if named is not None:
        chosen = next((service for service in services if name_of(service) == named), None)
        if chosen is None:
            fail(f"no service {named} in namespace {api.namespace}")
        return chosen
    labels = labels_of(nested(target.body, "spec", "template"))
    matching = [service for service in services if _selects(service, labels)]
    if len(matching) != 1:
        known = f": {', '.join(map(name_of, matching))}" if matching else ""
        fail(f"{len(matching)} Services select the pods of {target.shown}{known}; choose one with --service")
    return matching[0]


def _selects(service: Object, labels: dict[str, str]) -> bool:
    selector = nested(service, "spec", "selector") or {}
    return bool(selector) and selector.items() <= labels.items()


def port_of(service: Object, wanted: str | None) -> Any:  # noqa: ANN401 - a number or a name
    """The port of a Service: the wanted one, its only one, or the one for requests. Exits if it is not clear."""
    ports: list[Object] = nested(service, "spec", "ports") or []
    by_word = {word: port["port"] for port in ports for word in (str(port["port"]), port.get("name")) if word}
    if wanted is not None:
        if wanted not in by_word:
            fail(f"service {name_of(service)} has no port {wanted}; it has {', '.join(by_word) or 'none'}")
        return int(wanted) if wanted.isdecimal() else wanted
    likely = [by_word[name] for name in _PORT_NAMES if name in by_word]
    if len(ports) != 1 and not likely:
        fail(f"service {name_of(service)} has {len(ports)} ports; choose one with --port: {', '.join(by_word)}")
    return likely[0] if likely else ports[0]["port"]


def workload_for(workloads: Iterable[Object], target: Target) -> Object | None:
    """The ScaledWorkload of a workload; None if nothing scales it."""
    for workload in workloads:
        if (nested(workload, "spec", "target", "kind"), nested(workload, "spec", "target", "name")) == (
            target.kind.name,
            target.name,
        ):
            return workload
    return None


def workload_named(api: ApiClient, text: str) -> Object:
    """The ScaledWorkload of this name, or of the workload that "deploy/shop" names. Exits if there is none."""
    workloads = items_of(api, SCALED_WORKLOAD)
    if "/" not in text:
        chosen = next((workload for workload in workloads if name_of(workload) == text), None)
    else:
        chosen = workload_for(workloads, target_of(api, text))
    if chosen is None:
        known = ", ".join(map(name_of, workloads))
        fail(
            f"no scaledworkload for {text} in namespace {api.namespace}; there {f'are {known}' if known else 'is none'}"
        )
    return chosen
