"""What is tried again: every policy in one table, with its reason. Who tries again reads it here.

What is tried again may be repeated: steps, requests and messages change nothing the second time. What cannot pass by itself (a refusal, a
wrong password, damaged data) is tried once.
"""

from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Retries:
    """`again`: how often after the first time. The pause before each is a random share of a limit that doubles from `first_s` up to
    `most_s`; `within_s` after the first failure there is no other attempt but one.
    """

    again: int = 0
    first_s: float = 0.0
    most_s: float = inf
    within_s: float = inf

    def retrying(self, retry: Any) -> Any:
        """A tenacity.Retrying that asks again within `within_s` where `retry`, of an exception's kind or content, says so."""
        from tenacity import Retrying

        from crossover import runtime
        from crossover.runtime.pauses import Backoff, Patience

        stop, wait = Patience(self.within_s), Backoff(self.first_s, self.most_s)
        return Retrying(retry=retry, stop=stop, wait=wait, sleep=runtime.sleep, reraise=True)


# A step, after an error that passes by itself: by Step Functions, and as often where a run is in one process.
STEP = Retries(again=6, first_s=1, most_s=30)
# Starting an execution, which an account's limits may throttle while others are started.
EXECUTION = Retries(again=8, first_s=2)
# A machine that a program starts, under another name: one whose execution failed is taken for 90 days.
MACHINE = Retries(again=2)
# Requests to Step Functions by programs, whose peers ask at the same time.
MACHINE_REQUEST = Retries(again=7)
# A request to S3. botocore is told to ask once: its first pauses are of 50 ms, and six attempts were over before a bucket that was away for
# a second had come back.
OBJECTS = Retries(first_s=0.05, most_s=4.0, within_s=12.0)
ONCE = Retries()
# A broker that restarts is back within a minute, and soon found.
BROKER = Retries(first_s=0.1, most_s=2.0, within_s=60.0)
# A Redis command whose reused connection breaks: once more, on a new one. A server that is silent has been waited for.
REDIS = Retries(again=1)
# A program goes on after a store or broker did not answer, so often without a checkpoint in between.
PROGRAM = Retries(again=5, first_s=0.5)
# An asynchronous invocation that failed: Lambda's two, after one and two minutes; in the local cloud, seconds.
EVENT = Retries(again=2, first_s=1.0)
