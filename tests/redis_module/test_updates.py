"""TENSOR.SGD and TENSOR.ADAM against torch's optimizers; AXPY, NORM, FINITE."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import redis

from tests.redis_module.servers import Client, Server, statistics
from tests.redis_module.vectors import Floats, floats, get, put, same_bits

torch: Any = pytest.importorskip("torch", reason="the optimizers are compared with torch's")
import_module("crossover.algorithms.first_calls")  # without it torch's first square root is at times wrong

D = 10_007  # not a multiple of any vector length


def random(rng: np.random.Generator, length: int = D) -> Floats:
    """Return a random float32 vector with values of several magnitudes."""
    return (rng.standard_normal(length) * 10.0 ** rng.integers(-4, 2, size=length)).astype(np.float32)


def equal(client: Client, key: str, tensor: Any) -> bool:
    """Return whether the tensor under the key has the same bits as the one of PyTorch."""
    return same_bits(get(client, key), tensor.detach().numpy())


SGD_RULES = [
    {"momentum": 0.0},
    {"momentum": 0.0, "weight_decay": 5e-4},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "weight_decay": 5e-4},
    {"momentum": 0.87, "nesterov": True, "weight_decay": 1e-3},
]


def sgd_options(rule: dict[str, float]) -> list[object]:
    """Return the options of TENSOR.SGD for PyTorch's arguments."""
    options: list[object] = ["MOMENTUM", float(rule["momentum"]).hex()]
    for name, word in (("dampening", "DAMPENING"), ("weight_decay", "WEIGHTDECAY")):
        if name in rule:
            options += [word, repr(rule[name])]
    return [*options, "NESTEROV"] if rule.get("nesterov") else options


@pytest.mark.parametrize("rule", SGD_RULES, ids=str)
def test_sgd_is_torchs_bit_by_bit_over_100_steps(client: Client, rule: dict[str, float]) -> None:
    """Check that 100 steps of TENSOR.SGD have the same bits as PyTorch's SGD."""
    rng = np.random.default_rng(0)
    start = random(rng)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.05, foreach=False, fused=False, **rule)
    put(client, "p0", start, "KIND", "model")
    state = "-"
    for step in range(100):
        gradient = random(rng)
        put(client, "g", gradient, "KIND", "gradient")
        velocity = f"v{step + 1}" if rule["momentum"] else "-"
        command = ["TENSOR.SGD", f"p{step}", "g", state, "OUT", f"p{step + 1}", velocity, "LR", 0.05]
        assert client.execute_command(*command, *sgd_options(rule), "NX") == 1
        state = velocity
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        assert equal(client, f"p{step + 1}", parameter), f"step {step + 1}"
    if rule["momentum"]:
        assert equal(client, state, optimizer.state[parameter]["momentum_buffer"])
        assert client.execute_command("TENSOR.INFO", state)[2] == b"velocity"
    assert client.execute_command("TENSOR.INFO", "p100")[2] == b"model"


@pytest.mark.parametrize("momentum", [1.0, 0.1, 0.3])
def test_buffers_follow_batchnorms_own_update(client: Client, momentum: float) -> None:
    """Check that TENSOR.SGD updates buffers as BatchNorm its running mean, to the bit, and leaves the parameters alone.

    Channels of constant value have an exact mean, so what BatchNorm stores shows its formula to the bit.
    """
    rng = np.random.default_rng(3)
    channels, parameters = 501, 77
    norm = torch.nn.BatchNorm1d(channels, momentum=momentum)
    norm.running_mean.copy_(torch.from_numpy(random(rng, channels)))
    model = np.concatenate([random(rng, parameters), norm.running_mean.numpy()])
    put(client, "model", model)
    for _ in range(5):
        statistic = random(rng, channels)
        put(client, "g", np.concatenate([np.zeros(parameters, np.float32), statistic]))
        command = ["TENSOR.SGD", "model", "g", "-", "OUT", "model", "-", "LR", 0.1]
        client.execute_command(*command, "BUFFERS", channels, "STATS", momentum)
        norm.train()(torch.from_numpy(statistic).expand(4, channels))
        after = get(client, "model")
        assert same_bits(after[parameters:], norm.running_mean.numpy())
        assert same_bits(after[:parameters], model[:parameters])


def test_sgd_may_overwrite_its_inputs(client: Client) -> None:
    """Check that TENSOR.SGD gives the same results in place and out of place."""
    rng = np.random.default_rng(5)
    p, g, v = random(rng), random(rng), random(rng)
    for key, value in (("p", p), ("g", g), ("v", v)):
        put(client, key, value)
    rule = ["LR", 0.1, "MOMENTUM", 0.9]
    assert client.execute_command("TENSOR.SGD", "p", "g", "v", "OUT", "p1", "v1", *rule) == b"OK"
    assert client.execute_command("TENSOR.SGD", "p", "g", "v", "OUT", "p", "v", *rule) == b"OK"
    assert same_bits(get(client, "p"), get(client, "p1")) and same_bits(get(client, "v"), get(client, "v1"))
    assert same_bits(get(client, "g"), g)


def test_sgd_nx_changes_neither_output(client: Client) -> None:
    """Check that TENSOR.SGD with NX changes no output if the model's exists already."""
    put(client, "p", floats([1, 2]))
    put(client, "g", floats([1, 1]))
    rule = ["LR", 0.5, "MOMENTUM", 0.9, "NX", "PX", 90_000]
    assert client.execute_command("TENSOR.SGD", "p", "g", "-", "OUT", "q", "w", *rule) == 1
    assert client.pttl("q") > 80_000 and client.pttl("w") > 80_000
    put(client, "g", floats([9, 9]))
    assert client.execute_command("TENSOR.SGD", "p", "g", "-", "OUT", "q", "w", *rule) == 0
    assert list(get(client, "q")) == [0.5, 1.5] and list(get(client, "w")) == [1, 1]
    client.delete("w", "p", "g")  # model_out alone decides, and inputs need not be there
    assert client.execute_command("TENSOR.SGD", "p", "g", "-", "OUT", "q", "w", *rule) == 0
    assert not client.exists("w")


ADAM_RULES = [
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 1e-2}),
    (torch.optim.AdamW, {"weight_decay": 1e-2}),
]


@pytest.mark.parametrize(("kind", "rule"), ADAM_RULES, ids=["adam", "adam-decay", "adamw"])
def test_adam_is_within_a_millionth_of_torchs_step(client: Client, kind: type, rule: dict[str, Any]) -> None:
    """Compare 30 single steps of TENSOR.ADAM from equal state with PyTorch's: they differ by at most 1e-6 of the largest update and the
    last bit of the parameter.

    torch's float32 square root is MKL's, which is not correctly rounded: the update's last bit differs, and with it at times the
    parameter's.
    """
    rng = np.random.default_rng(7)
    parameter = torch.nn.Parameter(torch.from_numpy(random(rng)))
    optimizer = kind([parameter], lr=1e-3, foreach=False, fused=False, **rule)
    beta1, beta2 = rule.get("betas", (0.9, 0.999))
    options = ["LR", 1e-3, "BETA1", beta1, "BETA2", beta2, "EPS", rule.get("eps", 1e-8)]
    options += ["WEIGHTDECAY", rule.get("weight_decay", 0)] + (["DECOUPLED"] if kind is torch.optim.AdamW else [])
    m = v = "-"
    for step in range(1, 31):
        gradient = random(rng)
        put(client, "p", parameter.detach().numpy())
        put(client, "g", gradient)
        if step > 1:
            put(client, m := "m", optimizer.state[parameter]["exp_avg"].numpy())
            put(client, v := "v", optimizer.state[parameter]["exp_avg_sq"].numpy())
        before = parameter.detach().clone()
        parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
        client.execute_command("TENSOR.ADAM", "p", "g", m, v, "OUT", "q", "m2", "v2", *options, "STEP", step)
        update = (parameter.detach() - before).abs().max().item()
        expected = parameter.detach().numpy()
        assert (np.abs(get(client, "q") - expected) <= 1e-6 * update + np.spacing(np.abs(expected))).all()
        for key, name in (("m2", "exp_avg"), ("v2", "exp_avg_sq")):
            np.testing.assert_allclose(get(client, key), optimizer.state[parameter][name].numpy(), rtol=1e-6)


def test_adam_blends_buffers_too(client: Client) -> None:
    """Check that TENSOR.ADAM moves the buffers behind the parameters by the share STATS, and keeps no moments of them."""
    put(client, "p", floats([1, 10]))
    put(client, "g", floats([1, 20]))
    command = ["TENSOR.ADAM", "p", "g", "-", "-", "OUT", "p", "m", "v", "LR", 0.1, "STEP", 1]
    client.execute_command(*command, "BUFFERS", 1, "STATS", 0.5)
    np.testing.assert_allclose(get(client, "p"), [0.9, 15], rtol=1e-6)
    assert get(client, "m").shape == (1,)


@pytest.mark.parametrize("alpha", [1.0, -0.1, 0.3])
def test_axpy_is_torchs_add(client: Client, alpha: float) -> None:
    """Check that TENSOR.AXPY has the bits of torch.add and keeps the first input's labels."""
    rng = np.random.default_rng(9)
    base, x = random(rng).reshape(-1, 1), random(rng).reshape(-1, 1)
    put(client, "a", base, "KIND", "model", "SAMPLES", 3)
    put(client, "x", x)
    assert client.execute_command("TENSOR.AXPY", "a", "x", "ALPHA", alpha, "OUT", "a") == b"OK"
    assert equal(client, "a", torch.add(torch.from_numpy(base), torch.from_numpy(x), alpha=alpha))
    assert client.execute_command("TENSOR.INFO", "a")[2:4] == [b"model", 3]
    assert client.execute_command("TENSOR.AXPY", "a", "x", "ALPHA", alpha, "OUT", "a", "NX") == 0


def test_norm_and_finite(client: Client) -> None:
    """Check TENSOR.NORM against NumPy, and that TENSOR.FINITE finds a NaN or an infinite value."""
    x = random(np.random.default_rng(11), 300_001)
    put(client, "x", x)
    assert float(client.execute_command("TENSOR.NORM", "x")) == pytest.approx(
        np.linalg.norm(x.astype(np.float64)), rel=1e-12
    )
    assert client.execute_command("TENSOR.FINITE", "x") == 1
    for bad in (np.nan, np.inf, -np.inf):
        y = x.copy()
        y[299_999] = bad
        put(client, "y", y)
        assert client.execute_command("TENSOR.FINITE", "y") == 0
    assert client.execute_command("TENSOR.NORM", "y") == b"inf"
    put(client, "none", floats([]))
    assert (
        client.execute_command("TENSOR.NORM", "none") == b"0" and client.execute_command("TENSOR.FINITE", "none") == 1
    )


SGD = ("TENSOR.SGD", "p", "g", "v", "OUT", "q", "w")
ADAM = ("TENSOR.ADAM", "p", "g", "-", "-", "OUT", "q", "m", "w")
MOMENTUM = ("LR", 1, "MOMENTUM", 0.9)
REFUSED = [
    (("TENSOR.SGD", "p", "g"), r"wrong number of arguments .* 2 given, expected at least 8: TENSOR.SGD model gradient"),
    ((*SGD, "MOMENTUM", 0.9), r"LR is missing"),
    ((*SGD, "LR", "nan", "MOMENTUM", 0.9), r"\(LR\) is 'nan'; expected a finite number"),
    ((*SGD, "LR", -1, "MOMENTUM", 0.9), r"\(LR\) is '-1'; expected a number of at least 0"),
    ((*SGD, "LR", " 1", "MOMENTUM", 0.9), r"\(LR\) is ' 1'; expected a finite number"),
    ((*SGD, "LR", 1), r"argument 3 \(velocity\) is 'v'; expected -, because MOMENTUM is 0"),
    (("TENSOR.SGD", "p", "g", "-", "OUT", "q", "w", "LR", 1), r"\(velocity_out\) is 'w'; expected -, because"),
    (("TENSOR.SGD", "p", "g", "-", "OUT", "q", "-", *MOMENTUM), r"\(velocity_out\) is '-'; expected a key"),
    (("TENSOR.SGD", "p", "g", "-", "OUT", "-", "w", *MOMENTUM), r"\(model_out\) is '-'; expected a key"),
    (("TENSOR.SGD", "p", "g", "-", "OUT", "q", "q", *MOMENTUM), r"\(output\) is 'q'; expected a key of its own"),
    ((*SGD, *MOMENTUM, "NESTEROV", "DAMPENING", 0.1), r"NESTEROV needs a MOMENTUM above 0 and no DAMPENING"),
    ((*SGD, *MOMENTUM, "BUFFERS", 1), r"BUFFERS and STATS belong together"),
    ((*SGD, *MOMENTUM, "BUFFERS", 3, "STATS", 1), r"\(BUFFERS\) is '3'; expected an integer from 0 to 2"),
    ((*SGD, *MOMENTUM, "BUFFERS", 1, "STATS", 1.5), r"\(STATS\) is '1.5'; expected a number from 0 to 1"),
    ((*SGD, *MOMENTUM, "BUFFERS", 1, "STATS", 1), r"state key 'v' has shape \[2\]; expected \[1\]"),
    (
        ("TENSOR.SGD", "square", "g", "v", "OUT", "q", "w", *MOMENTUM),
        r"model key 'square' has shape \[2, 2\]; expected one flat",
    ),
    (("TENSOR.SGD", "p", "square", "v", "OUT", "q", "w", *MOMENTUM), r"gradient key 'square' has shape \[2, 2\]"),
    (("TENSOR.SGD", "p", "none", "v", "OUT", "q", "w", *MOMENTUM), r"NOKEY TENSOR.SGD: gradient key 'none'"),
    ((*ADAM, "LR", 1, "EPS", 1), r"STEP is missing"),
    ((*ADAM, "LR", 1, "STEP", 2), r"argument 3 \(m\) is '-'; expected a key, because STEP is not 1"),
    ((*ADAM, "LR", 1, "STEP", 1, "BETA1", 1), r"\(BETA1\) is '1'"),
    (
        ("TENSOR.ADAM", "p", "g", "-", "v", "OUT", "q", "m", "w", "LR", 1, "STEP", 1),
        r"\(v\) is 'v'; expected -, like m",
    ),
    (("TENSOR.AXPY", "p", "square", "ALPHA", 1, "OUT", "q"), r"x key 'square' has shape"),
    (("TENSOR.AXPY", "p", "g", "ALPHA", "inf", "OUT", "q"), r"\(ALPHA\) is 'inf'; expected a finite number"),
    (("TENSOR.NORM", "none"), r"NOKEY TENSOR.NORM: input key 'none'"),
    (("TENSOR.NORM", "integers"), r"input key 'integers' is INT32; expected FLOAT"),
    (("TENSOR.FINITE", "p", "g"), r"wrong number of arguments"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_bad_input_is_named_and_stores_nothing(
    server: Server, client: Client, command: tuple[object, ...], message: str
) -> None:
    """Check the error messages of faulty optimizer commands, and that they change nothing."""
    for key in ("p", "g", "v"):
        put(client, key, floats([1, 2]))
    put(client, "square", floats([[1, 2], [3, 4]]))
    put(client, "integers", np.array([1], np.int32))
    with pytest.raises(redis.ResponseError, match=message):
        client.execute_command(*command)
    assert sorted(client.keys()) == [b"g", b"integers", b"p", b"square", b"v"]
    assert statistics(client)["tensors"] == 5
