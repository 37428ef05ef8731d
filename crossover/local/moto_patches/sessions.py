"""moto's own sessions, from which it learns regions and services, and its own variables: the user's settings reach neither."""

import os

from crossover.local.moto_patches.replacing import Replacements
from crossover.local.sessions import DefaultsSession, Session


def install(changes: Replacements) -> None:
    """Let moto use sessions without the user's settings, and remove the variables MOTO_... from this process's environment, until `changes`
    is closed.

    Install this patch before all others, because they import moto's models.
    """
    import boto3
    from moto.core import base_backend, utils

    with Replacements() as meanwhile:
        meanwhile.replace(boto3, "Session", Session)
        from moto.ec2.models import availability_zones_and_regions  # noqa: F401  # asks a session for the regions at import
    changes.replace(base_backend, "Session", Session)
    changes.replace(utils, "Session", DefaultsSession)
    set_aside = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("MOTO_")}
    changes.callback(os.environ.update, set_aside)
