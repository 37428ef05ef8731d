"""What peft makes of a base, adapters and a minibatch. Arguments: the file that has them, and the one for outputs and gradients."""

import json
import sys

import torch
from network import Network
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

given, answer = sys.argv[1:]
with safe_open(given, "pt") as file:
    asked = json.loads(file.metadata()["asked"])
tensors = load_file(given)
base, ours, minibatch = (
    {name.removeprefix(f"{part}/"): value for name, value in tensors.items() if name.startswith(f"{part}/")}
    for part in ("base", "adapters", "minibatch")
)
network = Network()
network.load_state_dict(base)
config = LoraConfig(r=asked["rank"], lora_alpha=asked["alpha"], target_modules=asked["targets"])
model = get_peft_model(network, config)
unknown = set_peft_model_state_dict(model, {f"base_model.model.{name}": value for name, value in ours.items()})
assert not unknown.unexpected_keys, unknown.unexpected_keys
outputs = model(minibatch["inputs"])
torch.nn.functional.cross_entropy(outputs, minibatch["labels"]).backward()
gradients = {
    name.removeprefix("base_model.model.").replace(".default", "").replace(".base_layer", ""): each.grad
    for name, each in model.named_parameters()
    if each.grad is not None
}
whole = model.merge_and_unload().state_dict()
found = {"outputs": outputs.detach(), **{f"gradients/{name}": value for name, value in gradients.items()}}
save_file(found | {f"merged/{name}": value.contiguous() for name, value in whole.items()}, answer)
