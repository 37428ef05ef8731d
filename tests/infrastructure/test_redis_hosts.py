"""The Redis hosts: Debian on Graviton, nothing open but Redis from the functions, no secret in the user data."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cdk import hosts
from cdk.hosts import USER_DATA_LIMIT_BYTES, boot_script
from crossover.experiment import Experiment
from crossover.workflow.architecture import processor
from tests.infrastructure.assemblies import Assembly, Json, flat, only, resources
from tests.infrastructure.conftest import Synthesize


def test_one_host_per_worker(assembly: Assembly, large: Assembly) -> None:
    """Check that there is a Redis host for each worker, tagged with its rank."""
    for made, workers in ((assembly, 4), (large, 64)):
        hosts = resources(made.experiment, "AWS::EC2::Instance").values()
        tags = [{t["Key"]: t["Value"] for t in host["Tags"]} for host in hosts]
        assert [t["crossover:rank"] for t in tags] == [str(rank) for rank in range(workers)]
        assert {t["crossover:role"] for t in tags} == {"redis"}
        assert [t["Name"] for t in tags] == [f"{made.name}-redis-{rank}" for rank in range(workers)]


def test_a_redis_host_is_encrypted_and_without_ssh(assembly: Assembly) -> None:
    """Check the Redis hosts: type, image, IMDSv2, and an encrypted disk that is deleted with the host."""
    parameters = assembly.experiment["Parameters"]
    template = only(assembly.experiment, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    for host in resources(assembly.experiment, "AWS::EC2::Instance").values():
        assert host["InstanceType"] == "m7g.large"
        image = parameters[template["ImageId"]["Ref"]]
        assert image["Type"] == "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>"
        assert image["Default"] == "/aws/service/debian/release/13/latest/arm64"
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
    """Check that the user data of Redis hosts stays below the size limit and contains no secret."""
    (script,) = large.experiment["Mappings"].values()
    assert script == {"redis": {"script": boot_script("redis.sh")}}
    assert "secretsmanager.GetSecretValue" in boot_script("redis.sh")
    for host in resources(large.experiment, "AWS::EC2::Instance").values():
        text = flat(host["UserData"])
        assert "Fn::FindInMap" in text  # the script's place
        # References become ARNs, addresses and a signed URL: 400 characters each is generous.
        assert len(text) + len(boot_script("redis.sh")) + 400 * text.count("<") < USER_DATA_LIMIT_BYTES
        assert "resolve:" not in text


def test_user_data_names_what_the_script_reads(assembly: Assembly) -> None:
    """Check the variables that the user data of a Redis host sets for its boot script."""
    text = flat(resources(assembly.experiment, "AWS::EC2::Instance").popitem()[1]["UserData"])
    header = dict(line.split("=", 1) for line in text.splitlines()[1:14])
    common = {"REGION", "LOGS", "NAME", "BOOT_S", "SESSION_AGENT", "SESSION_AGENT_SHA256"}
    assert set(header) == common | {"RANK", "SIGNAL_URL", "SECRET", "MODULE", "BUCKET", "PORT", "THREADS"}
    assert header["RANK"] == "'3'"
    assert header["LOGS"] == "'/crossover/crossover/boot'"
    assert header["NAME"] == "'crossover-spirt-redis-3'"
    assert header["MODULE"].startswith("'s3://cdk-hnb659fds-assets-")


@pytest.mark.slow
@pytest.mark.parametrize(("instance_type", "kind"), [("m7g.large", "arm64"), ("m7i.large", "amd64")])
def test_the_module_travels_as_it_was_built(
    synth: Synthesize, spirt: Experiment, tmp_path: Path, instance_type: str, kind: str
) -> None:
    """Check that the assembly contains the tensor module built for the processor of the instance type."""
    for each in ("arm64", "amd64"):
        (tmp_path / f"tensors-{each}.so").write_text(f"for {each}")
    made = synth(layers=tmp_path, database=replace(spirt.database, instance_type=instance_type))
    assert "TensorModuleIsBuilt" not in made.experiment["Rules"]
    (module,) = made.folder.glob("asset.*.so")
    assert module.read_text() == f"for {kind}"


def test_without_the_module_a_template_refuses_deployment_and_says_what_to_do(assembly: Assembly) -> None:
    """Check that a template without a built tensor module has a rule which refuses its deployment and names the make command."""
    (assertion,) = assembly.experiment["Rules"]["TensorModuleIsBuilt"]["Assertions"]
    reference, wanted = assertion["Assert"]["Fn::Equals"]
    assert assembly.experiment["Parameters"][reference["Ref"]]["Default"] != wanted
    assert "`make host-module PROCESSOR=arm64`" in assertion["AssertDescription"]


HANDLE, CONDITION = "AWS::CloudFormation::WaitConditionHandle", "AWS::CloudFormation::WaitCondition"


def test_the_deployment_waits_for_every_host(assembly: Assembly, large: Assembly) -> None:
    """Check that each Redis host has a wait condition of its own, which its boot signals."""
    for made, workers in ((assembly, 4), (large, 64)):
        template = made.experiment
        by_handle = {
            flat(each["Properties"]["Handle"]): each
            for each in template["Resources"].values()
            if each["Type"] == CONDITION
        }
        assert set(by_handle) == {f"<{handle}>" for handle in resources(template, HANDLE)} and len(by_handle) == workers
        for name, host in resources(template, "AWS::EC2::Instance").items():
            (handle,) = (each for each in by_handle if f"SIGNAL_URL='{each}'" in flat(host["UserData"]))
            wait = by_handle[handle]
            assert wait["DependsOn"] == [name] and wait["Properties"]["Count"] == 1
            assert 900 <= int(wait["Properties"]["Timeout"]) <= 3_600


# --- deployed again: CloudFormation's rules over two templates --------------------------------------------------------

KEEPING = (
    "AvailabilityZone",
    "BlockDeviceMappings",
    "ImageId",
    "LaunchTemplate",
    "SubnetId",
)  # another one: another instance


def hosts_of(template: Json) -> dict[str, Json]:
    """Return the template's EC2 instances, by logical name."""
    return resources(template, "AWS::EC2::Instance")


def check_update(old: Json, new: Json) -> set[str]:
    """Return the logical ids of the hosts that stay, and check that the update waits for each host that boots, and for no other. User
    data run at the first boot alone, and a wait condition counts only what its own handle is sent.
    """
    before, after = hosts_of(old), hosts_of(new)
    stay = before.keys() & after.keys()
    for name in stay:
        assert all(before[name].get(key) == after[name].get(key) for key in KEEPING), f"{name}: replaced in its place"
        assert before[name].get("UserData") == after[name].get("UserData"), f"{name}: restarted, and never boots anew"
    booting = " ".join(flat(after[name]["UserData"]) for name in after.keys() - before.keys())
    made = resources(new, CONDITION).keys() - resources(old, CONDITION).keys()
    waited = {flat(resources(new, CONDITION)[name]["Handle"]) for name in made}
    assert all(handle in booting for handle in waited), "waits for a host that does not boot"
    assert len(waited) == len(after.keys() - before.keys()), "a host that nobody waits for"
    return stay


@pytest.mark.slow
def test_other_numbers_of_workers_keep_the_hosts_that_stand(assembly: Assembly, synth: Synthesize) -> None:
    """Check that an update to more or fewer workers, or to another owner, replaces no existing host."""
    old, more, fewer = (each.experiment for each in (assembly, synth(workers=6), synth(workers=2)))
    assert check_update(old, more) == hosts_of(old).keys()
    assert check_update(old, fewer) == hosts_of(fewer).keys()
    assert check_update(old, synth(owner="another").experiment) == hosts_of(old).keys()


@pytest.mark.slow
def test_another_boot_makes_other_hosts(
    assembly: Assembly, synth: Synthesize, spirt: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that another number of threads, instance type, generation of images or boot script replaces every Redis host."""
    for change in ({"threads": 2}, {"instance_type": "m7g.xlarge"}, {"image_generation": 2}):
        changed = synth(database=replace(spirt.database, **change))
        assert check_update(assembly.experiment, changed.experiment) == set(), change
    for name in ("redis.sh", "common.sh", "cloud.py"):
        changed_boot = tmp_path / name
        shutil.copytree(hosts.BOOT, changed_boot)
        (changed_boot / name).write_text((hosts.BOOT / name).read_text() + "true\n")
        with monkeypatch.context() as patch:
            patch.setattr(hosts, "BOOT", changed_boot)
            assert check_update(assembly.experiment, synth().experiment) == set()


def test_the_image_that_stands_is_kept(assembly: Assembly) -> None:
    """Check that Redis hosts name the first version of a launch template instead of an image, so that an update keeps the image.

    A parameter is read anew at each update; the first version of a launch template is not.
    """
    (template,) = resources(assembly.experiment, "AWS::EC2::LaunchTemplate")
    for host in hosts_of(assembly.experiment).values():
        assert "ImageId" not in host
        assert host["LaunchTemplate"] == {"LaunchTemplateId": {"Ref": template}, "Version": "1"}


def test_the_password_is_made_by_secrets_manager(assembly: Assembly) -> None:
    """Check that Secrets Manager generates the password of the Redis hosts, without punctuation."""
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
def test_the_processor_follows_from_the_instance_type(instance_type: str, expected: str) -> None:
    """Check the processor architecture that `processor` returns for instance types."""
    assert processor(instance_type) == expected


@pytest.mark.slow
def test_another_instance_type(synth: Synthesize, spirt: Experiment) -> None:
    """Check image and number of threads of hosts with an x86 instance type."""
    made = synth(database=replace(spirt.database, instance_type="m7i.large", threads=2))
    host = resources(made.experiment, "AWS::EC2::Instance").popitem()[1]
    template = only(made.experiment, "AWS::EC2::LaunchTemplate")["LaunchTemplateData"]
    assert made.experiment["Parameters"][template["ImageId"]["Ref"]]["Default"].endswith("/amd64")
    assert "THREADS='2'" in flat(host["UserData"])


def test_a_fact_that_would_end_the_shells_quotes_is_refused() -> None:
    """Check that user data with a single quote in a fact raise ValueError with the fact's name."""
    with pytest.raises(ValueError, match=r"NAME: .*single quote"):
        hosts.user_data("true\n", {"NAME": "it's"})
