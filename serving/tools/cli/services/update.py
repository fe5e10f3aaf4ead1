"""``serving update``: changes some settings of a service as a new revision, and keeps all other settings."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import click

from serving.core.model.errors import InvalidValue, ServingError
from serving.core.model.knative import COMMAND_ANNOTATION
from serving.core.model.objects import Object, nested
from serving.net.cluster.kinds import SERVING_SERVICE
from serving.net.cluster.servicepatch import pinned_traffic, scaling_annotations
from serving.tools.cli.client.api import MAY_BE_EMPTY, ApiClient, api_options, fail_usage, until_written
from serving.tools.cli.client.completion import complete_service
from serving.tools.cli.client.objects import service_of
from serving.tools.cli.client.output import Progress, output_option
from serving.tools.cli.client.resources import path_of, wait_timeout_option
from serving.tools.cli.services.containeroptions import (
    ServiceChanges,
    changes_from,
    check_secrets,
    check_volumes,
    policy_name,
    ports_of,
    service_options,
    variables_of,
    with_limits,
    with_volumes,
)
from serving.tools.cli.services.deployment import command_of, without_command
from serving.tools.cli.services.traffic import NewTraffic, tagged, traffic_from, traffic_options
from serving.tools.cli.services.url import print_unrouted, print_url
from serving.tools.cli.services.waiting import print_tcp_problems, until_ready

_TIMEOUT_S = 300.0


class ServiceUpdate(ServiceChanges, frozen=True, kw_only=True):
    """The changes to a service. A missing option is None, "" or empty."""

    removed: tuple[str, ...] = ()
    clear_env: bool = False
    command: str | None = None


def updated(service: Object, wanted: ServiceUpdate) -> Object:
    """The service with the changes. Raises ``InvalidValue`` if a variable to remove is not set."""
    changed = copy.deepcopy(service)
    template = changed["spec"].setdefault("template", {})
    metadata, spec = template.setdefault("metadata", {}), template.setdefault("spec", {})
    # A revision name cannot be used twice.
    metadata.pop("name", None)
    annotations = metadata.setdefault("annotations", {})
    if wanted.command:
        # A command of the container would replace it.
        for field in ("command", "args"):
            spec["containers"][0].pop(field, None)
    command = {COMMAND_ANNOTATION: wanted.command} if wanted.command else {}
    _annotate(annotations, {**scaling_annotations(wanted.scaling), **command, **wanted.annotations})
    if wanted.policy:
        _annotate(changed["metadata"].setdefault("annotations", {}), wanted.policy)
    for field, number in (("containerConcurrency", wanted.concurrency), ("timeoutSeconds", wanted.timeout)):
        if number is not None:
            spec[field] = number
    container = spec["containers"][0]
    if wanted.image is not None:
        container["image"] = wanted.image
    container["env"] = _environment(container.get("env") or [], wanted)
    if wanted.limits:
        container["resources"] = with_limits(container.get("resources"), wanted.limits)
    ports = ports_of(container.get("ports") or (), port=wanted.port, h2c=wanted.h2c)
    if ports:
        container["ports"] = ports
    template["spec"] = with_volumes(spec, wanted.volumes)
    if wanted.command is not None and not wanted.command.strip():
        changed["spec"]["template"] = without_command(template)
    return changed


def _annotate(annotations: dict[str, str], changes: Mapping[str, str | None]) -> None:
    """Change annotations in place. A text of None or "" removes the annotation."""
    for key, text in changes.items():
        if text:
            annotations[key] = text
        else:
            annotations.pop(key, None)


def _environment(before: list[Object], wanted: ServiceUpdate) -> list[Object]:
    variables = {} if wanted.clear_env else {variable["name"]: variable for variable in before}
    for name in wanted.removed:
        if name not in variables:
            expected = f"one of its variables: {', '.join(sorted(variables)) or 'it has none'}"
            raise InvalidValue(text=name, expected=expected)
        del variables[name]
    added = variables_of(wanted.environment, wanted.secrets)
    return [*{**variables, **{variable["name"]: variable for variable in added}}.values()]


@click.command()
@click.argument("name", shell_complete=complete_service)
@service_options
@click.option("--remove-env", "removed", multiple=True, metavar="NAME", help="Remove an environment variable.")
@click.option("--clear-env", is_flag=True, help="Remove all environment variables first.")
@click.option(
    "--command", type=MAY_BE_EMPTY, help="New command, as in `serving deploy`; '' runs the command of the image."
)
@click.option("--image", help="New image.")
@click.option(
    "--annotate", multiple=True, metavar="KEY=VALUE", help="Set an annotation of the template; KEY= removes it."
)
@traffic_options
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the service is ready.")
@wait_timeout_option(_TIMEOUT_S)
@output_option()
@api_options
def update(*, api: ApiClient, name: str, wait: bool, wait_s: float, output: str, **options: Any) -> None:  # noqa: ANN401 - the options of the command
    """Change settings of service NAME. Other settings, the code and the traffic are unchanged."""
    traffic = traffic_from(options, wait=wait)
    options["scaling_policy"] = policy_name(api, options["scaling_policy"])
    wanted = ServiceUpdate(**changes_from(options), **options)
    if wanted == ServiceUpdate():
        fail_usage("name a change: see `serving update --help`")
    check_secrets(api, wanted.secrets)
    check_volumes(api, wanted.volumes)
    with Progress(f"updating {name}"):
        service = _written(api, name, wanted, traffic=traffic)
        if wait:
            service = until_ready(api, name, timeout_s=wait_s).service
        if traffic.tag:
            service = tagged(api, service, traffic.tag)
    if output == "json":
        click.echo(json.dumps(service, indent=2))
    elif wait:
        print_url(api, service, tag=traffic.tag)
        print_tcp_problems(api, service)
    else:
        click.echo(f"service/{name} changed; `serving wait {name}` waits until it is ready")
    if output != "json":
        print_unrouted(service)


def _written(api: ApiClient, name: str, wanted: ServiceUpdate, *, traffic: NewTraffic) -> Object:
    path = f"{path_of(SERVING_SERVICE, api.namespace)}/{name}"

    def write() -> tuple[int, Any]:
        before = service_of(api, name)
        command = command_of(nested(before, "spec", "template") or {})
        # A cluster runs the image, regardless of the annotation.
        if command and wanted.image is not None and wanted.command is None and api.state_path is not None:
            raise InvalidValue(
                text=f"--image {wanted.image}",
                expected=f"what {name} runs: it runs the command {command!r}. Add --command '' to run the image, or name another command",
            )
        changed = updated(before, wanted)
        if traffic.is_pinned:
            changed["spec"]["traffic"] = pinned_traffic(before)
        return api.call("PUT", path, changed)

    try:
        _, after = until_written(write)
    except ServingError as error:
        fail_usage(str(error))
    return dict(after)
