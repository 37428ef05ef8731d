"""Following a run that is paid for: a network that is gone for a while, or credentials that expire, do not end the looking."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from crossover import runtime
from crossover.clients.aws_calls import EXPIRED, code_of
from crossover.errors import Unavailable

T = TypeVar("T")


class Look(Protocol):
    """How AWS is asked: at once, or with patience."""

    def __call__(self, work: Callable[[], T]) -> T: ...


EXPIRED_TOO = EXPIRED | {"RequestExpired", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
THROTTLED = {"Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown"}
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0

TOLD = {
    "credentials": "AWS does not accept the credentials any more; the run goes on, and so does this command once they are renewed: sign in "
    "again (aws sso login). Credentials in the environment cannot be changed from outside: set new ones in another terminal and repeat the "
    "command there, which takes the run up",
    "network": "AWS does not answer; the run goes on, and this command tries again",
}


def at_once(work: Callable[[], T]) -> T:
    """No patience: what fails has failed."""
    return work()


class AwsPatience:
    """`renew` reads the credentials anew. Each kind of trouble is told once, until it is over."""

    def __init__(
        self,
        renew: Callable[[], None],
        *,
        tell: Callable[[str], None] = lambda words: print(words, file=sys.stderr, flush=True),
        pause: Callable[[float], None] = runtime.sleep,
    ) -> None:
        self._renew, self._tell, self._pause = renew, tell, pause

    def __call__(self, work: Callable[[], T]) -> T:
        """What `work` gives, however long that takes; errors that do not pass by themselves are raised."""
        told, pause_s = set[str](), PAUSE_S
        while True:
            try:
                return work()
            except Exception as error:
                trouble = trouble_of(error)
                if not trouble:
                    raise
                if trouble not in told:
                    told.add(trouble)
                    self._tell(f"{TOLD[trouble]} ({error})")
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            self._renew()


def trouble_of(error: BaseException) -> str:
    """`credentials`, `network`, or "" for what would come again."""
    for each in _causes(error):
        if isinstance(each, Unavailable):
            return "network"
        if isinstance(each, ClientError):
            code = code_of(each)
            status = int(each.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            unsaid = each.operation_name == "HeadObject" and code in ("400", "403")  # an answer without a body
            if code in EXPIRED_TOO or unsaid:
                return "credentials"
            return "network" if code in THROTTLED or status >= 500 else ""
        if isinstance(each, ParamValidationError):  # refused before it was sent, now and always
            return ""
        if isinstance(each, BotoCoreError):
            return "credentials" if any(word in type(each).__name__ for word in ("Token", "Credential")) else "network"
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


class Renewed(Credentials):
    """Credentials that all clients of a session share, and that can be read anew while they are used."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read, self._found = read, read()

    def renew(self) -> None:
        """Read them again; where nothing can be read the old ones stay."""
        try:
            self._found = self._read() or self._found
        except BotoCoreError:  # a profile half written, a sign-in that is over: the next look reads again
            return

    def get_frozen_credentials(self) -> Any:
        return self._found.get_frozen_credentials()

    def __getattr__(self, name: str) -> Any:
        """access_key, secret_key, token, method, account_id."""
        return getattr(self._found, name)


def renewing_session() -> tuple[Any, Callable[[], None]]:
    """A boto3 session by the environment, AWS_PROFILE included, and what reads its credentials anew."""
    import boto3

    session = boto3.Session()
    if session.get_credentials() is None:
        return session, lambda: None
    renewed = Renewed(lambda: boto3.Session().get_credentials())
    plain: Any = session
    plain._session._credentials = renewed  # where botocore's own refreshing credentials are put, too
    return session, renewed.renew
