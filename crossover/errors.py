"""Every error Crossover raises on purpose, as one tree.

CrossoverError
├── UserError                the user can fix it: exit code 2
│   ├── ConfigError          a field of the experiment is invalid: names field, value, choices
│   │   ├── OwnCodeError     user code that a field names cannot be used: names field, file and line
│   │   └── NoProjection     the experiment cannot be simulated: says what to measure first
│   ├── DataError            a data set is missing, corrupt or unfit
│   └── MissingTool          a program of the machine is missing: names the command that installs it
├── StaleAttempt             the attempt is superseded by a later one: never retried, changes nothing
├── Missing                  a key does not exist (yet)
├── Corrupt                  bytes do not match their header or key: wrong kind, length, checksum
├── Refused                  a store or database refused a command: names argument, value, expectation
├── WaitTimeout              a wait timed out: names what was missing
├── Unavailable              a store, broker or host does not answer: worth a retry
├── Lost                     a server of this machine ended by itself: names it, its end, its log
└── RunFailed                a run failed: carries the cause in plain words
"""

import errno
import re
import sys

# Codes of an OSError for a full disk, a user's exceeded disk quota, and a file larger than `ulimit -f`.
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What an OSError says of a path that the system does not let this user write, read or create.
REFUSED_ERRNOS = (
    errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip


class CrossoverError(Exception):
    """Base class of all errors that Crossover raises on purpose. `exit_code`: status with which the command line exits, 1 unless a
    subclass says otherwise.
    """

    exit_code = 1


class UserError(CrossoverError):
    """Base class of errors that the user can fix; the message says how. The command line exits with 2."""

    exit_code = 2


class ConfigError(UserError):
    """Error for an invalid value in an experiment's YAML or a related input. The message names the field, its value, and what was
    expected.
    """


class OwnCodeError(ConfigError):
    """Error for user code that a field of the experiment names: it cannot be found, imported or used, or it failed while it ran."""


class NoProjection(ConfigError):
    """Error for an experiment that can be run but not simulated, because its data sizes or the requests of its steps are not known."""


class DataError(UserError):
    """Error for a data set that is missing, corrupt or does not fit the experiment."""


class MissingTool(UserError):
    """Error for a program that is not installed on this machine; the message has the command that installs it."""


class StaleAttempt(CrossoverError):
    """Error that ends an attempt of a run because a later attempt has taken its place. It is never retried."""


class Missing(CrossoverError):
    """Error for a key that does not exist in a store, perhaps not yet. `key`: its name."""

    def __init__(self, key: str) -> None:
        """Create the error with the message `KEY: no such key`."""
        super().__init__(f"{key}: no such key")
        self.key = key


class Corrupt(CrossoverError):
    """Error for bytes read from a store or message that have the wrong kind, dtype, length or checksum."""


class Refused(CrossoverError):
    """Error for a command that a store or database understood and refused."""


class WaitTimeout(CrossoverError):
    """Error for a wait that timed out; the message names what was missing."""


class Unavailable(CrossoverError):
    """Error for a store, broker or host that does not answer. Step Functions retries a step that raises it."""


class Lost(CrossoverError):
    """Error for a server on this machine, such as Redis, that ended during a run although nobody stopped it."""


class RunFailed(CrossoverError):
    """Error for a run that ended in failure; the message is its cause in plain words."""


def rebuild_error(kind: str, words: str) -> CrossoverError:
    """Return an exception with the message `words` for a run that failed in another process, for the caller to raise. `kind`: name of
    the error's class there.

    It is an OwnCodeError, ConfigError, DataError or UserError if `kind` is that name or `words` contains it before a colon; otherwise
    a RunFailed.
    """
    for mendable in (OwnCodeError, ConfigError, DataError, UserError):
        if kind == mendable.__name__ or f"{mendable.__name__}: " in words:
            return mendable(words)
    return RunFailed(words)


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def quote_controls(text: str) -> str:
    r"""Return `text` with control characters, and those that change the direction of writing, replaced by escapes such as `\x1b`, so
    that text from elsewhere cannot control a terminal. Line feeds, tabs and backslashes stay.
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def print_line(*words: object, stderr: bool = False) -> None:
    """Print one line at once, also into a pipe, with the control characters of `words` quoted (`quote_controls`). Whatever may hold names
    or messages from elsewhere is printed by it. `stderr`: to standard error.
    """
    print(quote_controls(" ".join(map(str, words))), file=sys.stderr if stderr else sys.stdout, flush=True)
