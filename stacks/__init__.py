"""One CDK stack per architecture, found by its name, and the two that all experiments of a project share: network and broker."""

import cdk  # noqa: F401  chooses the Node that CDK runs on, before aws_cdk is imported
