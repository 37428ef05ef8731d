"""Buckets that are closed, encrypted, expire, and go with the stack."""

from tests.infrastructure.assemblies import Assembly, flat, listed, resources


def test_buckets_are_closed_and_expire(fetching: Assembly) -> None:
    """Check the buckets: generated names, no public access, encryption, expiry after 30 days, TLS only."""
    for bucket in resources(fetching.experiment, "AWS::S3::Bucket").values():
        assert "BucketName" not in bucket  # a fixed name could not be made again while its deletion is under way
        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
        (lifecycle,) = bucket["LifecycleConfiguration"]["Rules"]
        assert lifecycle["Status"] == "Enabled"
        assert lifecycle["ExpirationInDays"] == 30
        assert lifecycle["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    policies = resources(fetching.experiment, "AWS::S3::BucketPolicy").values()
    refusing = [
        s
        for p in policies
        for s in p["PolicyDocument"]["Statement"]
        if s["Effect"] == "Deny" and s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    ]
    assert len(refusing) == len(resources(fetching.experiment, "AWS::S3::Bucket"))


def test_buckets_are_emptied_by_the_stack_itself(assembly: Assembly) -> None:
    """Check that the stack empties and deletes each of its buckets, because `cdk destroy` and the expiry only call DeleteStack."""
    buckets = {n: r for n, r in assembly.experiment["Resources"].items() if r["Type"] == "AWS::S3::Bucket"}
    emptied = resources(assembly.experiment, "Custom::S3AutoDeleteObjects").values()
    assert {flat(e["BucketName"])[1:-1] for e in emptied} == set(buckets)
    assert {r["DeletionPolicy"] for r in buckets.values()} == {"Delete"}


def test_the_emptier_leaves_no_log_group(assembly: Assembly) -> None:
    """Check that the function which empties buckets has a log group in the stack and may not create one."""
    functions = resources(assembly.experiment, "AWS::Lambda::Function")
    (emptier,) = (f for n, f in functions.items() if n.startswith("CustomS3AutoDelete"))
    group = resources(assembly.experiment, "AWS::Logs::LogGroup")[emptier["LoggingConfig"]["LogGroup"]["Ref"]]
    assert group["LogGroupName"] == f"/aws/lambda/{emptier['FunctionName']}"
    role = resources(assembly.experiment, "AWS::IAM::Role")[emptier["Role"]["Fn::GetAtt"][0]]
    assert "ManagedPolicyArns" not in role
    (policy,) = role["Policies"]
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert listed(statement["Action"]) == ["logs:CreateLogStream", "logs:PutLogEvents"]


def test_nothing_is_kept_when_a_stack_goes(assembly: Assembly, large: Assembly) -> None:
    """Check that every resource is deleted with its stack."""
    for template in [*assembly.templates.values(), large.experiment]:
        for name, resource in template["Resources"].items():
            assert resource.get("DeletionPolicy", "Delete") == "Delete", name
            assert resource.get("UpdateReplacePolicy", "Delete") == "Delete", name
