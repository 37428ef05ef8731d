"""Which availability zone offers everything: instance types, the broker's type and version, the interface endpoint's service.

Everything stands in one zone, the network's. Until there is a network the first zone that offers all of it is chosen; afterwards the zone
is what it is, and another one in the file is refused.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from crossover.account.deployment.finding import Finding
from crossover.architecture.infrastructure import shared_stacks
from crossover.clients import aws_calls
from crossover.costs import infrastructure
from crossover.experiment import BROKER_VERSION, Experiment
from crossover.training.baselines import companions

ENDPOINT_SERVICE = "secretsmanager"


@dataclass(frozen=True)
class Need:
    """`zones` that offer it; `field` that asks for it."""

    name: str
    field: str
    zones: frozenset[str]
    offered: str = ""  # what is there in its place, in words


@dataclass(frozen=True)
class Choice:
    """`zone`: "" where none offers everything. `standing`: in which the project's network stands, "" while there is none."""

    zone: str
    needs: tuple[Need, ...]
    lacking: dict[str, list[str]]  # by zone of the region
    standing: str

    @property
    def detail(self) -> str:
        others = "; ".join(f"{zone} lacks {', '.join(names)}" for zone, names in self.lacking.items() if names)
        offers = f"{self.zone} offers {', '.join(need.name for need in self.needs) or 'all that is needed'}"
        return offers + (f"; {others}" if others else "")


def matters(experiment: Experiment) -> bool:
    """Whether anything of the experiment or its baseline stands in a network; functions and a bucket do not."""
    return any(shared_stacks(each) for each in (experiment, *companions(experiment)))


def choose(session: Any, experiment: Experiment) -> Choice:
    """Of the experiment and its baseline. Changes nothing."""
    wanted, ec2 = tuple(needs(session, experiment)), session.client("ec2")
    listed = ec2.describe_availability_zones(
        Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}, {"Name": "state", "Values": ["available"]}]
    )["AvailabilityZones"]
    lacking = {
        zone: [need.name for need in wanted if zone not in need.zones]
        for zone in sorted(each["ZoneName"] for each in listed)
    }
    standing, asked = deployed(session, experiment.project), experiment.network.availability_zone
    able = [zone for zone, names in lacking.items() if not names]
    chosen = standing or asked or next(iter(able), "")
    return Choice(chosen if chosen in able else "", wanted, lacking, standing)


def deployed(session: Any, project: str) -> str:
    """The zone in which the project's network stands, "" while there is none."""
    return aws_calls.parameter(session, f"/crossover/{project}/network/zone")


def findings(session: Any, experiment: Experiment) -> Iterator[Finding]:
    """One for each thing that is needed, and one for the zone; none where no zone matters."""
    if not matters(experiment):
        return
    found, region = choose(session, experiment), session.client("ec2").meta.region_name
    for need in found.needs:
        offered = ", ".join(sorted(need.zones))
        instead = f"; {need.offered}" if need.offered else ""
        wrong = (
            f"not offered in {region}{instead}: choose another {need.field}, or another region by AWS_DEFAULT_REGION"
        )
        yield Finding(need.name, bool(need.zones), f"offered in {offered}" if offered else wrong)
    yield Finding("availability zone", *_judged(experiment, found))


def _judged(experiment: Experiment, found: Choice) -> tuple[bool, str]:
    asked, project, standing = experiment.network.availability_zone, experiment.project, found.standing
    if standing and asked not in (None, standing):
        return False, (
            f"network.availability_zone: {asked!r}, but {project}-network stands in {standing}, and a network does not move: "
            "leave the field out, or take the project's stacks away first (crossover destroy CONFIG --shared)"
        )
    if found.zone:
        return True, found.detail
    if standing:
        lacks = ", ".join(found.lacking.get(standing, []))
        return False, (
            f"{project}-network stands in {standing}, which lacks {lacks}: choose what is offered there, or take the project's "
            "stacks away first (crossover destroy CONFIG --shared)"
        )
    able = [zone for zone, names in found.lacking.items() if not names]
    if asked:
        lacks = ", ".join(found.lacking[asked]) if asked in found.lacking else ""
        return False, (
            f"network.availability_zone: {asked} "
            + (f"lacks {lacks}" if lacks else "is no zone of this region")
            + (f"; it may be {', '.join(able)}" if able else "; no zone of this region offers everything")
        )
    each = "; ".join(f"{zone} lacks {', '.join(names)}" for zone, names in found.lacking.items())
    return (
        False,
        f"no zone of this region offers everything: {each}; choose other types, or a region by AWS_DEFAULT_REGION",
    )


def needs(session: Any, experiment: Experiment) -> Iterator[Need]:
    """What the experiment, its baseline and the shared stacks want from a zone."""
    experiments = [experiment, *companions(experiment)]
    wanted = [infrastructure.of(each) for each in experiments]
    types = {fleet.instance_type: fleet.setting for each in wanted for fleet in each.fleets}
    yield from _instance_types(session, types)
    for kind in {each.broker_instance_type for each in wanted if each.broker_instance_type}:
        yield _broker(session, kind)
    if any(shared_stacks(each) for each in experiments):
        yield _endpoint(session)


def _instance_types(session: Any, types: dict[str, str]) -> Iterator[Need]:
    listing = ("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings")
    for kind, field in sorted(types.items()):
        narrowed = [{"Name": "instance-type", "Values": [kind]}]
        offers = aws_calls.entries(session, *listing, LocationType="availability-zone", Filters=narrowed)
        yield Need(kind, field, frozenset(each["Location"] for each in offers))


def _broker(session: Any, kind: str) -> Need:
    """Type and engine version together: the API returns both, with the zones."""
    version, options = BROKER_VERSION, list(_broker_options(session))
    fitting = [
        each for each in options if each["HostInstanceType"] == kind and version in each["SupportedEngineVersions"]
    ]
    zones = frozenset(zone["Name"] for each in fitting for zone in each["AvailabilityZones"])
    able = sorted({each["HostInstanceType"] for each in options if version in each["SupportedEngineVersions"]})
    versions = sorted(
        {v for each in options if each["HostInstanceType"] == kind for v in each["SupportedEngineVersions"]}
    )
    instead = [f"RabbitMQ {version} is offered on {', '.join(able) or 'nothing'}"]
    if versions and version not in versions:
        instead.append(f"{kind} has RabbitMQ {', '.join(versions)}")
    return Need(f"{kind} with RabbitMQ {version}", "network.broker_instance_type", zones, "; ".join(instead))


def _broker_options(session: Any) -> Iterable[dict[str, Any]]:
    client = session.client("mq")
    token: dict[str, str] = {}
    while True:
        page = client.describe_broker_instance_options(EngineType="RABBITMQ", **token)
        yield from page["BrokerInstanceOptions"]
        if not page.get("NextToken"):
            return
        token = {"NextToken": page["NextToken"]}


def _endpoint(session: Any) -> Need:
    client, zones = session.client("ec2"), set[str]()
    with aws_calls.Tolerating("InvalidServiceName"):
        names = [f"com.amazonaws.{client.meta.region_name}.{ENDPOINT_SERVICE}"]
        for each in client.describe_vpc_endpoint_services(ServiceNames=names)["ServiceDetails"]:
            zones.update(each["AvailabilityZones"])
    return Need(f"an endpoint of {ENDPOINT_SERVICE}", "region", frozenset(zones))
