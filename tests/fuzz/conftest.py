"""How much is tried: little with `make test`, much with `make fuzz`, which sets SHOAL_FUZZ to a number of
examples for each property."""

import os
from typing import Final

from hypothesis import HealthCheck, settings

EXAMPLES: Final = int(os.environ.get("SHOAL_FUZZ", "0"))

settings.register_profile(
    "fuzz",
    max_examples=EXAMPLES or 30,
    deadline=None,
    # Always the same ones, unless there is time for new ones.
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fuzz")
