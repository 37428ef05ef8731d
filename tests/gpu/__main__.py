"""`make gpu-check`: run this folder's tests on this machine's GPU. Exit status 77 if there is none, because nothing was run then."""

import os
import sys
from pathlib import Path

import torch

NOT_RUN = 77  # what test programs return if they lack what they test


def main() -> int:
    """Run the tests on the GPU and return pytest's exit status, or NOT_RUN without a GPU."""
    if not torch.cuda.is_available():
        print(
            f"gpu-check: not run: needs an NVIDIA GPU and a PyTorch built for CUDA; PyTorch {torch.__version__} sees no GPU here"
        )
        return NOT_RUN
    import pytest  # a second that a machine without a GPU need not wait

    os.environ["CROSSOVER_CHECK_DEVICE"] = "cuda"
    return int(pytest.main([str(Path(__file__).parent), "-n", "0", "-s", "-v"]))


if __name__ == "__main__":
    sys.exit(main())
