"""One CDK stack per architecture, found by its name, and the two that a project's experiments share: network and broker."""

import cdk  # noqa: F401  chooses the Node that CDK runs on, before aws_cdk is imported
