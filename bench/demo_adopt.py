"""``make demo-adopt``: a plain Deployment, Service and Ingress, to zero and back by requests.

    python bench/demo_adopt.py [--quick]

Starts the whole system on free ports, with state in a new folder, and applies ``examples/adopt/shop.yaml`` unchanged.
Exit 0 only if all holds; the last line says what held. About half a minute.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.parts.load import send_request
from bench.parts.program import options_of
from bench.parts.story import Story
from bench.parts.system import running_system

MANIFEST = Path(__file__).resolve().parents[1] / "examples" / "adopt" / "shop.yaml"
HOST = "shop.localhost"
DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/shop"
WITHIN_S = 60.0


def until(is_so: Callable[[], bool]) -> bool:
    """Whether something holds in time."""
    until_s = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)
    return True


async def report(story: Story, *, clients: int, rounds: int) -> None:
    """One, zero, one."""
    system = story.system

    def is_at_zero() -> bool:
        return not system.send_request(DEPLOYMENT)["spec"].get("replicas", 1)

    print(system.serving("apply", "-f", str(MANIFEST)).rstrip())
    came = await asyncio.to_thread(until, is_at_zero)
    story.check("without a request the Deployment goes to zero", holds=came)
    began_s = time.monotonic()
    status, _ = await send_request(system.port, HOST)
    waited_ms = (time.monotonic() - began_s) * 1000
    story.check(f"a request from zero is answered within {waited_ms:.0f} ms", holds=" 200 " in status)
    answers: Counter[str] = Counter()
    for _ in range(rounds):
        answers.update(
            line for line, _ in await asyncio.gather(*(send_request(system.port, HOST) for _ in range(clients)))
        )
    story.check(
        f"of {answers.total()} more none fails: {dict(answers)}", holds=all(" 200 " in status for status in answers)
    )
    came = await asyncio.to_thread(until, is_at_zero)
    story.check("and silence brings it back to zero", holds=came)
    for command in ("get", "why shop"):
        print(f"$ serving {command}\n{system.serving(*command.split()).rstrip()}")


def main() -> None:
    """Tell the story and end the system."""
    sizes = options_of(__doc__, clients=20, rounds=50, quick={"rounds": 5})
    settings = {"STABLE_WINDOW_S": "6", "SCALE_TO_ZERO_GRACE_PERIOD_S": "6"}
    with running_system(environment={f"SERVING_AUTOSCALER_{name}": text for name, text in settings.items()}) as system:
        story = Story(system)
        asyncio.run(report(story, clients=sizes.clients, rounds=sizes.rounds))
    print("held: " + "; ".join(story.held))


if __name__ == "__main__":
    main()
