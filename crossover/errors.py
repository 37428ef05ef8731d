"""Every error Crossover raises on purpose, as one tree.

CrossoverError
├── UserError                the user can mend it: exit code 2
│   ├── ConfigError          a field of the experiment: names field, value, choices
│   │   ├── OwnCodeError     the user's own module that a field names: names field, file and line
│   │   └── NoProjection     what the simulation knows nothing of: says what would tell
│   ├── DataError            a data set is missing, corrupt or unfit
│   └── MissingTool          a program of the machine is missing, with the line that installs it
├── StaleAttempt             an attempt that others have overtaken: never retried, changes nothing
├── Missing                  a key that is not there (yet)
├── Corrupt                  bytes that are not what their header or key says: wrong kind, length, checksum
├── Refused                  a store or database refused a command: names argument, value, expectation
├── WaitTimeout              a wait reached its end: names what was missing
├── Unavailable              a store, broker or host does not answer: worth a retry
├── Lost                     a server of this machine ended by itself: names it, its end, its log
└── RunFailed                a run ended with a failure: carries the plain cause
"""

import errno
import re

FULL = (errno.ENOSPC, errno.EDQUOT)  # what an OSError says of a disk, or of a user's share of it


class CrossoverError(Exception):
    """Base of the tree; `exit_code` is what the command line ends with."""

    exit_code = 1


class UserError(CrossoverError):
    """An error that the user can fix; the message says how."""

    exit_code = 2


class ConfigError(UserError):
    """An experiment file that cannot be run as it stands: field, value, what was expected."""


class OwnCodeError(ConfigError):
    """The user's own code, named by a field, that cannot be found, imported or used, or that failed while it trained."""


class NoProjection(ConfigError):
    """An experiment that can be run and not be simulated: its sizes, or what its steps do, are not known there. Nothing is guessed."""


class DataError(UserError):
    """A data set that is missing, corrupt or does not fit the experiment."""


class MissingTool(UserError):
    """A program that this machine lacks; the message has the command that installs it."""


class StaleAttempt(CrossoverError):
    """The inputs are gone because a later attempt finished the work. Never retried; changes nothing."""


class Missing(CrossoverError):
    """A key that does not exist (yet). `key` names it."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: no such key")
        self.key = key


class Corrupt(CrossoverError):
    """Bytes that are not what they should be: wrong kind, dtype, length or checksum."""


class Refused(CrossoverError):
    """A store or database understood the command and refused it."""


class WaitTimeout(CrossoverError):
    """A wait reached its time-out; the message names what was missing."""


class Unavailable(CrossoverError):
    """A store, broker or host that does not answer. Step Functions retries a step that raises it."""


class Lost(CrossoverError):
    """A server that a run on this machine needs has ended, and nobody stopped it."""


class RunFailed(CrossoverError):
    """A run that ended in failure, with its cause in plain words."""


def ended_with(kind: str, words: str) -> CrossoverError:
    """Return the error to raise here for a run that failed elsewhere. `kind`: the error's class name there; `words`: its message. The
    result has the user error's class that `kind` or `words` names, so that the user can fix it; otherwise it is a RunFailed.
    """
    for mendable in (OwnCodeError, ConfigError, DataError, UserError):
        if kind == mendable.__name__ or f"{mendable.__name__}: " in words:
            return mendable(words)
    return RunFailed(words)


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def quote_controls(text: str) -> str:
    """Return the text with control characters written out (`\\x1b`), so that a stranger's name cannot command a terminal. Line ends and
    tabs stay.
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
