"""A run from its experiment to its folder: stage the data, start the execution, follow it, collect what it recorded.

`inline` runs the tree in this process on memory stores, `local` on the cloud on one machine, `aws` on the deployed stack. Local and AWS
share every line but the session: this program talks to S3, SSM, Step Functions and Auto Scaling only, never to Redis or the broker.
"""

from crossover.running.aws import run_aws
from crossover.running.deployed_run import run_deployed
from crossover.running.following import OnProgress, Progress
from crossover.running.inline import run_inline
from crossover.running.local import run_local
from crossover.running.preparing import Prepared, prepare
from crossover.running.unattended import UnderWay, spent, under_way

__all__ = [
    "OnProgress",
    "Prepared",
    "Progress",
    "UnderWay",
    "prepare",
    "run_aws",
    "run_deployed",
    "run_inline",
    "run_local",
    "spent",
    "under_way",
]
