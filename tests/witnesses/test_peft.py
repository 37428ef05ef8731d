"""peft, Hugging Face's own adapters: the same outputs, gradients and merged weights as ours, from the tensors of a file of ours; and
tokenizers, which comes with it: the same tokens of the worked example's mails.
"""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from crossover import user_code
from crossover.experiment import Adapters, Training
from crossover.learning import weights, zoo
from tests.examples import test_mails as example
from tests.witnesses.environments import HERE, python

NAME = "peft"


@pytest.mark.parametrize(("rank", "alpha", "targets"), [(4, 8.0, ("query", "value")), (2, 3.0, ("up", "down", "key"))])
def test_outputs_gradients_and_merged_weights_are_peft_s(
    rank: int, alpha: float, targets: tuple[str, ...], tmp_path: Path
) -> None:
    """Check that outputs, gradients and merged weights of our adapters are PEFT's."""
    interpreter = python(NAME)
    user_code.set_folders(HERE / NAME)
    wanted = Adapters(rank=rank, alpha=alpha, targets=tuple(f"*.{each}" for each in targets))
    training = Training(model="network:network", adapters=wanted)
    torch.manual_seed(1)
    module = zoo.find_factory(training.model, lambda each: weights.prepare_module(training, each))(3, (4, 16))
    for name, each in module.named_parameters():
        if weights.UP in name:
            torch.nn.init.normal_(each)
    inputs, labels = torch.randn(5, 4, 16), torch.tensor([0, 1, 2, 0, 1])
    outputs = module(inputs)
    torch.nn.functional.cross_entropy(outputs, labels).backward()

    own = {name for name, each in module.named_parameters() if each.requires_grad}
    state = {f"{'adapters' if name in own else 'base'}/{name}": value for name, value in module.state_dict().items()}
    asked = json.dumps({"rank": rank, "alpha": alpha, "targets": list(targets)})
    asked_in, answered_in = tmp_path / "asked.safetensors", tmp_path / "answer.safetensors"
    save_file({**state, "minibatch/inputs": inputs, "minibatch/labels": labels}, asked_in, {"asked": asked})
    done = subprocess.run(
        [interpreter, HERE / NAME / "judge.py", asked_in, answered_in], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = load_file(answered_in)

    gradients = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    merged = weights.merge_adapters(module, wanted)
    ours = {
        "outputs": outputs.detach(),
        **{f"gradients/{name}": value for name, value in gradients.items()},
        **{f"merged/{name}": value for name, value in merged.items()},
    }
    assert found.keys() == ours.keys()
    for name, value in ours.items():
        assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-6), name


def test_mails_have_the_tokens_that_tokenizers_gives_them(tmp_path: Path) -> None:
    """Check that the example's own code gives each of 6,046 mails the tokens that Hugging Face's tokenizers gives."""
    user_code.set_folders(example.EXAMPLES)
    folder, ours = example.downloaded(), example.settings()
    with tarfile.open(folder / "mails.tgz") as archive:
        mails = [archive.extractfile(each) for each in archive if "/data/" in each.name and each.name.endswith(".txt")]
        texts = [ours["_extract_text"](mail.read().decode("latin-1")) for mail in mails if mail is not None]
    words, vocabulary, most = ours["words"], ours["_load_vocabulary"](), ours["LENGTH"]
    rows = [(text, words.tokens(text, vocabulary, most=most)) for text in texts]
    told = tmp_path / "rows.json"
    told.write_text(json.dumps(rows), "utf-8")
    command = [python(NAME), HERE / NAME / "tokens.py", told, folder / "tokenizer.json", str(most)]
    differing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (len(rows), differing) == (6_046, "0\n")
