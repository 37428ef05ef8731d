"""The notice that EC2 gives two minutes before it takes a spot instance away.

The instance metadata service is asked with a token (version 2). Source: "Spot instance interruption notices" in the EC2 user guide.
"""

NOTICE_S = 120.0  # between the notice and the instance's end
ANSWER_S = 2.0  # the service is on the instance's own host


def has_notice(metadata: str) -> bool:
    """Return whether EC2 has announced that it will interrupt this spot instance. `metadata`: URL of the instance metadata service.

    Return False if the service does not answer: the run then continues until the instance is gone.
    """
    from http.client import HTTPException
    from urllib.request import ProxyHandler, Request, build_opener

    direct = build_opener(ProxyHandler({}))
    ask = Request(f"{metadata}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    try:
        with direct.open(ask, timeout=ANSWER_S) as answer:
            token = answer.read().decode()
        look = Request(f"{metadata}/latest/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token})
        with direct.open(look, timeout=ANSWER_S):
            return True
    except (OSError, HTTPException, ValueError):  # 404 until there is a notice
        return False
