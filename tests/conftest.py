"""How hard hypothesis tries: HYPOTHESIS_PROFILE=thorough for `make test-all`.

The usual profile draws the same examples each time, so that a run says something about the change and not about the dice;
the thorough one draws anew, and more.
"""

import os

from hypothesis import settings

settings.register_profile("usual", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))
