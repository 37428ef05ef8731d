"""Synthesis as a process of its own: `python -m stacks.apart OUT [FOLDER...]`, the resolved experiment on standard input; own code lies in
the folders.

Ends with 0, or with 2 and one line that says what to mend. Where Node, in which the CDK runs from its import on, is killed with -9, this
process ends so too: that is nobody's fault here, and a traceback would say that it is.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from crossover import own_code
from crossover.errors import UserError
from crossover.experiment import from_resolved

_LOOKS, _LOOK_S = 100, 0.05


def main() -> int:
    own_code.look_in(*sys.argv[2:])
    try:
        from stacks.synthesis import synthesize  # starts Node

        synthesize(from_resolved(json.load(sys.stdin)), Path(sys.argv[1]))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception:
        if _node_was_killed():
            os.kill(os.getpid(), signal.SIGKILL)
        raise
    return 0


def _node_was_killed() -> bool:
    """Looks for a while: the broken pipe tells of an end before the kernel does. Where `node` is a script that starts the real one its exit
    status tells: 128 + 9 of a shell, 256 - 9 of Python.
    """
    for _ in range(_LOOKS):
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there was none
            return False
        if ended is not None:
            return ended.si_status in (signal.SIGKILL, 128 + signal.SIGKILL, 256 - signal.SIGKILL)
        time.sleep(_LOOK_S)
    return False


if __name__ == "__main__":
    sys.exit(main())
