"""The Redis hosts: Debian on Graviton, nothing open but Redis from the functions, no secret in the user data."""

from dataclasses import replace
from pathlib import Path

import pytest

from cdk.hosts import USER_DATA_LIMIT_BYTES
from crossover.errors import ConfigError
from crossover.experiment import Experiment
from crossover.processors import processor
from tests.infrastructure.assemblies import Assembly, flat, only, resources
from tests.infrastructure.conftest import Synthesize


def test_one_host_per_worker(assembly: Assembly, large: Assembly) -> None:
    for made, workers in ((assembly, 4), (large, 64)):
        hosts = resources(made.experiment, "AWS::EC2::Instance").values()
        tags = [{t["Key"]: t["Value"] for t in host["Tags"]} for host in hosts]
        assert [t["crossover:rank"] for t in tags] == [str(rank) for rank in range(workers)]
        assert {t["crossover:role"] for t in tags} == {"redis"}
        assert [t["Name"] for t in tags] == [f"{made.name}-redis-{rank}" for rank in range(workers)]


def test_a_host(assembly: Assembly) -> None:
    parameters = assembly.experiment["Parameters"]
    for host in resources(assembly.experiment, "AWS::EC2::Instance").values():
        assert host["InstanceType"] == "m7g.large"
        image = parameters[host["ImageId"]["Ref"]]
        assert image["Type"] == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
        assert image["Default"] == "/aws/service/debian/release/12/latest/arm64"
        assert host["MetadataOptions"]["HttpTokens"] == "required"
        (volume,) = host["BlockDeviceMappings"]
        assert volume["Ebs"]["Encrypted"] is True
        assert volume["Ebs"]["DeleteOnTermination"] is True
        assert host["PropagateTagsToVolumeOnCreation"] is True
        assert "KeyName" not in host  # no SSH
        assert parameters[host["SubnetId"]["Ref"]]["Default"].endswith("/network/hosts_subnet")
        (group,) = host["SecurityGroupIds"]
        assert parameters[group["Ref"]]["Default"].endswith("/network/hosts_group")


def test_user_data_is_short_and_holds_no_secret(large: Assembly) -> None:
    for host in resources(large.experiment, "AWS::EC2::Instance").values():
        text = flat(host["UserData"])
        # References become ARNs, addresses and a signed URL: 400 characters each is generous.
        assert len(text) + 400 * text.count("<") < USER_DATA_LIMIT_BYTES
        assert "resolve:" not in text
        assert "secretsmanager get-secret-value --secret-id" in text


def test_user_data_names_what_the_script_reads(assembly: Assembly) -> None:
    text = flat(resources(assembly.experiment, "AWS::EC2::Instance").popitem()[1]["UserData"])
    header = dict(line.split("=", 1) for line in text.splitlines()[1:10])
    assert set(header) == {"RANK", "REGION", "SIGNAL_URL", "SECRET", "MODULE", "BUCKET", "PORT", "THREADS", "DEB"}
    assert header["RANK"] == "'3'"
    assert header["DEB"] == "'arm64'"
    assert header["MODULE"].startswith("'s3://cdk-hnb659fds-assets-")


@pytest.mark.parametrize(("instance_type", "kind"), [("m7g.large", "arm64"), ("m7i.large", "amd64")])
def test_the_module_travels_as_it_was_built(
    synth: Synthesize, spirt: Experiment, tmp_path: Path, instance_type: str, kind: str
) -> None:
    for each in ("arm64", "amd64"):
        (tmp_path / f"tensors-{each}.so").write_text(f"for {each}")
    made = synth(layers=tmp_path, database=replace(spirt.database, instance_type=instance_type))
    assert "TensorModuleIsBuilt" not in made.experiment["Rules"]
    (module,) = made.folder.glob("asset.*.so")
    assert module.read_text() == f"for {kind}"


def test_without_the_module_a_template_refuses_deployment_and_says_what_to_do(assembly: Assembly) -> None:
    (assertion,) = assembly.experiment["Rules"]["TensorModuleIsBuilt"]["Assertions"]
    reference, wanted = assertion["Assert"]["Fn::Equals"]
    assert assembly.experiment["Parameters"][reference["Ref"]]["Default"] != wanted
    assert "`make host-module PROCESSOR=arm64`" in assertion["AssertDescription"]


def test_the_deployment_waits_for_every_host(assembly: Assembly, large: Assembly) -> None:
    for made, workers in ((assembly, 4), (large, 64)):
        template = made.experiment
        wait = only(template, "AWS::CloudFormation::WaitCondition")
        (handle,) = resources(template, "AWS::CloudFormation::WaitConditionHandle")
        assert wait["Count"] == workers
        assert wait["Handle"] == {"Ref": handle}
        assert 900 <= int(wait["Timeout"]) <= 3_600
        condition = next(r for r in template["Resources"].values() if r["Type"] == "AWS::CloudFormation::WaitCondition")
        assert set(condition["DependsOn"]) == set(resources(template, "AWS::EC2::Instance"))
        for host in resources(template, "AWS::EC2::Instance").values():
            assert f"SIGNAL_URL='<{handle}>'" in flat(host["UserData"])


def test_a_changed_boot_waits_anew(assembly: Assembly, monkeypatch: pytest.MonkeyPatch, synth: Synthesize) -> None:
    """A wait condition counts once: with its old name a host that was replaced would not be waited for."""
    before = set(resources(assembly.experiment, "AWS::CloudFormation::WaitCondition"))
    assert set(resources(synth().experiment, "AWS::CloudFormation::WaitCondition")) == before
    changed = resources(synth(workers=3).experiment, "AWS::CloudFormation::WaitCondition")
    assert set(changed) != before
    monkeypatch.setattr("cdk.redis_hosts.fingerprint", lambda *parts: f"{len(parts)}")
    assert set(resources(synth().experiment, "AWS::CloudFormation::WaitCondition")) != before


def test_the_password_is_made_by_secrets_manager(assembly: Assembly) -> None:
    secret = only(assembly.experiment, "AWS::SecretsManager::Secret")["GenerateSecretString"]
    assert secret["PasswordLength"] >= 32
    assert secret["ExcludePunctuation"] is True  # it stands unquoted in redis.conf
    assert "SecretStringTemplate" not in secret  # the whole string is the password


@pytest.mark.parametrize(
    ("instance_type", "expected"),
    [
        ("m7g.large", "arm64"),
        ("c7gn.xlarge", "arm64"),
        ("t4g.medium", "arm64"),
        ("x2gd.medium", "arm64"),
        ("m7i.large", "amd64"),
        ("t2.large", "amd64"),
        ("g4dn.xlarge", "amd64"),
        ("m7i-flex.large", "amd64"),
    ],
)
def test_processors(instance_type: str, expected: str) -> None:
    assert processor(instance_type) == expected


def test_another_instance_type(synth: Synthesize, spirt: Experiment) -> None:
    made = synth(database=replace(spirt.database, instance_type="m7i.large", threads=2))
    host = resources(made.experiment, "AWS::EC2::Instance").popitem()[1]
    assert made.experiment["Parameters"][host["ImageId"]["Ref"]]["Default"].endswith("/amd64")
    assert "THREADS='2'" in flat(host["UserData"])
    assert "DEB='amd64'" in flat(host["UserData"])


def test_the_original_engine_is_refused_until_it_exists(synth: Synthesize, spirt: Experiment) -> None:
    with pytest.raises(ConfigError, match=r"database.engine: 'redisai' cannot be deployed yet"):
        synth(database=replace(spirt.database, engine="redisai"))
