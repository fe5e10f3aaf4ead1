"""Reviews tokens through the API server, at a limited rate; a verdict is reused while it is valid.

No token is logged or stored.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from serving.autoscaler.token_review import Pace, PodClaim, Reviewed, Verdict, objection_to, seen_of, verdict_of
from serving.core.model.errors import ClusterError, Unavailable
from serving.core.model.objects import Object
from serving.net.aio.clock import now_s, wall_s
from serving.net.cluster.kinds import TOKEN_REVIEW
from serving.net.cluster.port import Cluster

_log = logging.getLogger("autoscaler")

# Most reviews a second: a thousand pods reconnect within 5 s of a restart, and a real server answers 340 a second.
_PER_S = 200.0
# Shortest time between two log lines about refusals, in seconds.
_LOG_PERIOD_S = 1.0
# Clients abandon a handshake after 5 s, and retry.
_WAIT_MAX_S = 4.0


class ReviewCounts(msgspec.Struct, kw_only=True):
    """Reviews sent, reviews without a response, and connections refused by a review."""

    token_reviews: int = 0
    token_reviews_failed: int = 0
    token_claims_refused: int = 0


class TokenReviewer:
    """Checks a connection's token against its claimed pod. ``pod`` finds the last observed pod by namespace and name.

    ``judged`` returns a stored verdict, ``judge`` may call the API server.
    """

    def __init__(self, cluster: Cluster, *, audience: str, pod: Callable[[str, str], Object | None]) -> None:
        self.counts = ReviewCounts()
        self._cluster = cluster
        self._audience = audience
        self._pod = pod
        self._reviewed = Reviewed()
        self._pace = Pace(per_s=_PER_S, wait_max_s=_WAIT_MAX_S)
        self._logged_s = float("-inf")

    @property
    def numbers(self) -> dict[str, int]:
        """All counts by name, for metrics."""
        return {f"{name}_total": count for name, count in msgspec.structs.asdict(self.counts).items()}

    def judged(self, claim: PodClaim, token: str) -> bool | None:
        """Whether a token proves a claim; None if a review is needed."""
        verdict = self._reviewed.known(token, wall_s())
        return None if verdict is None else self._is_proved(claim, verdict)

    async def judge(self, claim: PodClaim, token: str) -> bool:
        """Review the token and return the verdict.

        Raises:
            ClusterError: if the server does not respond, or too many reviews are pending. The verdict is then unknown.
        """
        pause_s = self._pace.wait_s(now_s())
        if pause_s is None:
            self.counts.token_reviews_failed += 1
            raise Unavailable("too many token reviews are pending")
        await asyncio.sleep(pause_s)
        self.counts.token_reviews += 1
        body = {"spec": {"token": token, "audiences": [self._audience]}}
        try:
            verdict = verdict_of(await self._cluster.create(TOKEN_REVIEW, body), audience=self._audience)
        except ClusterError as error:
            self.counts.token_reviews_failed += 1
            self._log_refusal("stats.not_reviewed", claim, str(error))
            raise
        self._reviewed.learn(token, verdict, wall_s())
        return self._is_proved(claim, verdict)

    def _is_proved(self, claim: PodClaim, verdict: Verdict) -> bool:
        objection = objection_to(claim, verdict, seen_of(self._pod(claim.namespace, claim.pod)))
        if objection is None:
            return True
        self.counts.token_claims_refused += 1
        self._log_refusal("stats.refused", claim, objection)
        return False

    def _log_refusal(self, event: str, claim: PodClaim, reason: str) -> None:
        if now_s() - self._logged_s < _LOG_PERIOD_S:
            return
        self._logged_s = now_s()
        _log.warning(event, extra={"namespace": claim.namespace, "pod": claim.pod, "reason": reason})
