"""A run from its experiment to its folder: stage the data, start the execution, follow it, collect its records.

`inline` runs the workflow in this process on memory stores, `local` on the local cloud, `aws` on the deployed stack. Local and AWS share
all code except the creation of the session: this program talks to S3, SSM, Step Functions and Auto Scaling only, never to Redis or the
broker.
"""

from crossover.running.deployed import run_aws, run_deployed, run_local
from crossover.running.inline import run_inline
from crossover.running.monitor import OnProgress, Progress, RunUnderWay, find_run_under_way, load_run_with_cost
from crossover.running.preparing import PreparedRun, prepare

__all__ = [
    "OnProgress",
    "PreparedRun",
    "Progress",
    "RunUnderWay",
    "find_run_under_way",
    "load_run_with_cost",
    "prepare",
    "run_aws",
    "run_deployed",
    "run_inline",
    "run_local",
]
