"""The cloud on one machine: AWS's APIs by moto, with real functions, state machines, databases and brokers behind them.

`cloud.py` deploys the same templates that go to AWS. Steps and programs cannot tell the difference, so they import nothing from here;
`moto_patches/` changes moto where it differs from AWS.
"""
