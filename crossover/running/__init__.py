"""A run from its experiment to its folder: stage the data, start the execution, follow it, collect its records.

`inline` runs the workflow in this process on memory stores, `local` on the local cloud, `aws` on the deployed stack. Local and AWS share
all code except the creation of the session: this program talks to S3, SSM, Step Functions and Auto Scaling only, never to Redis or the
broker.
"""
