"""``serving install``: the command that puts the system on a Kubernetes cluster and takes it off again."""

import os
from pathlib import Path
from typing import Any

import click

from serving.cli.client.api import ApiClient, fail_usage
from serving.cli.client.tree import InstallOptions, objects_of, render, tree_folder
from serving.cli.system.installation import Installation
from serving.cli.system.rollout import until_available, until_removed
from serving.model.errors import InvalidValue
from serving.model.quantity import parse_duration_s


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the YAML and ask no cluster.")
@click.option("--wait", is_flag=True, help="Return when every daemon is available; with --uninstall, when all is gone.")
@click.option("--timeout", default="5m", show_default=True, metavar="TIME", help="With --wait: how long at most.")
@click.option("--uninstall", is_flag=True, help="Take everything off again; refused while there are services.")
@click.option("--with-services", is_flag=True, help="With --uninstall: all services of all namespaces too.")
@click.option("--image", default="", metavar="IMAGE", help="Image of all daemons, with registry and tag.")
@click.option(
    "--queue-proxy-image", default="", metavar="IMAGE", help="Image of the queue-proxy; the daemons' unless it is set."
)
@click.option("--domain", default="", metavar="DOMAIN", help="Domain of public hosts, such as apps.example.org.")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Where the daemons run; knative-serving.")
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The cluster's kubeconfig; $KUBECONFIG, else ~/.kube/config.",
)
@click.option("--context", help="Context in the kubeconfig.", metavar="NAME")
def install(*, kubeconfig: Path | None, context: str | None, **asked: Any) -> None:  # noqa: ANN401 - the options of the command
    """Put the system on a Kubernetes cluster, or bring it up to date; `kubectl apply -k config/` does the same.

    The command refuses a cluster that runs Knative Serving: both would serve the same kinds.
    """
    try:
        timeout_s = parse_duration_s(asked["timeout"])
    except InvalidValue as error:
        fail_usage(f"--timeout: {error}")
    wanted = InstallOptions(
        image=asked["image"],
        queue_proxy_image=asked["queue_proxy_image"],
        namespace=asked["namespace"],
        domain=asked["domain"],
    )
    objects = objects_of(tree_folder(), wanted)
    if asked["dry_run"]:
        click.echo(render(objects), nl=False)
        return
    api = ApiClient(kubeconfig=kubeconfig or _usual_kubeconfig(), context=context)
    installation = Installation(api, objects)
    installation.check()
    if asked["uninstall"]:
        installation.remove(with_services=asked["with_services"])
        if asked["wait"]:
            until_removed(api, objects, timeout_s=timeout_s)
        return
    installation.apply(is_waited_for=asked["wait"])
    if asked["wait"]:
        until_available(api, objects, timeout_s=timeout_s)


def _usual_kubeconfig() -> Path:
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = Path(named) if named else Path.home() / ".kube" / "config"
    if not path.exists():
        fail_usage(f"{path}: no such file; name the cluster's kubeconfig with --kubeconfig")
    return path
