"""Who reaches out, functions and instances, and what each service takes of them. What they need follows from the architecture's tree."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdk import bundling
from cdk.packaging import ROOT
from crossover.experiment import Experiment
from crossover.workflow.architecture import Architecture, architecture_of, steps
from tests.infrastructure.assemblies import flat, step_of
from tests.infrastructure.reachability import BROKER, NETWORK, Pointer, Search, Templates

HERE = "<AWS::Region>:<AWS::AccountId>"
RULE = f"arn:<AWS::Partition>:events:{HERE}:rule/StepFunctionsGetEventsForStepFunctionsExecutionRule"
SESSION = (
    "ssm:UpdateInstanceInformation",
    *(f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")),
)


@dataclass(frozen=True)
class Fact:
    """A variable of a function's or instance's environment: its text, its value if that refers to the template, and its place there."""

    text: str
    value: Any = None
    place: Pointer | None = None


@dataclass(frozen=True)
class Caller:
    """A function or instance as the templates have it. `role`: logical id of its role; `group`, `subnet`: `stack/logical id`, "" outside
    the VPC.
    """

    name: str
    role: str
    facts: Mapping[str, Fact]
    group: str = ""
    subnet: str = ""


@dataclass(frozen=True)
class Need:
    """A function or instance and the services that it uses. `who`: `function:<step>`, `host:<rank>` or `fleet`; the service "boot" is what
    an instance needs before all else.
    """

    who: str
    services: frozenset[str]


def needs(experiment: Experiment) -> list[Need]:
    """Return the needs of every function and instance that the architecture's tree asks for."""
    architecture = architecture_of(experiment)
    found = [Need(f"function:{step.name}", frozenset(step.uses)) for step in steps(architecture)]
    found += [Need(f"host:{rank}", frozenset({"boot", "serve"})) for rank in range(hosts_of(experiment))]
    if architecture.program is not None:
        found.append(Need("fleet", frozenset({"boot", "objects"}) | of_program(architecture, experiment)))
    return found


def hosts_of(experiment: Experiment) -> int:
    """Return how many Redis hosts the tree asks for."""
    match architecture_of(experiment).tensor_hosts:
        case "per_worker":
            return experiment.workers
        case "shared":
            return 1 if experiment.storage.channel == "redis" else 0
    return 0


def of_program(architecture: Architecture, experiment: Experiment) -> frozenset[str]:
    """Return the services that the architecture's program uses, read off the code that it reaches, because a program declares none."""
    assert architecture.program is not None
    sources = bundling.Sources(ROOT)
    closure = sources.collect_files(
        architecture.program.module, available=sources.list_reachable_packages(architecture.program.module)
    )
    theirs = ("peers/", "crossover/training/peer.py")
    text = "".join((ROOT / path).read_text() for path in closure.files if path.as_posix().startswith(theirs))
    asked = {"bus": "bus", "tensors": "tensors", "run_machine": "machines"}
    found = {asked[name] for name in re.findall(rf"\bctx\.({'|'.join(asked)})\b", text)}
    if architecture.program.instances(experiment).gpu and experiment.gpu.exchange == "distributed":
        found.add("collective")
    return frozenset(found)


def look(templates: Templates, need: Need, *, experiment: Experiment) -> Search:
    """Look up in the templates everything that `need` takes, and return a new search with its evidence and what is missing. If the function
    or the instances of `need` are missing themselves, nothing else is looked up.
    """
    search = Search(templates, f"{experiment.project}-{experiment.name}")
    kind, _, which = need.who.partition(":")
    match kind:
        case "function":
            caller = function(search, which, in_vpc=_in_vpc(need.services, experiment))
        case "host":
            caller = host(search, int(which))
        case _:
            caller = fleet(search)
    if caller is None:
        return search
    for service in sorted(need.services):
        SERVICES[service](search, caller, experiment)
    return search


def _in_vpc(services: frozenset[str], experiment: Experiment) -> bool:
    """Return True if a function with these services must be in the VPC."""
    return "bus" in services or ("tensors" in services and bool(hosts_of(experiment)))


# --- who ----------------------------------------------------------------------------------------------------------------


def function(search: Search, step: str, *, in_vpc: bool) -> Caller | None:
    """Return the function of a step as a caller; None if the templates have none."""
    name, properties = search.only(
        f"function of {step}", search.stack, "AWS::Lambda::Function", lambda p: step_of(p) == step, removable=False
    )
    if not name:
        return None
    base: Pointer = (search.stack, "Resources", name, "Properties")
    variables = properties.get("Environment", {}).get("Variables", {})
    facts = {
        key.removeprefix("CROSSOVER_"): Fact(flat(value), value, (*base, "Environment", "Variables", key))
        for key, value in variables.items()
    }
    caller = Caller(step, properties["Role"]["Fn::GetAtt"][0], facts)
    if not in_vpc:
        if "VpcConfig" in properties:
            search.missing.append("a way to S3 that costs nothing: the function is in the VPC without need")
        return caller
    config = properties.get("VpcConfig") or {}
    if not config:
        search.missing.append("the function is not in the VPC")
        return caller
    search.evidence.append((*base, "VpcConfig"))
    for action in ("CreateNetworkInterface", "DescribeNetworkInterfaces", "DeleteNetworkInterface"):
        search.may(caller.role, f"ec2:{action}", "*")
    subnet, group = (search.published((config.get(key) or [None])[0]) for key in ("SubnetIds", "SecurityGroupIds"))
    return replace(caller, subnet=subnet, group=group)


def host(search: Search, rank: int) -> Caller | None:
    """Return the Redis host of a rank as a caller; None if the templates have none."""

    def matches(properties: Mapping[str, Any]) -> bool:
        """Return whether the properties are those of the database host with the rank."""
        tags = {tag["Key"]: tag["Value"] for tag in properties.get("Tags", [])}
        return tags.get("crossover:role") == "redis" and tags.get("crossover:rank") == str(rank)

    name, properties = search.only(f"Redis host {rank}", search.stack, "AWS::EC2::Instance", matches, removable=False)
    if not name:
        return None
    base: Pointer = (search.stack, "Resources", name, "Properties")
    role = _role_of(search, (*base, "IamInstanceProfile"), flat(properties.get("IamInstanceProfile"))[1:-1])
    facts = header(properties.get("UserData"), (*base, "UserData"))
    search.evidence += [(*base, "SecurityGroupIds", 0), (*base, "SubnetId")]
    group = search.published((properties.get("SecurityGroupIds") or [None])[0])
    subnet = search.published(properties.get("SubnetId"))
    if not (group and subnet):
        search.missing.append(f"group and subnet of {name}")
    return Caller(name, role, facts, group, subnet)


def fleet(search: Search) -> Caller | None:
    """Return the instances of the experiment's Auto Scaling group as a caller; None if the templates have none."""
    name, group = search.only("group", search.stack, "AWS::AutoScaling::AutoScalingGroup", lambda p: True)
    launched = group.get("LaunchTemplate", {}).get("LaunchTemplateId", {}).get("Ref", "")
    template = search.properties(f"{search.stack}/{launched}").get("LaunchTemplateData")
    if not template:
        search.missing.append("launch template")
        return None
    base: Pointer = (search.stack, "Resources", launched, "Properties", "LaunchTemplateData")
    profile = (template.get("IamInstanceProfile") or {}).get("Arn") or {"Fn::GetAtt": [""]}
    role = _role_of(search, (*base, "IamInstanceProfile"), profile["Fn::GetAtt"][0])
    facts = header(template.get("UserData"), (*base, "UserData"))
    search.evidence += [
        (search.stack, "Resources", launched),
        (*base, "SecurityGroupIds", 0),
        (search.stack, "Resources", name, "Properties", "VPCZoneIdentifier", 0),
    ]
    own = search.published((template.get("SecurityGroupIds") or [None])[0])
    subnet = search.published((group.get("VPCZoneIdentifier") or [None])[0])
    if not (own.startswith(NETWORK) and subnet):
        search.missing.append("group and subnet of the fleet")
    return Caller(str(group.get("AutoScalingGroupName")), role, facts, own, subnet)


def _role_of(search: Search, place: Pointer, profile: str) -> str:
    """Return the logical id of the role of an instance profile."""
    roles = search.properties(f"{search.stack}/{profile}").get("Roles", [])
    if len(roles) != 1:
        search.missing.append(f"instance profile with a role, {profile or 'none'}")
        return ""
    search.evidence += [
        place,
        (search.stack, "Resources", profile),
        (search.stack, "Resources", profile, "Properties", "Roles", 0),
    ]
    return str(roles[0]["Ref"])


def header(user_data: Any, place: Pointer) -> dict[str, Fact]:
    """Return the variables that a boot script assigns at its beginning; those in ENVIRONMENT by their own names, without CROSSOVER_."""
    if not user_data:
        return {}
    place = (*place, "Fn::Base64", "Fn::Join", 1)
    text, starts = "", list[tuple[int, int, Any]]()  # where in the text which part of the join begins
    for number, part in enumerate(user_data["Fn::Base64"]["Fn::Join"][1]):
        if not isinstance(part, str):
            starts.append((len(text), number, part))
        text += flat(part)
    found = {}
    for match in re.finditer(
        r"(?:^|')(?:CROSSOVER_)?([A-Z_]+)=(?!')([^'\n]*)|^([A-Z_]+)='([^'\n]*)'$", text, re.MULTILINE
    ):
        key = match[1] or match[3]
        span = match.span(2 if match[1] else 4)
        parts = [(number, part) for start, number, part in starts if span[0] <= start < span[1]]
        whole = len(parts) == 1 and flat(parts[0][1]) == text[slice(*span)]
        fact = Fact(text[slice(*span)], parts[0][1], (*place, parts[0][0])) if whole else Fact(text[slice(*span)])
        found.setdefault(key, fact)
    return found


# --- what -----------------------------------------------------------------------------------------------------------------


def known(search: Search, caller: Caller, name: str) -> Fact:
    """Return a variable of the caller's environment that must be there; record it as missing if it is not."""
    fact = caller.facts.get(name)
    if fact is None or not fact.text:
        search.missing.append(f"{name} in the environment of {caller.name}")
        return Fact("")
    if fact.place:
        search.evidence.append(fact.place)
    return fact


def to_s3(search: Search, caller: Caller) -> None:
    """Check the caller's way to S3: from private subnets through the gateway endpoint, else over the internet. A function outside the VPC
    needs none.
    """
    if not caller.subnet:
        return
    if search.properties(caller.subnet).get("MapPublicIpOnLaunch") is not False:
        search.internet(caller.group, caller.subnet)
        return
    table = search.table(caller.subnet)
    search.only(
        "gateway endpoint of S3",
        NETWORK,
        "AWS::EC2::VPCEndpoint",
        lambda p: flat(p["ServiceName"]).endswith(".s3") and table in map(flat, p.get("RouteTableIds", [])),
    )
    search.anywhere(caller.group, 443)


def objects(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check that the caller may read, write, delete and list the objects of runs."""
    bucket = known(search, caller, "BUCKET").text
    arn = bucket.replace(">", ".Arn>")
    for action in ("GetObject", "PutObject", "DeleteObject"):
        search.may(caller.role, f"s3:{action}", f"{arn}/runs/*")
    search.may(caller.role, "s3:ListBucket", arn)
    if experiment.storage.bucket_per_worker:
        data = known(search, caller, "DATA_BUCKETS").text.split()
        if len(set(data)) != experiment.workers or bucket in data:
            search.missing.append(f"a bucket per worker: {data}")
    else:
        data = [bucket]
    for each in data:
        search.may(caller.role, "s3:GetObject", each.replace(">", ".Arn>/data/*"))
        search.may(caller.role, "s3:ListBucket", each.replace(">", ".Arn>"))
    to_s3(search, caller)


def secret(search: Search, caller: Caller, name: str) -> None:
    """Check that the caller may read a secret by its ARN, through the interface endpoint, whose name holds in the whole VPC."""
    fact = known(search, caller, name)
    search.may(caller.role, "secretsmanager:GetSecretValue", fact.text)
    found = search.published(fact.value)
    if not search.properties(found).get("GenerateSecretString"):
        search.missing.append(f"the secret behind {name}")
    _, endpoint = search.only(
        "interface endpoint of Secrets Manager",
        NETWORK,
        "AWS::EC2::VPCEndpoint",
        lambda p: flat(p["ServiceName"]).endswith(".secretsmanager") and p.get("PrivateDnsEnabled") is True,
    )
    for subnet in endpoint.get("SubnetIds", []):
        search.same_network(caller.subnet, search.published(subnet, NETWORK))
    for group in endpoint.get("SecurityGroupIds", []):
        search.pair(caller.group, f"{NETWORK}/{group['Fn::GetAtt'][0]}", 443)


def tensors(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check that the caller reaches Redis on its hosts, verified by the certificates in the bucket; what is not found is added
    to `search.missing`. Do nothing if the experiment has no hosts, since the bucket is then the store.
    """
    if not hosts_of(experiment):
        return
    secret(search, caller, "REDIS_SECRET")
    known(search, caller, "REDIS_CERTIFICATES")
    bucket = caller.facts["BUCKET"].text.replace(">", ".Arn>") if "BUCKET" in caller.facts else ""
    search.may(caller.role, "s3:GetObject", f"{bucket}/hosts/redis/*")
    urls = known(search, caller, "REDIS").text.split()
    for rank in range(hosts_of(experiment)):
        target = host(search, rank)
        if target is None:
            continue
        if rank >= len(urls) or urls[rank] != f"rediss://<{target.name}.PrivateIp>:6379":
            search.missing.append(f"the address of {target.name} in rank {rank}")
        search.pair(caller.group, target.group, 6379)
        search.same_network(caller.subnet, target.subnet)


def bus(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check that the caller reaches the broker and may read its secret."""
    secret(search, caller, "BROKER_SECRET")
    search.published(known(search, caller, "BROKER").value)
    _, broker = search.only("broker", BROKER, "AWS::AmazonMQ::Broker", lambda p: bool(p.get("SecurityGroups")))
    for reference in broker.get("SecurityGroups", []):
        search.pair(caller.group, search.published(reference, BROKER), 5671)
    for reference in broker.get("SubnetIds", []):
        search.same_network(caller.subnet, search.published(reference, BROKER))


def machines(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check that the caller may start, follow and stop each state machine of the architecture."""
    for name in architecture_of(experiment).machines:
        full = f"{search.stack}-{name}"
        if (
            known(search, caller, f"MACHINE_{name.upper()}").text
            != f"arn:<AWS::Partition>:states:{HERE}:stateMachine:{full}"
        ):
            search.missing.append(f"the ARN of {full}")
        search.may(caller.role, "states:StartExecution", f"arn:<AWS::Partition>:states:{HERE}:stateMachine:{full}")
        for action in ("DescribeExecution", "StopExecution"):
            search.may(caller.role, f"states:{action}", f"arn:<AWS::Partition>:states:{HERE}:execution:{full}:*")
        for action in ("PutTargets", "PutRule", "DescribeRule"):
            search.may(caller.role, f"events:{action}", RULE)
        _, machine = search.only(
            full, search.stack, "AWS::StepFunctions::StateMachine", lambda p, full=full: p["StateMachineName"] == full
        )
        for key, value in machine.get("DefinitionSubstitutions", {}).items():
            if key.startswith("step_"):
                search.may(machine["RoleArn"]["Fn::GetAtt"][0], "lambda:InvokeFunction", flat(value))
    if caller.subnet:  # no endpoint of Step Functions: over the internet
        search.internet(caller.group, caller.subnet)


def boot(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check what an instance needs in its first minutes: packages, its own files, the session manager's agent. A fleet's instance leaves by
    itself.
    """
    search.internet(caller.group, caller.subnet, ports=(443, 80))
    for action in SESSION:
        search.may(caller.role, action, "*")
    asset = known(search, caller, "CODE" if "FLEET" in caller.facts else "MODULE").text
    search.may(caller.role, "s3:GetObject", asset.replace("s3://", "arn:<AWS::Partition>:s3:::"))
    group = known(search, caller, "LOGS").text
    search.only(
        f"log group {group}",
        f"{experiment.project}-network",
        "AWS::Logs::LogGroup",
        lambda p: p["LogGroupName"] == group,
    )
    for action in ("CreateLogStream", "PutLogEvents"):
        search.may(caller.role, f"logs:{action}", f"arn:<AWS::Partition>:logs:{HERE}:log-group:{group}:*")
    if "FLEET" in caller.facts:
        own = f"arn:<AWS::Partition>:autoscaling:{HERE}:autoScalingGroup:*:autoScalingGroupName/{caller.facts['FLEET'].text}"
        search.may(caller.role, "autoscaling:TerminateInstanceInAutoScalingGroup", own)
        search.may(caller.role, "s3:GetObject", caller.facts["BUCKET"].text.replace(">", ".Arn>/fleet/*"))


def serve(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check what a Redis host needs: its password, a place for its certificate, and a way to report to CloudFormation."""
    secret(search, caller, "SECRET")
    bucket = known(search, caller, "BUCKET").text.replace(">", ".Arn>")
    search.may(caller.role, "s3:PutObject", f"{bucket}/hosts/redis/{known(search, caller, 'RANK').text}.pem")
    told = known(search, caller, "SIGNAL_URL").text
    search.only(
        "wait for its handle", search.stack, "AWS::CloudFormation::WaitCondition", lambda p: flat(p["Handle"]) == told
    )


def collective(search: Search, caller: Caller, experiment: Experiment) -> None:
    """Check that members reach one another on every port, in a group of their own."""
    name, _ = search.only("group of the collective", search.stack, "AWS::EC2::SecurityGroup", lambda p: True)
    search.pair(f"{search.stack}/{name}", f"{search.stack}/{name}", 29_500)
    for launched, properties in search.of(search.stack, "AWS::EC2::LaunchTemplate"):
        groups = properties["LaunchTemplateData"].get("SecurityGroupIds", [])
        places = [place for place, each in enumerate(groups) if flat(each) == f"<{name}.GroupId>"]
        if not places:
            search.missing.append("the instances are not in the collective's group")
        base: Pointer = (search.stack, "Resources", launched, "Properties", "LaunchTemplateData", "SecurityGroupIds")
        search.evidence += [(*base, place) for place in places]


SERVICES = {
    "boot": boot,
    "serve": serve,
    "objects": objects,
    "tensors": tensors,
    "bus": bus,
    "machines": machines,
    "collective": collective,
}
