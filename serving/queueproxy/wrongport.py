"""Explains that an app listens on the wrong port.

Input: the ports of the pod that have a listener. Output: a sentence for the conditions of pod and revision. Pure.
"""

from collections.abc import Collection

from serving.core.model.knative import OTHER_PORT

_SHOWN_MAX = 5


def wrong_port(listening: Collection[int], *, app_port: int, own: Collection[int]) -> str:
    """The problem of an app that listens only on other ports, or "". ``own`` are the queue-proxy's ports."""
    others = sorted(set(listening) - set(own))
    if not others or app_port in others:
        return ""
    shown = ", ".join(map(str, others[:_SHOWN_MAX]))
    more = f" and {len(others) - _SHOWN_MAX} more" if len(others) > _SHOWN_MAX else ""
    return f"the app listens on {shown}{more}{OTHER_PORT}{app_port}; it must listen on $PORT, or containerPort must name its port"
