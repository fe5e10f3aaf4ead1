"""How hard hypothesis tries: HYPOTHESIS_PROFILE=thorough for `make test-all`.

The usual profile draws the same examples each time, so that a run says something about the change and not about the dice;
the thorough one draws anew, and more.
"""

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("usual", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


@pytest.fixture(autouse=True)
def _own_log_handlers() -> Iterator[None]:
    """A daemon that a test runs in this process sends its log to a stream that is closed after the test."""
    before = list(logging.root.handlers)
    yield
    logging.root.handlers[:] = before
