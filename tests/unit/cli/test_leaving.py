"""What is said while Lambda takes its network interfaces away, which may be for 45 minutes."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from moto import mock_aws

from crossover.running import removal
from tests.clocks import Passing


def waited(monkeypatch: pytest.MonkeyPatch, held: Callable[[float], list[str]]) -> list[str]:
    """Wait for the network interfaces of functions and return the messages. `held`: ids of the interfaces that are there after the given
    seconds.
    """
    clock, told = Passing(), list[str]()
    monkeypatch.setattr(removal, "time", clock)
    monkeypatch.setattr(removal, "_list_interface_ids", lambda session, group: held(clock.now_s))
    with mock_aws():
        session: Any = boto3.Session()
        name = "/crossover/crossover/network/functions_group"
        session.client("ssm").put_parameter(Name=name, Value="sg-1", Type="String")
        removal.wait_for_interfaces(session, "crossover", told.append)
    return told


def test_a_wait_says_every_minute_that_it_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for Lambda's network interfaces prints a line each minute until they are gone."""
    told = waited(monkeypatch, lambda s: ["eni-1"] if s < 600 else [])
    assert told[0] == "waiting for Lambda to take away eni-1, which may take 20 minutes"
    assert len(told) == 10 and told[3].endswith(", 3 minutes so far")


def test_what_does_not_go_is_named_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Network interfaces that still exist when the wait times out are named."""
    told = waited(monkeypatch, lambda s: ["eni-1"])
    assert len(told) == 47 and told[-1] == "eni-1 still exist; the deletion may fail because of them"


def test_where_nothing_is_left_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints nothing if no network interfaces exist."""
    assert waited(monkeypatch, lambda s: []) == []
