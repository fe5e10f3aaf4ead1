"""``serving policy``: checks scaling policies of users."""

import sys

import click

from serving.net.aio.policyclasses import BoundedCalls, load_policy
from serving.tools.simulator.policycheck import check_policy


@click.group()
def policy() -> None:
    """Test custom scaling policies (docs/policies.md)."""


@policy.command("test")
@click.argument("file", metavar="FILE.py:CLASS")
def check(file: str) -> None:
    """Check a policy: equal inputs give equal results, each call is in time, and pod counts are whole numbers.

    The policy runs on synthetic load. Exits with 1 if a check fails.
    """
    policy_class = load_policy(file)
    result = check_policy(policy_class, run=BoundedCalls())
    if result.problems:
        for problem in result.problems:
            click.echo(problem, err=True)
        sys.exit(1)
    click.echo(f"{file} keeps the contract: {result.decision_count} decisions, twice, were equal and in time")
