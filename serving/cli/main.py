"""The command ``serving``: a group of subcommands, each in a module of its own that is loaded when it is asked for."""

import click

from serving import __version__
from serving.cli.lazy import LazyGroup, Section

# A new command is one line: its name, where it is, and what the help says of it.
SECTIONS: dict[str, Section] = {
    "The system": {
        "up": ("serving.cli.up:up", "Run everything on this machine."),
        "down": ("serving.cli.down:down", "End what `up` runs."),
        "status": ("serving.cli.status:status", "Whether the system runs, and where it answers."),
        "version": ("serving.cli.version:version", "The versions of this program and of the server."),
        "dashboard": ("serving.cli.dashboard:dashboard", "Where the dashboard is; or serve one for a cluster."),
        "top": ("serving.cli.top:top", "What runs now, in the terminal."),
        "doctor": ("serving.cli.doctor:doctor", "Is this machine fit, does the system run and answer."),
        "completion": ("serving.cli.completion:completion", "Make a shell complete commands and names."),
        "install": ("serving.cli.install:install", "Put the system on a Kubernetes cluster, or take it off."),
        "config": ("serving.cli.config:config", "Show, check and print settings."),
    },
    "Services": {
        "apply": ("serving.cli.apply:apply", "Make or change what manifests describe."),
        "deploy": ("serving.cli.deploy:deploy", "Run a command as a service."),
        "image": ("serving.cli.image:image", "The images that pods on this machine run."),
        "update": ("serving.cli.update:update", "Change a part of what a service runs with."),
        "convert": ("serving.cli.convert:convert", "Knative manifests from compose files and KEDA's HTTP add-on."),
        "get": ("serving.cli.get:get", "Show services, revisions, pods, ..."),
        "describe": ("serving.cli.describe:describe", "All about one service: state, traffic, pods, events."),
        "logs": ("serving.cli.logs:logs", "What the pods of a service write."),
        "exec": ("serving.cli.exec:execute", "Run a command in a pod of a service."),
        "invoke": ("serving.cli.invoke:invoke", "Send a request to a service."),
        "url": ("serving.cli.url:url", "Where a service answers."),
        "token": ("serving.cli.token:token", "The token that callers of a private service send."),
        "traffic": ("serving.cli.traffic:traffic", "Split traffic between revisions, tag them, roll back."),
        "scale": ("serving.cli.scale:scale", "Bound the number of pods of a service."),
        "wait": ("serving.cli.wait:wait", "Wait until a service is ready, gone or at zero."),
        "delete": ("serving.cli.delete:delete", "Delete services with their revisions and pods."),
    },
    "Decisions": {
        "why": ("serving.cli.why:why", "Why a service has its pods, or a node group its nodes."),
        "nodegroups": ("serving.cli.nodegroups:nodegroups", "Node groups: what they are and what they did."),
        "replay": ("serving.cli.replay:replay", "Decide again what the decision log has."),
        "simulate": ("serving.cli.simulate:simulate", "Run a service, or a recorded workload, on the virtual clock."),
        "tune": ("serving.cli.tune:tune", "Settings that fit a recorded workload and a budget."),
    },
}


@click.group(cls=LazyGroup, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="serving")
def main() -> None:
    """Request-driven serverless: HTTP traffic decides how many pods run."""
