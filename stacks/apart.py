"""Synthesis as a process of its own: `python -m stacks.apart OUT [FOLDER...]`, with the resolved experiment on standard input; user code
lies in the folders.

Ends with 0, or with 2 and one line that says what to correct. If Node, in which the CDK runs, is killed with -9, this process kills
itself in the same way: a traceback would suggest a fault of this project.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from crossover import user_code
from crossover.errors import UserError
from crossover.experiment import from_plain

_LOOKS, _LOOK_S = 100, 0.05


def main() -> int:
    """Read a resolved experiment as JSON from standard input, synthesize it into the folder named by the first argument, and return the
    exit status. A user's mistake is printed as one line; other errors pass through, but if Node was killed by SIGKILL, this process kills
    itself in the same way.
    """
    user_code.set_folders(*sys.argv[2:])
    try:
        from stacks.synthesis import synthesize  # starts Node

        synthesize(from_plain(json.load(sys.stdin)), Path(sys.argv[1]))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception:
        if _node_was_killed():
            os.kill(os.getpid(), signal.SIGKILL)
        raise
    return 0


def _node_was_killed() -> bool:
    """Return whether a child process was killed by SIGKILL. Polls for up to five seconds, because the broken pipe is noticed before the
    kernel reports the end.

    If `node` is a script that starts the real one, its exit status shows it: 128 + 9 from a shell, 256 - 9 from Python.
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
