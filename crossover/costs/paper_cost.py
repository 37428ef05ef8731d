"""The papers' cost formulas, with the prices they used. They stay as printed when AWS changes its prices.

2025: "Cost-Performance Analysis", section 4.1. 2023: "Exploring the Impact of Serverless Computing on Peer To Peer Training Machine
Learning", section V-B2.
"""

X86_USD_PER_GB_S = 0.0000166667  # 2025, section 4.1
ARM64_USD_PER_GB_S = 0.0000133334  # 2023, Table II: Lambda on ARM
GPU_USD_PER_HOUR = 0.526  # 2025, section 4.1: g4dn.xlarge
PEER_USD_PER_S = {"t2.small": 0.00000639, "t2.large": 0.00002578}  # 2023, Tables II and III


def lambda_usd(seconds: float, *, memory_mb: float, usd_per_gb_s: float = X86_USD_PER_GB_S) -> float:
    """2025: one function's cost, seconds x GB x price, where a GB is 1,000 MB.

    AWS bills differently: `billing.gb_seconds`.
    """
    return seconds * memory_mb / 1_000 * usd_per_gb_s


def gpu_usd(seconds: float, *, instances: int = 1, usd_per_hour: float = GPU_USD_PER_HOUR) -> float:
    """2025: GPU instances for the training time at the hourly price."""
    return seconds / 3_600 * instances * usd_per_hour


def lambda_usd_per_s(memory_mb: float, *, usd_per_gb_s: float = ARM64_USD_PER_GB_S) -> float:
    """2023, Table II: the price of one function's second; here a GB is 1,024 MB."""
    return memory_mb / 1_024 * usd_per_gb_s


def peer_serverless_usd(seconds: float, *, batches: int, lambda_usd_per_s: float, ec2_usd_per_s: float) -> float:
    """2023, equation 1: every batch's function is charged for the whole computation time of the peer, and so is its instance."""
    return (lambda_usd_per_s * batches + ec2_usd_per_s) * seconds


def peer_instance_usd(seconds: float, *, ec2_usd_per_s: float) -> float:
    """2023, equation 2: the instance alone."""
    return ec2_usd_per_s * seconds
