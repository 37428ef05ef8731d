"""The cloud on one machine: AWS's APIs by moto, with real functions, state machines, databases and brokers behind them.

`cloud.py` deploys the same templates that go to AWS. What runs on it knows no difference, so nothing here is imported by steps or programs;
what AWS does otherwise than moto stands in `moto_patches/`.
"""
