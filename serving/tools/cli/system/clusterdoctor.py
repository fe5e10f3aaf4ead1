"""The checks of ``serving doctor`` on a cluster, with the user's rights.

A check without the required right reports this and does not fail.
"""

import base64
import datetime as dt
import email.utils
import re
import time
from collections.abc import Callable, Iterator, Sequence

from serving.core.model.errors import Problem, ServingError, SettingsError
from serving.core.model.objects import Object, condition_of, is_true, name_of, namespace_of, nested, timestamp_s
from serving.core.settings.daemons import DAEMONS
from serving.core.settings.load import load
from serving.net.cluster.identity import system_namespace
from serving.net.cluster.kinds import CONFIG_MAP, LEASE, NODE, SECRET, SERVING_SERVICE, Kind
from serving.net.metrics.queries import QUERY_TOKEN_SECRET
from serving.tools.cli.client.api import ApiCall, ApiClient
from serving.tools.cli.client.checks import Finding
from serving.tools.cli.client.reach import DASHBOARD, Reach
from serving.tools.cli.client.resources import path_of
from serving.tools.cli.client.tree import InstallOptions, image_problem, objects_of, tree_folder
from serving.tools.cli.system.availability import obstacles, rollout_state
from serving.tools.cli.system.clusterstatus import daemon_deployments
from serving.tools.cli.system.config import read_live_config
from serving.tools.cli.system.install import installed_components

_VERSION = re.compile(r"v1\.(\d+)\.")
# The oldest version with the admission policies of an installation.
_MINOR_MIN = 30
_SKEW_MAX_S = 5.0
_LEASE_AGE_MAX_S = 60.0
_EXPIRES_SOON_S = 14 * 86_400.0
_SHOWN_MAX = 5
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_NODE_LEASES = "kube-node-lease"
_TLS_SECRETS = "SERVING_ACTIVATOR_TLS_SECRETS"
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


def cluster_findings(api: ApiClient) -> Iterator[Finding]:
    """The results of all checks of a cluster. A check comes after the checks that it depends on."""
    checks: Sequence[tuple[str, Callable[[ApiClient], Iterator[Finding]]]] = (
        ("api", _check_api),
        ("rights", _check_rights),
        ("definitions", _check_definitions),
        ("daemons", _check_daemons),
        ("images", _check_images),
        ("queries", _check_queries),
        ("certificates", _check_certificates),
        ("settings", _check_settings),
        ("nodes", _check_nodes),
        ("clocks", _check_clocks),
        ("services", _check_services),
    )
    for name, check in checks:
        try:
            yield from check(api)
        except ServingError as error:
            yield Finding(name=name, state="warn", text="not checked", advice=str(error))


def _check_api(api: ApiClient) -> Iterator[Finding]:
    begun_s = time.monotonic()
    with api.stream(ApiCall(path="/version")) as response:
        dates = response.values("Date")
    took_ms = 1000 * (time.monotonic() - begun_s)
    version = str(api.read(ApiCall(path="/version")).get("gitVersion"))
    text = f"Kubernetes {version} at {api.server} answers in {took_ms:.0f} ms"
    match = _VERSION.match(version)
    if match and int(match[1]) < _MINOR_MIN:
        advice = f"the admission policies of an installation need Kubernetes 1.{_MINOR_MIN}"
        yield Finding(name="api", state="fail", text=text, advice=advice)
    else:
        yield Finding(name="api", state="ok", text=text)
    skew_s = time.time() - email.utils.parsedate_to_datetime(dates[0]).timestamp() if dates else 0.0
    if abs(skew_s) > _SKEW_MAX_S:
        text = f"this machine is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the API server"
        yield Finding(name="clock", state="warn", text=text, advice="ages and times look wrong; tokens may be refused")


def _check_rights(api: ApiClient) -> Iterator[Finding]:
    """Check the user's rights against the needs of the commands."""
    system = system_namespace()
    wanted = (
        ("create", SERVING_SERVICE.group, "services", "", api.namespace, "", "deploy, apply"),
        ("list", "", "pods", "", system, "", "why, requests, top, stats, cost"),
        ("create", "", "pods", "portforward", system, "", "why, requests, top, stats, cost, invoke, dashboard"),
        ("get", "", "secrets", "", system, QUERY_TOKEN_SECRET, "why, requests, top, stats, cost, dashboard"),
    )
    missing = []
    for verb, group, resource, subresource, namespace, name, commands in wanted:
        attributes = {"verb": verb, "group": group, "resource": resource, "subresource": subresource}
        review = {"resourceAttributes": {**attributes, "namespace": namespace, "name": name}}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": review}
        answer = api.read(ApiCall(method="POST", path=_REVIEWS, body=body))
        if not nested(answer, "status", "allowed"):
            what = "/".join(filter(None, (resource, subresource, name)))
            missing.append(f"{verb} {what} in {namespace} ({commands})")
    if missing:
        advice = "the Roles serving-queries and serving-edit have them; docs/kubernetes-reference.md, Rights of users"
        yield Finding(name="rights", state="warn", text=f"you may not {'; '.join(missing)}", advice=advice)
    else:
        yield Finding(name="rights", state="ok", text="your rights suffice for every command")


def _check_definitions(api: ApiClient) -> Iterator[Finding]:
    by_version: dict[str, set[str]] = {}
    components = installed_components(api, system_namespace())
    for resource in objects_of(tree_folder(), InstallOptions(components=components)):
        if resource["kind"] == "CustomResourceDefinition":
            spec = resource["spec"]
            version = f"{spec['group']}/{spec['versions'][0]['name']}"
            by_version.setdefault(version, set()).add(spec["names"]["kind"])
    missing = []
    for version, names in by_version.items():
        served = {entry["kind"] for entry in api.peek(f"/apis/{version}").get("resources", ())}
        missing += [f"{name} of {version}" for name in sorted(names - served)]
    if missing:
        text = f"not served: {_some(missing)}"
        yield Finding(name="definitions", state="fail", text=text, advice="`serving install` applies them")
    else:
        yield Finding(name="definitions", state="ok", text=f"served: {', '.join(by_version)}")


def _check_daemons(api: ApiClient) -> Iterator[Finding]:
    deployments = daemon_deployments(api)
    if not deployments:
        text = f"none in namespace {system_namespace()}"
        yield Finding(name="daemons", state="fail", text=text, advice="`serving install` installs them")
    for deployment in deployments:
        name, image = name_of(deployment), _image_of(deployment)
        problem = rollout_state(deployment)
        if problem:
            advice = "; ".join(obstacles(api, deployment)) or f"kubectl -n {system_namespace()} describe pods"
            yield Finding(name=name, state="fail", text=problem, advice=advice)
        else:
            count = deployment["spec"].get("replicas", 1)
            yield Finding(name=name, state="ok", text=f"{count} of {count} pods available, image {image}")


def _check_images(api: ApiClient) -> Iterator[Finding]:
    images = {_image_of(deployment) for deployment in daemon_deployments(api) if name_of(deployment) != "placement"}
    unqualified = [problem for image in sorted(images) if (problem := image_problem(image))]
    if unqualified:
        advice = "`serving install --registry PREFIX` names all of them"
        yield Finding(name="images", state="fail", text=_some(unqualified), advice=advice)
    elif len(images) > 1:
        advice = "docs/version-skew.md has the versions that work together; `serving install` installs one version"
        yield Finding(name="images", state="warn", text=f"of several versions: {_some(sorted(images))}", advice=advice)
    elif images:
        yield Finding(name="images", state="ok", text="all daemons run the same version")


def _check_queries(api: ApiClient) -> Iterator[Finding]:
    Reach(api, advice=f"`kubectl -n {system_namespace()} get deployments,pods` shows it").dashboard_link()
    yield Finding(
        name="queries", state="ok", text=f"the {DASHBOARD.daemon}'s port can be forwarded, with the query token"
    )


def _check_certificates(api: ApiClient) -> Iterator[Finding]:
    from cryptography import x509  # noqa: PLC0415 - for this check alone

    containers = [container for daemon in daemon_deployments(api) for container in _pod_of(daemon)["containers"]]
    values = [
        variable.get("value", "")
        for container in containers
        for variable in container["env"]
        if variable["name"] == _TLS_SECRETS
    ]
    names = [name for value in values for name in value.split(",") if name]
    if not names:
        yield Finding(name="certificates", state="ok", text="inner TLS renews its own; there is no component tls")
    for name in names:
        secret = api.read(ApiCall(path=path_of(SECRET, system_namespace(), name)))
        pem = base64.b64decode((secret.get("data") or {}).get("tls.crt", ""))
        try:
            until = x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc
        except (ValueError, IndexError) as error:
            text = f"Secret {name} has no certificate: {error}"
            yield Finding(
                name="certificates", state="fail", text=text, advice="tls.crt and tls.key in PEM are expected"
            )
            continue
        left_s = (until - dt.datetime.now(dt.UTC)).total_seconds()
        text = f"that of Secret {name} is valid until {until:%Y-%m-%d %H:%M} UTC"
        if left_s > _EXPIRES_SOON_S:
            yield Finding(name="certificates", state="ok", text=text)
        else:
            yield Finding(name="certificates", state="fail" if left_s < 0 else "warn", text=text, advice="renew it")


def _check_settings(api: ApiClient) -> Iterator[Finding]:
    # A missing right to list them ends this check, and would end the command in the next.
    _items(api, CONFIG_MAP, system_namespace())
    live = read_live_config(api)
    problems: list[Problem] = list(live.problems)
    for daemon in DAEMONS:
        try:
            load(daemon, registry=DAEMONS, config_maps=live.config_maps, environment={})
        except SettingsError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    for problem in problems:
        advice = "its ConfigMap is invalid: the last valid one applies"
        yield Finding(name="settings", state="fail", text=str(problem), advice=advice)
    for problem in live.ignored:
        yield Finding(name="settings", state="warn", text=str(problem), advice="delete the key")
    if not problems and not live.ignored:
        count = sum(len(config_map.entries) for config_map in live.config_maps)
        text = f"{len(live.config_maps)} ConfigMaps with {count} keys set, all valid"
        yield Finding(name="settings", state="ok", text=text)


def _check_nodes(api: ApiClient) -> Iterator[Finding]:
    nodes = _items(api, NODE, None)
    ready = [node for node in nodes if is_true(node, "Ready") and not nested(node, "spec", "unschedulable")]
    text = f"{len(ready)} of {len(nodes)} take pods"
    if not ready:
        yield Finding(name="nodes", state="fail", text=text, advice="no pod can start: kubectl get nodes")
        return
    bad = [f"{name_of(node)} has {pressure}" for node in nodes for pressure in _PRESSURES if is_true(node, pressure)]
    bad += [f"{name_of(node)} is not ready" for node in nodes if not is_true(node, "Ready")]
    advice = f"{_some(bad)}: kubectl describe node" if bad else ""
    yield Finding(name="nodes", state="warn" if bad else "ok", text=text, advice=advice)


def _check_clocks(api: ApiClient) -> Iterator[Finding]:
    """Compare the nodes' clocks with this machine's. Kubelets renew their nodes' leases with the local time."""
    leases, now_s = _items(api, LEASE, _NODE_LEASES), time.time()
    ages = {name_of(lease): now_s - (timestamp_s(nested(lease, "spec", "renewTime")) or now_s) for lease in leases}
    ahead = [f"{name} is {-age_s:.0f} s ahead" for name, age_s in ages.items() if age_s < -_SKEW_MAX_S]
    silent = [f"{name} reported {age_s:.0f} s ago" for name, age_s in ages.items() if age_s > _LEASE_AGE_MAX_S]
    if ahead or silent:
        advice = "statistics and certificates need clocks within seconds: look at NTP, or at that kubelet"
        yield Finding(name="clocks", state="warn", text=_some([*ahead, *silent]), advice=advice)
    else:
        yield Finding(name="clocks", state="ok", text=f"the kubelets of {len(ages)} nodes and this machine agree")


def _check_services(api: ApiClient) -> Iterator[Finding]:
    listing = api.peek(path_of(SERVING_SERVICE, None))
    services = listing["items"] if listing else _items(api, SERVING_SERVICE, api.namespace)
    unready = [
        f"{namespace_of(service)}/{name_of(service)}: {ready.get('reason') or 'unknown'}"
        for service in services
        if (ready := condition_of(service, "Ready")).get("status") != "True"
    ]
    text = f"{len(services) - len(unready)} of {len(services)} ready"
    advice = f"{_some(unready)}; `serving why NAME` explains it" if unready else ""
    yield Finding(name="services", state="warn" if unready else "ok", text=text, advice=advice)


def _items(api: ApiClient, kind: Kind, namespace: str | None) -> list[Object]:
    items: list[Object] = api.read(ApiCall(path=path_of(kind, namespace)))["items"]
    return items


def _pod_of(deployment: Object) -> Object:
    pod: Object = deployment["spec"]["template"]["spec"]
    return pod


def _image_of(deployment: Object) -> str:
    return str(_pod_of(deployment)["containers"][0]["image"])


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN_MAX} more" if len(texts) > _SHOWN_MAX else ""
    return f"{'; '.join(texts[:_SHOWN_MAX])}{more}"
