"""What `doctor` and `deploy` make of answers of AWS that nobody has foreseen: told, and the other questions are still asked."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

from crossover.errors import CrossoverError, UserError
from crossover.experiment import Experiment, Gpu, Lifetime
from crossover.running import account, deploying, preflight
from crossover.stores.deployed_clients import EXPIRED_CODES
from crossover.validation.account_file import AccountFile
from tests import sampling

# Between them every question is asked.
SPIRT = Experiment(
    name="spirt",
    architecture="spirt",
    lifetime=Lifetime(notify="arn:aws:sns:us-east-1:123456789012:told", budget_usd=50.0),
)
GPU = Experiment(name="gpu", architecture="gpu", gpu=Gpu(instances=2))
ROOT = Path(__file__).parents[3]
IDENTITY = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/reader"}
# Codes that no model declares, but services answer with.
UNDECLARED = {"404", "503", "OptInRequired", "RequestLimitExceeded", "ServiceUnavailable", "SlowDown", ""}

Failure = Callable[[str], Exception]


class Session:
    """A boto3 session of an account in which every call fails. `failure`: makes the error of an operation; `accepting`: regions where STS
    knows the credentials.
    """

    def __init__(
        self, failure: Failure, *, region: str = "us-east-1", accepting: tuple[str, ...] | None = None
    ) -> None:
        """Keep the failure, the region, and the regions where STS knows the credentials: without `accepting` the session's own."""
        self.region_name = region
        self._failure, self._accepting = failure, (region,) if accepting is None else accepting

    def get_partition_for_region(self, region: str) -> str:
        """Return "aws"."""
        return "aws"

    def get_available_partitions(self) -> list[str]:
        """Return the one partition "aws"."""
        return ["aws"]

    def client(self, service: str, region_name: str | None = None, **named: Any) -> Any:
        """Return a client whose every call fails; that of STS answers in regions that know the credentials."""
        region = region_name or self.region_name
        if service == "sts" and region in self._accepting:
            return SimpleNamespace(get_caller_identity=lambda: IDENTITY, meta=SimpleNamespace(region_name=region))
        return _Client(self._failure, region)


class _Client:
    """A boto3 client of which every operation and every page raises the failure."""

    def __init__(self, failure: Failure, region: str) -> None:
        """Keep the failure and the region."""
        self._failure, self.meta = failure, SimpleNamespace(region_name=region)

    def __getattr__(self, operation: str) -> Any:
        """Return an operation that raises the failure whatever its arguments."""

        def fail(*arguments: Any, **named: Any) -> Any:
            """Raise the failure of this operation."""
            raise self._failure(operation)

        return fail

    def get_paginator(self, operation: str) -> Any:
        """Return a paginator whose pages raise the failure."""
        return SimpleNamespace(paginate=getattr(self, operation))


def refusal(code: str) -> Failure:
    """Return a failure that raises ClientError with this code."""
    return lambda operation: ClientError({"Error": {"Code": code, "Message": "<html>"}}, operation)


def declared() -> Iterator[str]:
    """Yield the code of every error that a model of botocore declares."""
    loader = Loader()
    for service in loader.list_available_services("service-2"):
        for name, shape in loader.load_service_model(service, "service-2")["shapes"].items():
            if shape.get("exception"):
                yield shape.get("error", {}).get("code", name)


def names(experiment: Experiment) -> list[str]:
    """Return the names of the checks that report something whatever AWS answers."""
    silent = {"own network", "own image", "default EBS key", "vCPU quota"}  # the last of a type that is not offered
    return [name for name, _ in preflight._list_checks(experiment, AccountFile()) if name not in silent]


def check_all_are_told(failure: Failure) -> None:
    """Check that each of an experiment's examinations reports something although every answer is this failure."""
    for experiment in (SPIRT, GPU):
        told = {each.name for each in preflight.examine(Session(failure), experiment, AccountFile())}
        assert {*names(experiment)} <= told


@pytest.mark.slow
def test_no_error_code_of_botocores_models_ends_the_questions() -> None:
    """Every check of the account reports something, whatever error code of botocore's models AWS answers; by default a tenth of the codes
    is tried.
    """
    codes = {*declared(), *UNDECLARED}
    assert len(codes) > 2_000
    every = 1 if sampling.WHOLE else 10  # a tenth, drawn by the state of the code
    for code in sorted(codes - EXPIRED_CODES)[sampling.SEED % every :: every]:
        check_all_are_told(refusal(code))


@pytest.mark.parametrize("code", sorted(UNDECLARED))
def test_what_no_service_declares_could_not_be_checked(code: str) -> None:
    """An error code that no service declares makes a check's report "could not be checked" with that code."""
    check_all_are_told(refusal(code))
    found = {each.name: each for each in preflight.examine(Session(refusal(code)), GPU, AccountFile())}
    assert found["allowed images"].word == found["bootstrap"].word == "unasked"
    assert f"could not be checked ({code or 'None'})" in found["allowed images"].detail


@pytest.mark.parametrize("failure", [ResponseParserError("no XML"), KeyError("AccountLimit"), IndexError("0")])
def test_an_answer_that_cannot_be_read_could_not_be_checked(failure: Exception) -> None:
    """An answer that raises another exception than AWS's errors makes a check's report "could not be checked" with the exception's type."""
    found = list(preflight.examine(Session(lambda operation: failure), SPIRT, AccountFile()))
    assert {each.word for each in found if each.name in ("bootstrap", "Lambda concurrency")} == {"unasked"}
    assert {type(failure).__name__ in each.detail for each in found if each.word == "unasked"} == {True}


def test_who_calls_may_be_unknown_and_the_rest_is_asked() -> None:
    """If the caller's identity cannot be read, that is reported, and all other checks are made."""
    found = list(preflight.examine(Session(refusal("Throttling"), accepting=()), SPIRT, AccountFile()))
    assert found[0].detail == "could not be checked (Throttling): get_caller_identity was not answered"
    assert {*names(SPIRT)} <= {each.name for each in found}


@pytest.mark.parametrize("code", sorted(EXPIRED_CODES))
@pytest.mark.parametrize(
    ("accepting", "words"),
    [
        (("af-south-1", "us-east-1"), r"the region may not be enabled .* enable-region --region-name af-south-1"),
        (("us-east-1",), "the region may not be enabled"),
        ((), "sign in again"),
    ],
)
def test_a_region_that_is_not_enabled_is_told_from_bad_credentials(
    code: str, accepting: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused credentials raise UserError about the region if another region accepts them, else about the credentials. `words`: the
    message.
    """
    session = Session(refusal(code), region="af-south-1", accepting=accepting)
    monkeypatch.setattr(boto3, "Session", lambda: session)
    with pytest.raises(UserError, match=words), account.explain_aws_errors():
        list(preflight.examine(session, SPIRT, AccountFile()))


def _known_for(count: int, look: Any) -> Any:
    """Return a `look` that finds no stack `count` times, and asks AWS afterwards."""
    left = iter(range(count))
    return lambda session, name: None if next(left, None) is not None else look(session, name)


def test_deploy_goes_on_where_names_budget_and_account_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deploying goes on if names, budget and zones cannot be checked, and reports each of them."""
    session, told = Session(refusal("OptInRequired")), list[str]()
    monkeypatch.setattr(boto3, "Session", lambda: session)
    for name in ("check_ours", "check_owner", "check_deployable"):
        monkeypatch.setattr(account, name, lambda *arguments, **named: None)
    monkeypatch.setattr(deploying.account, "find_stack", _known_for(6, account.find_stack))
    deploying.check_before_deploying(SPIRT, config=Path("spirt.yaml"), tell=told.append)
    assert any(line.startswith("names: could not be checked (OptInRequired)") for line in told)
    assert any(line.startswith("lifetime.budget_usd: could not be checked (OptInRequired)") for line in told)
    assert deploying.choose_zone_arguments(SPIRT, tell=told.append) == []
    assert told[-1].startswith("availability zone: could not be checked (OptInRequired)")


def test_what_deploy_must_know_is_no_fault_of_ours() -> None:
    """A failed call that deploying depends on raises an error that blames AWS."""
    session = Session(refusal("ServiceUnavailable"))
    with pytest.raises(CrossoverError, match=r"AWS failed or refused the call \(ServiceUnavailable\)"):
        with account.explain_aws_errors():
            account.find_stack(session, "crossover-spirt")


# --- a plain moto server, which has no part of ours ---


@pytest.fixture(scope="module")
def plain_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start moto's own server and yield the environment of commands that talk to it."""
    program = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://127[0-9.:]+", line)))
        silent = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)  # a full pipe would stop it
        yield {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path_factory.mktemp("home")),
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
            "AWS_MAX_ATTEMPTS": "1",
        }
        server.terminate()
        silent.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "status", "says"),
    [
        ("doctor config/spirt.yaml --on aws", 2, "unasked  Lambda concurrency: could not be checked (404)"),
        ("doctor config/gpu.yaml --on aws", 2, "unasked  allowed images: could not be checked (ResponseParserError)"),
        ("deploy config/all-reduce-s3.yaml --yes", 2, "Lambda concurrency: could not be checked (404)"),
        ("status config/all-reduce-s3.yaml", 0, "crossover-all-reduce-s3  not deployed"),
        ("destroy config/all-reduce-s3.yaml --yes --verify", 0, "nothing is left of ours"),
    ],
)
def test_commands_work_against_plain_moto_as_far_as_it_answers(
    command: str, status: int, says: str, plain_moto: dict[str, str]
) -> None:
    """A command against a plain moto server exits with `status` and prints `says`, without an error of Crossover's own."""
    ended = subprocess.run(
        [sys.executable, "-m", "crossover.cli", *command.split()],
        cwd=ROOT,
        env=plain_moto,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, says in ended.stdout) == (status, True), ended
    assert "fault of Crossover" not in ended.stderr and "<html" not in ended.stdout
