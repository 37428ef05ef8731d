"""Invoke semantics: what a caller gets for every way an invocation can end, and how environments are reused, queued, limited."""

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from crossover.local.lambdas import (
    EVENT_LIMIT,
    REQUEST_LIMIT,
    Answer,
    Environment,
    Function,
    Lambdas,
    RuntimeApi,
    TooLarge,
    TooManyRequests,
)
from crossover.local.zygotes import Zygote
from tests.local.parts import eventually
from tests.local.victims import kill_random

CODE = """
import os, pathlib, sys, time
import helper

count = 0
if "STARTED" in os.environ:  # told before the first invocation, whose time-out may be short
    pathlib.Path(os.environ["STARTED"], str(os.getpid())).touch()

def echo(event, context):
    global count
    count += 1
    print("hello from", context.function_name)
    return {
        "event": event, "count": count, "pid": os.getpid(), "helper": helper.NAME, "request_id": context.aws_request_id,
        "arn": context.invoked_function_arn, "left_ms": context.get_remaining_time_in_millis(), "memory_mb": context.memory_limit_in_mb,
    }

def about(event, context):
    return {
        "environment": dict(os.environ), "path": sys.path, "modules": sorted(sys.modules), "folder": os.getcwd(),
        "threads": len(os.listdir("/proc/self/task")), "origin": __file__,
    }

def fail(event, context):
    raise ValueError("no such luck")

def crash(event, context):
    os._exit(3)

def sleep(event, context):
    pathlib.Path(event["started"], str(os.getpid())).touch()
    time.sleep(3600)

def meet(event, context):
    # returns once as many callers as event["others"] are in at the same time
    folder = pathlib.Path(event["folder"])
    (folder / context.aws_request_id).touch()
    while len(list(folder.iterdir())) < event["others"]:
        time.sleep(0.01)
    return len(list(folder.iterdir()))

def most(event, context):
    # the most callers that were ever in at the same time
    folder = pathlib.Path(event["folder"])
    mine = folder / context.aws_request_id
    mine.touch()
    time.sleep(0.05)
    inside = len(list(folder.iterdir()))
    mine.unlink()
    return inside

def hoard(event, context):
    data = []
    while True:
        data.append(bytearray(1024 * 1024))
        time.sleep(0.001)

def large(event, context):
    return "x" * event["size"]

def flaky(event, context):
    with open(event["file"], "a") as file:
        file.write("x")
    if os.path.getsize(event["file"]) < event["after"]:
        raise ValueError("not yet")

def tensors(event, context):
    import torch
    values = torch.frombuffer(bytearray(8), dtype=torch.float32) + 1
    return {"sum": float(values.sum()), "numpy": "numpy" in sys.modules and sys.modules["numpy"] is not None}
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of code with the handlers, a helper, a module that cannot be imported, and one that needs what was not deployed."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "handlers.py").write_text(CODE)
    (folder / "helper.py").write_text("NAME = 'first'")
    (folder / "broken.py").write_text("import no_such_package\n")
    (folder / "undeployed.py").write_text("import crossover.stores.clients\n")
    return folder


@pytest.fixture(scope="module")
def lambdas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lambdas]:
    """Yield a Lambda service on two cores with a concurrency of 20; it is closed afterwards."""
    service = Lambdas(tmp_path_factory.mktemp("workspace"), cores=2, concurrency=20)
    yield service
    service.close()


@pytest.fixture
def function(code: Path) -> Any:
    """Return a function that builds a Lambda function of 256 MB for the handler `called`; keywords replace its fields."""

    def make(called: str, **given: Any) -> Function:
        """Return the Lambda function that calls the handler `called`; `given` replaces its fields."""
        return Function(
            **{
                "name": f"test-{called}",
                "arn": f"arn:aws:lambda:us-east-1:123456789012:function:test-{called}",
                "handler": f"handlers.{called}",
                "folder": code,
                "timeout_s": 30.0,
                "memory_mb": 256,
                **given,
            }
        )

    return make


def call(lambdas: Lambdas, function: Function, event: Any = None) -> Any:
    """Invoke the function and return its answer, decoded from JSON; fail if it reports an error."""
    answer = lambdas.invoke(function, json.dumps(event).encode())
    assert answer.error is None, answer.payload
    return json.loads(answer.payload)


def failure(answer: Answer) -> tuple[str, str]:
    """Return the type and message of the error with which an invocation failed."""
    assert answer.error == "Unhandled"
    payload = json.loads(answer.payload)
    return payload["errorType"], payload["errorMessage"]


def test_cold_then_warm(lambdas: Lambdas, function: Any) -> None:
    """Invoke a function twice: the second invocation is in the same process, and the context object has the right ids and limits."""
    first = call(lambdas, function("echo"), {"x": 1})
    second = call(lambdas, function("echo"), {"x": 2})
    assert (first["event"], first["count"]) == ({"x": 1}, 1)
    assert (second["event"], second["count"], second["pid"]) == ({"x": 2}, 2, first["pid"])
    assert first["request_id"] != second["request_id"]
    assert first["arn"].endswith(":test-echo")
    assert 0 < first["left_ms"] <= 30_000
    assert int(first["memory_mb"]) == 256


def test_a_changed_function_gets_a_new_environment(lambdas: Lambdas, function: Any) -> None:
    """Invoke a function, change its variables, and invoke it again: the second invocation is in a new process."""
    first = call(lambdas, function("echo", name="changing"))
    second = call(lambdas, function("echo", name="changing", environment={"NEW": "1"}))
    assert (second["pid"] != first["pid"], second["count"]) == (True, 1)


def test_a_worker_sees_its_own_code_and_nothing_of_the_checkout(
    lambdas: Lambdas, function: Any, tmp_path: Path
) -> None:
    """Deploy two functions with different code: each sees its own, and neither the checkout's modules nor this process's variables."""
    (tmp_path / "handlers.py").write_text(CODE)
    (tmp_path / "helper.py").write_text("NAME = 'second'")
    first, second = call(lambdas, function("echo")), call(lambdas, function("echo", name="other", folder=tmp_path))
    assert (first["helper"], second["helper"]) == ("first", "second")

    about = call(lambdas, function("about", name="other-about", folder=tmp_path))
    checkout = str(Path(__file__).parents[3])
    assert about["folder"] == str(tmp_path)
    assert about["path"][0] == str(tmp_path)
    assert checkout not in about["path"]
    assert about["origin"].startswith(str(tmp_path))
    assert not [name for name in about["modules"] if name.split(".")[0] in ("crossover", "tests", "moto", "torch")]
    assert about["threads"] == 1
    assert about["environment"]["AWS_LAMBDA_FUNCTION_NAME"] == "other-about"
    assert not {"HOME", "PYTHONPATH", "VIRTUAL_ENV"} & about["environment"].keys()


@pytest.mark.slow
def test_a_torch_worker_has_torch_and_no_numpy(lambdas: Lambdas, function: Any) -> None:
    """Invoke a function with torch: it computes, and numpy is not imported."""
    answer = call(lambdas, function("tensors", torch=True, memory_mb=1769))
    assert answer == {"sum": 2.0, "numpy": False}


def test_an_error_is_passed_on(lambdas: Lambdas, function: Any) -> None:
    """Invoke a function that raises: the answer has type, message and stack trace, and the log has the error."""
    answer = lambdas.invoke(function("fail"), b"{}")
    assert failure(answer) == ("ValueError", "no such luck")
    assert "stackTrace" in json.loads(answer.payload)
    assert b"[ERROR] ValueError: no such luck" in answer.log_tail


@pytest.mark.parametrize(
    ("name", "settings", "kind", "words"),
    [
        ("broken", {"handler": "broken.handler"}, "Runtime.ImportModuleError", "no_such_package"),
        # What the zip lacks is not found in the checkout.
        ("undeployed", {"handler": "undeployed.handler"}, "Runtime.ImportModuleError", "crossover"),
        ("hoard", {"memory_mb": 128}, "Runtime.OutOfMemory", "signal: killed"),
    ],
)
def test_what_ends_a_function_is_told(
    name: str, settings: dict[str, Any], kind: str, words: str, lambdas: Lambdas, function: Any
) -> None:
    """Invoke a function that cannot be imported or uses too much memory: the answer has Lambda's error type `kind`, and `words` in its
    message.
    """
    found, message = failure(lambdas.invoke(function(name, **settings), b"{}"))
    assert found == kind and words in message


def test_a_crash_is_a_runtime_exit_and_the_next_call_starts_afresh(lambdas: Lambdas, function: Any) -> None:
    """Invoke a function that ends its process, twice: each answer is a Runtime.ExitError with the exit status."""
    crash = function("crash")
    for _ in range(2):
        kind, message = failure(lambdas.invoke(crash, b"{}"))
        assert kind == "Runtime.ExitError"
        assert message.endswith("Error: Runtime exited with error: exit status 3")


def test_a_time_out_kills_the_environment(lambdas: Lambdas, function: Any, tmp_path: Path) -> None:
    """Invoke a function that sleeps beyond its timeout: the answer is Sandbox.Timedout, and its process is gone."""
    sleep = function("sleep", timeout_s=0.5, environment={"STARTED": str(tmp_path)})
    answer = lambdas.invoke(sleep, json.dumps({"started": str(tmp_path)}).encode())
    kind, message = failure(answer)
    assert kind == "Sandbox.Timedout"
    assert message == f"RequestId: {answer.request_id} Error: Task timed out after 0.50 seconds"
    (pid,) = (int(entry.name) for entry in tmp_path.iterdir())
    assert not Path(f"/proc/{pid}").exists()


def test_a_payload_above_the_limit_is_refused(lambdas: Lambdas, function: Any) -> None:
    """Invoke a function with a payload above Lambda's limit, synchronously and as an event: TooLarge names the limit."""
    with pytest.raises(TooLarge, match=str(REQUEST_LIMIT)):
        lambdas.invoke(function("echo"), b" " * (REQUEST_LIMIT + 1))
    with pytest.raises(TooLarge, match=str(EVENT_LIMIT)):
        lambdas.invoke_event(function("echo"), b" " * (EVENT_LIMIT + 1))


def test_a_response_at_and_above_the_limit(lambdas: Lambdas, function: Any) -> None:
    """Return a response of the largest size, and a larger one: the first is passed on, the second is Function.ResponseSizeTooLarge."""
    assert len(call(lambdas, function("large"), {"size": REQUEST_LIMIT - 2})) == REQUEST_LIMIT - 2
    kind, _ = failure(lambdas.invoke(function("large"), json.dumps({"size": REQUEST_LIMIT + 200}).encode()))
    assert kind == "Function.ResponseSizeTooLarge"


def test_functions_that_wait_for_one_another_all_run(lambdas: Lambdas, function: Any, tmp_path: Path) -> None:
    """Invoke twelve functions that wait for each other, on two cores: all run at once."""
    meet = function("meet", waits=True)
    with ThreadPoolExecutor(12) as pool:
        event = {"folder": str(tmp_path), "others": 12}
        assert list(pool.map(lambda _: call(lambdas, meet, event), range(12))) == [12] * 12


@pytest.mark.slow
@pytest.mark.parametrize(("torch", "places"), [(True, 2), (False, 8)])
def test_functions_that_only_compute_queue(
    lambdas: Lambdas, function: Any, tmp_path: Path, torch: bool, places: int
) -> None:
    """Invoke thirty functions that do not wait: at most `places` run at once."""
    most = function("most", torch=torch, name=f"most-{torch}", memory_mb=1769)
    with ThreadPoolExecutor(20) as pool:
        seen = list(pool.map(lambda _: call(lambdas, most, {"folder": str(tmp_path)}), range(30)))
    assert max(seen) <= places


def test_the_accounts_concurrency_is_not_exceeded(lambdas: Lambdas, function: Any, tmp_path: Path) -> None:
    """Keep 20 functions running: another invocation is refused until they have ended."""
    sleep = function("sleep", waits=True, timeout_s=60.0)
    with ThreadPoolExecutor(20) as pool:
        event = json.dumps({"started": str(tmp_path)}).encode()
        running = [pool.submit(lambdas.invoke, sleep, event) for _ in range(20)]
        eventually(lambda: len(list(tmp_path.iterdir())) == 20, what="20 functions run")
        with pytest.raises(TooManyRequests):
            lambdas.invoke(function("echo", waits=True), b"{}")
        for environment in lambdas.list_running():
            environment.kill()
        assert {failure(each.result())[0] for each in running} == {"Runtime.ExitError"}
    assert call(lambdas, function("echo"), 1)["event"] == 1


def test_kill_random_hits_a_running_environment(lambdas: Lambdas, function: Any, tmp_path: Path) -> None:
    """Let `kill_random` strike: without a running function it returns None, otherwise it kills that function and returns its name."""
    assert kill_random(lambdas, random.Random(1)) is None
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambdas.invoke, function("sleep"), json.dumps({"started": str(tmp_path)}).encode())
        eventually(lambda: bool(list(tmp_path.iterdir())), what="the function runs")
        assert kill_random(lambdas, random.Random(1)) == "test-sleep"
        kind, message = failure(running.result())
    assert kind == "Runtime.ExitError"
    assert message.endswith("signal: killed")


def test_a_killed_fork_server_takes_its_functions_with_it_and_has_a_successor(
    lambdas: Lambdas, function: Any, tmp_path: Path
) -> None:
    """Kill the fork server: the running function is answered as crashed, and the next invocation works."""
    with ThreadPoolExecutor(1) as pool:
        sleep = function("sleep", timeout_s=300.0)
        running = pool.submit(lambdas.invoke, sleep, json.dumps({"started": str(tmp_path)}).encode())
        eventually(lambda: bool(list(tmp_path.iterdir())), what="the function runs")
        lambdas._zygotes["plain"]._process.kill()
        assert failure(running.result(60))[0] == "Runtime.ExitError"
    assert call(lambdas, function("echo"), 1)["event"] == 1


def test_a_start_that_the_fork_server_does_not_answer_leaves_nothing(
    tmp_path: Path, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the fork server not answer a start: the invocation raises TimeoutError, address and folder are removed, and the next invocation
    works.
    """
    service, released = Lambdas(tmp_path), list[str]()
    release = RuntimeApi.release
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Zygote, "fork", _time_out)
            patch.setattr(RuntimeApi, "release", lambda api, address: released.append(address) or release(api, address))
            with pytest.raises(TimeoutError):
                service.invoke(function("echo"), b"{}")
        assert len(released) == 1 and not list((tmp_path / "tmp").iterdir())
        assert call(service, function("echo"), 1)["event"] == 1
    finally:
        service.close()


def _time_out(*given: Any) -> int:
    """Raise TimeoutError, as a fork server does that does not reply."""
    raise TimeoutError("no reply")


@pytest.mark.slow
def test_nobody_is_given_an_idle_environment_of_a_killed_fork_server(
    tmp_path: Path, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the fork server of an idle environment before the environment's end is reported: the next invocation is in a new process."""
    told = threading.Event()
    tell = Lambdas._on_exit
    monkeypatch.setattr(Lambdas, "_on_exit", lambda self, *end: told.wait(60) and tell(self, *end))
    service = Lambdas(tmp_path)
    try:
        first = call(service, function("echo"))["pid"]
        zygote = service._zygotes["plain"]
        zygote._process.kill()
        eventually(lambda: not zygote.is_alive, what="its end is seen; that of its idle environment was not told yet")
        assert call(service, function("echo"))["pid"] != first
    finally:
        told.set()
        service.close()


@pytest.mark.slow
def test_an_event_is_retried(lambdas: Lambdas, function: Any, tmp_path: Path) -> None:
    """Invoke a function that fails once as an event: it is called again."""
    file = tmp_path / "calls"
    lambdas.invoke_event(function("flaky"), json.dumps({"file": str(file), "after": 2}).encode())
    eventually(lambda: file.exists() and file.read_text() == "xx", what="called twice")


def test_extra_environment_reaches_new_environments(lambdas: Lambdas, function: Any) -> None:
    """Set `extra_environment` for a function: it sees that variable beside its own."""
    lambdas.extra_environment["extra"] = {"CROSSOVER_KILL_AT": "7"}
    about = call(lambdas, function("about", name="extra", environment={"OWN": "1"}))
    assert (about["environment"]["CROSSOVER_KILL_AT"], about["environment"]["OWN"]) == ("7", "1")


def test_logs_and_report(tmp_path: Path, function: Any) -> None:
    """Invoke a function twice: its log and the reports of a cold and a warm start have the right ids, durations and memory."""
    seen: list[tuple[str, list[str]]] = []
    service = Lambdas(tmp_path, sink=lambda deployed, stream, lines: seen.append((deployed.name, lines)))
    try:
        request_ids = [service.invoke(function("echo"), b"{}").request_id for _ in range(2)]
    finally:
        service.close()
    assert [(name, lines[0]) for name, lines in seen] == [("test-echo", "hello from test-echo")] * 2
    cold, warm = [json.loads(line) for line in (tmp_path / "logs/test-echo/platform.jsonl").read_text().splitlines()]
    assert [cold["record"]["requestId"], warm["record"]["requestId"]] == request_ids
    assert (cold["type"], cold["record"]["status"]) == ("platform.report", "success")
    figures = cold["record"]["metrics"]
    assert figures["billedDurationMs"] >= figures["durationMs"] + figures["initDurationMs"] > 0
    assert figures["memorySizeMB"] == 256
    assert 0 < figures["maxMemoryUsedMB"] < 256
    assert "initDurationMs" not in warm["record"]["metrics"]
    assert json.loads(seen[1][1][-1]) == warm


def test_closing_ends_every_process_and_answers_every_caller(tmp_path: Path, function: Any) -> None:
    """Close the service while three functions run: each caller gets a Runtime.ExitError, and no process or folder is left."""
    service = Lambdas(tmp_path)
    answers: list[Answer] = []
    started = tmp_path / "started"
    started.mkdir()

    def invoke() -> None:
        """Invoke a function that sleeps, and note its answer."""
        answers.append(service.invoke(function("sleep", waits=True), json.dumps({"started": str(started)}).encode()))

    threads = [threading.Thread(target=invoke) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(list(started.iterdir())) == 3, what="three functions run")
    service.close()
    for thread in threads:
        thread.join(30)
    assert [failure(answer)[0] for answer in answers] == ["Runtime.ExitError"] * 3
    for entry in started.iterdir():
        eventually(lambda pid=entry.name: not Path(f"/proc/{pid}").exists(), what="worker gone")  # type: ignore[misc]
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("step", ["its port", "its fork server", "its process"])
def test_a_start_that_the_close_overtakes_ends(
    tmp_path: Path, function: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Close the service while an environment is being started, at one `step` of the start: the caller is refused or told of a crash, and no
    folder or thread is left.
    """
    owner, name = {
        "its port": (RuntimeApi, "open"),
        "its fork server": (Lambdas, "_get_zygote"),
        "its process": (Zygote, "fork"),
    }[step]
    old = getattr(owner, name)
    reached, closed = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        """Do the step after the service was closed. Only the start of a process is done before, because it could not be done after."""
        done = old(*arguments) if step == "its process" else None
        reached.set()
        assert closed.wait(60)
        return done or old(*arguments)

    others = set(threading.enumerate())
    service = Lambdas(tmp_path)
    monkeypatch.setattr(owner, name, held)
    ends: list[Any] = []

    def invoke() -> None:
        """Invoke a function and note how it ends: the type of its error, or TooManyRequests."""
        try:
            ends.append(failure(service.invoke(function("sleep", waits=True), b"{}"))[0])
        except TooManyRequests:
            ends.append(TooManyRequests)

    thread = threading.Thread(target=invoke, daemon=True)
    thread.start()
    assert reached.wait(60)
    service.close()
    closed.set()
    thread.join(30)
    assert ends == ["Runtime.ExitError" if step == "its process" else TooManyRequests]
    assert not list(tmp_path.glob("tmp/*"))
    assert set(threading.enumerate()) <= others


@pytest.mark.slow
def test_closing_waits_for_who_hears_of_an_end(tmp_path: Path, function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the fork server's listener in the middle of an environment's end: the close waits for it, and no folder is left."""
    old = Environment._resolve_ready
    service, through = Lambdas(tmp_path), threading.Event()

    def held(environment: Environment) -> None:
        """Resolve the environment's start as before. If it has ended, first wait until the test is through, a second at most."""
        if not environment.is_alive:
            through.wait(1.0)
        old(environment)

    monkeypatch.setattr(Environment, "_resolve_ready", held)
    started = tmp_path / "started"
    started.mkdir()
    event = json.dumps({"started": str(started)}).encode()
    thread = threading.Thread(target=service.invoke, args=(function("sleep", waits=True), event))
    thread.start()
    eventually(lambda: bool(list(started.iterdir())), what="the function runs")
    service.close()
    assert not list(tmp_path.glob("tmp/*"))
    through.set()
    thread.join(30)
