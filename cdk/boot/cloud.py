"""What a host asks of AWS, signed by hand: the image's own Python suffices, so it works before any package is installed.

metadata PATH | secret ARN | get S3_URL FILE | put FILE S3_URL | fetch URL FILE SHA256 | leave | log GROUP STREAM FILE |
signal URL ID STATUS FILE
HIDE, in the environment, is left out of what `log` and `signal` tell. Source: Signature Version 4 in AWS's IAM user guide.
"""

import hashlib
import hmac
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

REGION = os.environ.get("AWS_DEFAULT_REGION", "")
METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254") + "/latest/"
REASON_BYTES, EVENT_BYTES, BATCH_BYTES = 2_000, 8_000, 900_000  # CloudWatch Logs takes 1 MB and 10,000 events at a time


def http(url: str, method: str = "GET", headers: Mapping[str, str] = {}, body: bytes | None = None) -> bytes:
    asked = urllib.request.Request(url, body, dict(headers), method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return bytes(answer.read())


def metadata(path: str) -> str:
    token = http(METADATA + "api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}).decode()
    return http(METADATA + "meta-data/" + path, headers={"X-aws-ec2-metadata-token": token}).decode()


def authorization(
    method: str, url: str, service: str, headers: Mapping[str, str], body: bytes, identity: Mapping[str, str]
) -> str:
    """The header that signs `headers`, whose names are lower case and which hold x-amz-date, and the hash of `body`."""
    parts = urllib.parse.urlsplit(url)
    headers = {"host": parts.netloc, **headers}
    names = ";".join(sorted(headers))
    listed = [f"{name}:{headers[name]}" for name in sorted(headers)]
    canonical = "\n".join([method, parts.path, "", *listed, "", names, hashlib.sha256(body).hexdigest()])
    moment = headers["x-amz-date"]
    scope = f"{moment[:8]}/{REGION}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = ("AWS4" + identity["SecretAccessKey"]).encode()
    for part in [*scope.split("/"), text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return (
        f"AWS4-HMAC-SHA256 Credential={identity['AccessKeyId']}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )


def call(service: str, body: bytes, method: str = "POST", path: str = "/", headers: Mapping[str, str] = {}) -> bytes:
    roles = "iam/security-credentials/"
    identity = json.loads(metadata(roles + metadata(roles).split()[0]))
    url = os.environ.get("AWS_ENDPOINT_URL", f"https://{service}.{REGION}.amazonaws.com") + path
    signed = {
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
        "x-amz-security-token": identity["Token"],
        **headers,
    }
    signature = authorization(method, url, service, signed, body, identity)
    return http(url, method, {**signed, "authorization": signature}, body if method != "GET" else None)


def target(service: str, action: str, **given: Any) -> dict[str, Any]:
    kind = {"content-type": "application/x-amz-json-1.1", "x-amz-target": action}
    answer: dict[str, Any] = json.loads(call(service, json.dumps(given).encode(), headers=kind) or b"{}")
    return answer


def s3(url: str, method: str, body: bytes = b"") -> bytes:
    headers = {"content-type": "application/octet-stream"} if method == "PUT" else {}
    return call("s3", body, method, "/" + urllib.parse.quote(url.removeprefix("s3://")), headers)


def secret(arn: str) -> str:
    return str(target("secretsmanager", "secretsmanager.GetSecretValue", SecretId=arn)["SecretString"])


def store(content: bytes, path: str) -> None:
    """Whole or not at all."""
    part = Path(path + ".part")
    part.write_bytes(content)
    part.rename(path)


def fetch(url: str, path: str, sha256: str) -> None:
    """What anybody may read, if it is what was pinned."""
    content = http(url)
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        sys.exit(f"fetch: {url} has the SHA-256 {found}, expected {sha256}: nothing of it is kept")
    store(content, path)


def leave() -> None:
    """Out of the fleet, and the place with it: after a mere shutdown the group would start a replacement."""
    asked = {
        "Action": "TerminateInstanceInAutoScalingGroup",
        "Version": "2011-01-01",
        "InstanceId": metadata("instance-id"),
        "ShouldDecrementDesiredCapacity": "true",
    }
    kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    call("autoscaling", urllib.parse.urlencode(asked).encode(), headers=kind)


def said(path: str) -> str:
    """The file's text without control characters, which CloudFormation's XML cannot hold, and without what is to be hidden."""
    try:
        text = Path(path).read_bytes().decode(errors="replace")
    except OSError as error:
        text = str(error)
    if os.environ.get("HIDE"):
        text = text.replace(os.environ["HIDE"], "***")
    return "".join(each if each.isprintable() or each == "\n" else " " for each in text)


def log(group: str, stream: str, path: str) -> None:
    """The end of the file, as much as one call takes."""
    lines = [
        line[at : at + EVENT_BYTES // 4]
        for line in said(path).split("\n")
        for at in range(0, len(line), EVENT_BYTES // 4)
    ]
    while len(lines) > 9_000 or sum(len(line.encode()) + 26 for line in lines) > BATCH_BYTES:
        del lines[: len(lines) // 10 + 1]
    stream += "/" + metadata("instance-id")
    try:
        target("logs", "Logs_20140328.CreateLogStream", logGroupName=group, logStreamName=stream)
    except urllib.error.HTTPError as error:
        if error.code != 400:  # it exists: an earlier try got that far
            raise
    start = int(time.time() * 1000) - len(lines)  # a millisecond each keeps their order
    events = [{"timestamp": start + number, "message": line} for number, line in enumerate(lines) if line.strip()]
    target("logs", "Logs_20140328.PutLogEvents", logGroupName=group, logStreamName=stream, logEvents=events)


def signal(url: str, identity: str, status: str, path: str) -> None:
    reason = said(path).encode()[-REASON_BYTES:].decode(errors="ignore").strip()
    told = {"Status": status, "UniqueId": identity, "Reason": reason or "nothing was said", "Data": identity}
    http(url, "PUT", {"Content-Type": ""}, json.dumps(told, ensure_ascii=False).encode())  # its signature wants no type


ACTIONS: dict[str, Callable[..., Any]] = {
    "metadata": lambda path: print(metadata(path)),
    "secret": lambda arn: print(secret(arn)),
    "get": lambda url, path: store(s3(url, "GET"), path),
    "put": lambda path, url: s3(url, "PUT", Path(path).read_bytes()),
    "fetch": fetch,
    "leave": leave,
    "log": log,
    "signal": signal,
}

if __name__ == "__main__":
    try:
        ACTIONS[sys.argv[1]](*sys.argv[2:])
    except urllib.error.HTTPError as error:
        sys.exit(f"{sys.argv[1]}: {error} {error.read(300).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
