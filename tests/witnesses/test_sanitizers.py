"""Sanitizers: Debian 13's Redis and the tensor module, both compiled to watch every access to memory, or what threads share."""

import pytest

from crossover.local.servers import CHOSEN_BY, REDIS
from tests.witnesses.environments import environment
from tests.witnesses.suites import TENSORS, hold

# Builds for other machines are not watched.
SUITES = (*TENSORS, "--ignore", "tests/redis_module/test_platforms.py")


@pytest.mark.slow
@pytest.mark.parametrize(("sanitizer", "variant"), [("address", "asan"), ("thread", "tsan")])
def test_the_suites_hold(sanitizer: str, variant: str) -> None:
    """Check that the module's tests pass with a module and a server that are built with a sanitizer."""
    server = environment("sanitizers") / f"redis-server-{sanitizer}"
    hold(SUITES, with_server=server, chosen_by=CHOSEN_BY[REDIS], CROSSOVER_TENSORS=variant)
