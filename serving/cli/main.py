"""The command ``serving``: a group of subcommands, each in a module of its own that is loaded when it is asked for."""

import click

from serving import __version__
from serving.cli.lazy import LazyGroup, Section

# A new command is one line: its name, where it is, and what the help says of it.
SECTIONS: dict[str, Section] = {
    "The system": {
        "up": ("serving.cli.system.up:up", "Run everything on this machine."),
        "down": ("serving.cli.system.down:down", "End what `up` runs."),
        "status": ("serving.cli.system.status:status", "Whether the system runs, and where it answers."),
        "version": ("serving.cli.system.version:version", "The versions of this program and of the server."),
        "dashboard": ("serving.cli.system.dashboard:dashboard", "Where the dashboard is; or serve one for a cluster."),
        "top": ("serving.cli.system.top:top", "What runs now, in the terminal."),
        "doctor": ("serving.cli.system.doctor:doctor", "Is this machine fit, does the system run and answer."),
        "completion": ("serving.cli.client.completion:completion", "Make a shell complete commands and names."),
        "install": ("serving.cli.system.install:install", "Put the system on a Kubernetes cluster, or take it off."),
        "config": ("serving.cli.system.config:config", "Show, check and print settings."),
    },
    "Services": {
        "apply": ("serving.cli.services.apply:apply", "Make or change what manifests describe."),
        "deploy": ("serving.cli.services.deploy:deploy", "Run a command as a service."),
        "image": ("serving.cli.services.image:image", "The images that pods on this machine run."),
        "update": ("serving.cli.services.update:update", "Change a part of what a service runs with."),
        "convert": (
            "serving.cli.services.convert:convert",
            "Knative manifests from compose files and KEDA's HTTP add-on.",
        ),
        "get": ("serving.cli.services.get:get", "Show services, revisions, pods, ..."),
        "describe": ("serving.cli.services.describe:describe", "All about one service: state, traffic, pods, events."),
        "logs": ("serving.cli.services.logs:logs", "What the pods of a service write."),
        "exec": ("serving.cli.services.exec:execute", "Run a command in a pod of a service."),
        "invoke": ("serving.cli.services.invoke:invoke", "Send a request to a service."),
        "url": ("serving.cli.services.url:url", "Where a service answers."),
        "token": ("serving.cli.services.token:token", "The token that callers of a private service send."),
        "traffic": ("serving.cli.services.traffic:traffic", "Split traffic between revisions, tag them, roll back."),
        "scale": ("serving.cli.services.scale:scale", "Bound the number of pods of a service."),
        "wait": ("serving.cli.services.wait:wait", "Wait until a service is ready, gone or at zero."),
        "delete": ("serving.cli.services.delete:delete", "Delete services with their revisions and pods."),
    },
    "Decisions": {
        "why": ("serving.cli.decisions.why:why", "Why a service has its pods, or a node group its nodes."),
        "nodegroups": ("serving.cli.nodes.nodegroups:nodegroups", "Node groups: what they are and what they did."),
        "replay": ("serving.cli.decisions.replay:replay", "Decide again what the decision log has."),
        "simulate": (
            "serving.cli.decisions.simulate:simulate",
            "Run a service, or a recorded workload, on the virtual clock.",
        ),
        "tune": ("serving.cli.decisions.tune:tune", "Settings that fit a recorded workload and a budget."),
    },
}


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="serving")
def main() -> None:
    """Request-driven serverless: HTTP traffic decides how many pods run."""
