"""Modules of the user's own, which an experiment names: a model's factory or a data set's loader as `package.module:name`, an architecture
as `package.module`.

They lie beside the experiment's file or in the current folder, and no edit of this project is needed for them. Here they are found, watched
while they are imported, and packed for functions and programs; `learning/` calls them.
"""

from crossover.own_code.bundling import bundled, check, digests, fingerprint, names, used
from crossover.own_code.faults import blame, failure
from crossover.own_code.finding import file_of, load
from crossover.own_code.places import folders, look_in, owns, shown
from crossover.own_code.watching import building

__all__ = [
    "blame",
    "building",
    "bundled",
    "check",
    "digests",
    "failure",
    "file_of",
    "fingerprint",
    "folders",
    "load",
    "look_in",
    "names",
    "owns",
    "shown",
    "used",
]
