"""AWS::SecretsManager::Secret, with a generated value for GenerateSecretString."""

import json
import secrets
import string
from collections.abc import Mapping
from typing import Any

from crossover.local.moto_patches.resource_types import ACCOUNT, REGION, MadeResource, ResourceType, WantedResource

_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def resource_types() -> dict[str, ResourceType]:
    return {"AWS::SecretsManager::Secret": ResourceType(make=_make, name_property="Name")}


def _make(wanted: WantedResource) -> MadeResource:
    from moto.secretsmanager.models import secretsmanager_backends

    backend = secretsmanager_backends[ACCOUNT][REGION]
    properties = wanted.properties
    value = properties.get("SecretString")
    if value is None:
        value = generated(properties.get("GenerateSecretString", {}))
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
        backend.delete_secret(arn, recovery_window_in_days=None, force_delete_without_recovery=True)

    return MadeResource(arn, {"Id": arn}, remove)


def generated(rule: Mapping[str, Any]) -> str:
    """Return a random secret by CloudFormation's GenerateSecretString. `rule`: length, alphabet, and the JSON template to fill in."""
    password = _password(rule)
    if "GenerateStringKey" not in rule:
        return password
    return json.dumps({**json.loads(rule.get("SecretStringTemplate", "{}")), rule["GenerateStringKey"]: password})


def _password(rule: Mapping[str, Any]) -> str:
    def wanted(name: str) -> bool:
        return str(rule.get(name, False)).lower() == "true"

    excluded = set(rule.get("ExcludeCharacters", ""))
    kinds = [
        ("ExcludeLowercase", string.ascii_lowercase),
        ("ExcludeUppercase", string.ascii_uppercase),
        ("ExcludeNumbers", string.digits),
        ("ExcludePunctuation", _PUNCTUATION),
    ]
    alphabets = [[c for c in letters if c not in excluded] for name, letters in kinds if not wanted(name)]
    alphabets = [letters for letters in alphabets if letters]
    every = [c for letters in alphabets for c in letters] + ([" "] if wanted("IncludeSpace") else [])
    length = int(rule.get("PasswordLength", 32))
    each = str(rule.get("RequireEachIncludedType", True)).lower() == "true"
    chosen = [secrets.choice(letters) for letters in alphabets] if each else []
    chosen += [secrets.choice(every) for _ in range(length - len(chosen))]
    secrets.SystemRandom().shuffle(chosen)
    return "".join(chosen)
