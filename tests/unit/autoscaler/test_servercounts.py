from serving.autoscaler.servercounts import ServerCounts


def test_counts_are_named_as_metrics() -> None:
    assert ServerCounts(frames=3).numbers["stats_frames_total"] == 3
