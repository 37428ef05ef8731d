import pytest

from crossover.local.cloud import LocalCloud


@pytest.fixture(scope="module")
def cloud(cloud: LocalCloud) -> LocalCloud:
    """With the role that tests' functions act under, parts.ROLE."""
    cloud.session().client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")
    return cloud
