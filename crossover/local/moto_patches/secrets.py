"""AWS::SecretsManager::Secret, with a generated value for GenerateSecretString."""

import json
import secrets
import string
from collections.abc import Mapping
from typing import Any

from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, MadeResource, ResourceType, WantedResource

_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def resource_types() -> dict[str, ResourceType]:
    """Return {"AWS::SecretsManager::Secret": the ResourceType of secrets}."""
    return {"AWS::SecretsManager::Secret": ResourceType(make=_make_secret, name_property="Name")}


def _make_secret(wanted: WantedResource) -> MadeResource:
    """Create a template's secret in moto, with the given value or a generated one, and return it as a resource whose Ref and attribute Id
    are the secret's ARN.
    """
    from moto.secretsmanager.models import secretsmanager_backends

    backend = secretsmanager_backends[ACCOUNT][REGION]
    properties = wanted.properties
    value = properties.get("SecretString")
    if value is None:
        value = generate_secret(properties.get("GenerateSecretString", {}))
    made = backend.create_secret(
        name=wanted.name,
        secret_string=value,
        secret_binary=None,
        description=properties.get("Description"),
        tags=properties.get("Tags", []),
        kms_key_id=None,
        client_request_token=None,
        replica_regions=[],
        force_overwrite=False,
    )
    arn = json.loads(made)["ARN"]

    def remove() -> None:
        """Delete the secret at once, without a recovery window."""
        backend.delete_secret(arn, recovery_window_in_days=None, force_delete_without_recovery=True)

    return MadeResource(arn, {"Id": arn}, remove)


def generate_secret(rule: Mapping[str, Any]) -> str:
    """Return a random secret as CloudFormation's GenerateSecretString does: a password, or, if the rule has a GenerateStringKey, a JSON
    object with the password under that key. `rule`: properties of GenerateSecretString, such as PasswordLength (default 32).
    """
    password = _generate_password(rule)
    if "GenerateStringKey" not in rule:
        return password
    return json.dumps({**json.loads(rule.get("SecretStringTemplate", "{}")), rule["GenerateStringKey"]: password})


def _generate_password(rule: Mapping[str, Any]) -> str:
    """Return a random password as `rule`, the properties of GenerateSecretString, asks for: length, excluded and required characters. By
    default it has 32 characters and at least one of each kind that is not excluded.
    """

    def is_set(name: str) -> bool:
        """Return whether the rule sets the flag `name` to true, given as a boolean or as text."""
        return str(rule.get(name, False)).lower() == "true"

    excluded = set(rule.get("ExcludeCharacters", ""))
    kinds = [
        ("ExcludeLowercase", string.ascii_lowercase),
        ("ExcludeUppercase", string.ascii_uppercase),
        ("ExcludeNumbers", string.digits),
        ("ExcludePunctuation", _PUNCTUATION),
    ]
    alphabets = [[c for c in letters if c not in excluded] for name, letters in kinds if not is_set(name)]
    alphabets = [letters for letters in alphabets if letters]
    every = [c for letters in alphabets for c in letters] + ([" "] if is_set("IncludeSpace") else [])
    length = int(rule.get("PasswordLength", 32))
    each = str(rule.get("RequireEachIncludedType", True)).lower() == "true"
    chosen = [secrets.choice(letters) for letters in alphabets] if each else []
    chosen += [secrets.choice(every) for _ in range(length - len(chosen))]
    secrets.SystemRandom().shuffle(chosen)
    return "".join(chosen)
