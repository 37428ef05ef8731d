"""The ACL categories of every command, as each server shows them."""

from __future__ import annotations

import pytest

from crossover.errors import MissingTool
from tests.redis_module.servers import Start
from tests.redis_module.test_server import connected, encode, replies
from tests.witnesses import servers as witnesses

COMPUTES_AND_STORES = {"write", "slow", "blocking"}  # blocking: refused where nobody can wait
CATEGORIES = {
    "ai.tensorset": {"write", "slow"},
    "ai.tensorget": {"read", "slow"},
    "tensor.get": {"read", "slow"},
    "tensor.info": {"read", "fast"},
    "tensor.copy": {"write", "fast"},
    "tensor.stats": {"dangerous", "fast"},  # no key is read; it tells of the whole server, as INFO does
    "tensor.norm": {"read", "slow", "blocking"},
    "tensor.finite": {"read", "slow", "blocking"},
    **dict.fromkeys(("tensor.mean", "tensor.median", "tensor.trimmedmean", "tensor.krum"), COMPUTES_AND_STORES),
    **dict.fromkeys(("tensor.sgd", "tensor.adam", "tensor.axpy"), COMPUTES_AND_STORES),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["redis of this machine", "redis_8", "valkey_8"])
def test_every_command_is_in_its_categories(start: Start, program: str) -> None:
    """Check the ACL categories of each of the module's commands, on Redis and on other servers."""
    witness = program in witnesses.PACKAGES
    try:
        server = start(program=[str(witnesses.program(program))] if witness else None)
    except MissingTool as error:
        pytest.skip(str(error))
    version = server.client().info("server")["redis_version"]
    with connected(server) as connection:
        connection.sendall(encode("COMMAND", "LIST", "FILTERBY", "MODULE", "tensors"))
        (names,) = replies(connection, 1)
        assert isinstance(names, list) and set(names) == set(CATEGORIES)
        connection.sendall(encode("COMMAND", "INFO", *names) + encode("ACL", "CAT", "tensor"))
        infos, own = replies(connection, 2)
    assert isinstance(infos, list)
    found = {info[0]: {category.lstrip("+@") for category in info[6]} - {"tensor"} for info in infos}
    if version.startswith("7.0."):  # where a module cannot say them: commands are allowed and forbidden by name
        assert found == {name: set() for name in CATEGORIES}
    else:
        assert found == CATEGORIES
    if witness:
        assert isinstance(own, list) and set(own) == set(CATEGORIES)
