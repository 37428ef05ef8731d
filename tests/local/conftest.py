import pytest

from crossover.local.cloud import LocalCloud


@pytest.fixture(scope="module")
def cloud(cloud: LocalCloud) -> LocalCloud:
    """Return the local cloud with the role that the tests' functions use (parts.ROLE)."""
    cloud.session().client("iam").create_role(RoleName="local", AssumeRolePolicyDocument="{}")
    return cloud
