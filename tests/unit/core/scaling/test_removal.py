"""The order in which pods are removed."""

from serving.core.scaling.removal import removal_rank


def test_removal_rank_orders_by_dormancy_requests_and_heat() -> None:
    ranks = [
        removal_rank(heat=0.0, in_flight=0.0, dormant_since_s=10.0),
        removal_rank(heat=0.0, in_flight=0.0, dormant_since_s=20.0),
        removal_rank(heat=0.0, in_flight=0.0),
        removal_rank(heat=0.0, in_flight=3.0),
        removal_rank(heat=500.0, in_flight=0.0),
    ]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == len(ranks)
