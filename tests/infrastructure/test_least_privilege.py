"""What functions and hosts may not do, whatever they ask for.

Every grant of every role stands in snapshots/, and test_reachability.py derives from the trees that each has those it needs.
"""

from tests.infrastructure.assemblies import Assembly, flat, listed, statements


def test_only_hosts_write_certificates(assembly: Assembly) -> None:
    """Check that each Redis host may write its own certificate, and nobody else any: functions trust these (aws.md 10)."""
    writers = {
        owner: {flat(r).rpartition("/")[2] for r in listed(statement["Resource"])}
        for owner, statement in statements(assembly.experiment)
        if any(a.startswith("s3:Put") for a in listed(statement["Action"]))
        and any("hosts" in flat(r) or flat(r).endswith(".Arn>/*") for r in listed(statement["Resource"]))
    }
    assert all("Redis" in each for each in writers)
    assert sorted(map(sorted, writers.values())) == [["0.pem"], ["1.pem"], ["2.pem"], ["3.pem"]]


def test_a_functions_own_code_makes_no_network_interfaces(assembly: Assembly) -> None:
    """Check that the EC2 permissions which Lambda demands of a role are denied to the function's own code, and nothing else is."""
    template = assembly.experiment
    for step in assembly.steps():
        function = assembly.function(step)
        own = [s for owner, s in statements(template) if owner == function["Role"]["Fn::GetAtt"][0]]
        denied = [statement for statement in own if statement["Effect"] == "Deny"]
        if "VpcConfig" not in function:
            assert denied == []
            continue
        (statement,) = denied
        given = next(s["Action"] for s in own if s["Effect"] == "Allow" and "ec2:CreateNetworkInterface" in s["Action"])
        assert statement["Action"] == given
        assert statement["Resource"] == "*"
        (condition,) = statement["Condition"].items()
        arn = f"arn:<AWS::Partition>:lambda:<AWS::Region>:<AWS::AccountId>:function:{function['FunctionName']}"
        assert (condition[0], flat(condition[1]["lambda:SourceFunctionArn"])) == ("ArnEquals", arn)
