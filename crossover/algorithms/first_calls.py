"""Importing this module calls each of torch's elementwise functions once, so that no worker's first call is inexact.

MKL, which computes these functions on x86 processors, chooses a kernel at a function's first call. If several threads make this first
call at once, one of them can get the kernel of the lowest accuracy: its share of the results is then wrong by up to 1 in 3,000, once
(PyTorch issue 188792; seen in 3 of 9,600 processes on a busy machine, in 0 of 9,600 with this module). Python imports a module in one
thread, so the choice is made before anybody computes.
"""

import torch

_FUNCTIONS = (
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "cos",
        "cosh",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
    ),
    *(
        "floor",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "round",
        "sigmoid",
        "sin",
        "sinh",
        "sqrt",
        "rsqrt",
        "tan",
        "tanh",
        "trunc",
    ),
)


def _call_each_function() -> None:
    """Call each of the elementwise functions once, with one element, in float32 and in float64."""
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype)
        for name in _FUNCTIONS:
            getattr(torch, name)(one)
        torch.pow(one, one)


_call_each_function()
