"""Sessions with the cloud on this machine, which ignore the user's AWS settings and proxies.

botocore reads them from the environment and from ~/.aws: a profile, a proxy or a broken file there would stop a run that never calls AWS.
"""

import os
from collections.abc import Mapping
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.configprovider import ConfigChainFactory, ConfigValueStore

# For child processes: they find no file of the user's, also where they know his home folder.
WITHOUT_FILES = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


class DefaultsSession(botocore.session.Session):
    """A botocore session with botocore's built-in defaults: it ignores the environment, the user's AWS files and proxies."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Create the session with botocore's arguments, and replace its sources of settings by the defaults."""
        super().__init__(*arguments, **named)
        chains = ConfigChainFactory(session=self, environ={})
        defaults = {
            name: chains.create_config_chain(instance_name=name, default=default, conversion_func=convert)
            for name, (_, _, default, convert) in self.SESSION_VARIABLES.items()
        }
        self.register_component("config_store", ConfigValueStore(mapping=defaults))
        self.set_default_client_config(Config(proxies={}))

    @property
    def full_config(self) -> dict[str, Any]:
        """The content of the user's configuration files: always {"profiles": {}}, as if there were none."""
        return {"profiles": {}}


class Session(boto3.Session):
    """A boto3 session with botocore's built-in defaults, which ignores the environment, the user's AWS files and proxies.

    `defaults`: arguments of each client and resource, such as endpoint_url, unless the caller gives others.
    """

    def __init__(self, *, defaults: Mapping[str, Any] = {}, **named: Any) -> None:
        """Create the session. `named`: further arguments of boto3.Session, such as keys and region."""
        # An empty REQUESTS_CA_BUNDLE is refused even for http://, unless `verify` says what to do.
        self._defaults = {"verify": True, **defaults}
        super().__init__(botocore_session=DefaultsSession(), **named)

    def client(self, *arguments: Any, **named: Any) -> Any:
        """Return a boto3 client with this session's default arguments, unless `named` gives others."""
        return super().client(*arguments, **{**self._defaults, **named})

    def resource(self, *arguments: Any, **named: Any) -> Any:
        """Return a boto3 resource with this session's default arguments, unless `named` gives others."""
        return super().resource(*arguments, **{**self._defaults, **named})
