"""Calls every public method of SmartRedis 0.6.1's client and data set on a CPU.

Arguments: Standalone or Clustered, the servers' addresses with commas between them, a TorchScript archive of (a + b, a - b).
"""

import inspect
import os
import sys
import tempfile
from pathlib import Path

kind, addresses, archive = sys.argv[1:]
os.environ.update(SSDB=addresses, SR_DB_TYPE=kind, SR_LOG_LEVEL="QUIET", SR_LOG_FILE=os.devnull)

import numpy as np  # noqa: E402
from smartredis import Client, Dataset  # noqa: E402

first = addresses.split(",")[0]
called: set[str] = set()
SCRIPT = "def double(x):\n    return x * 2\n"
# Out: all that wants GPUs, and what sends nothing to a server.
OUT = {name for name, _ in inspect.getmembers(Client) if name.endswith("_multigpu")} | {
    "log_data",
    "log_warning",
    "log_error",
}


def double(x):  # its source is what is sent
    return x * 2


class Noted:
    """Hands every method on and notes its name."""

    def __init__(self, of: object) -> None:
        self.of = of

    def __getattr__(self, name: str) -> object:
        called.add(f"{type(self.of).__name__}.{name}")
        return getattr(self.of, name)


def dataset(name: str, *, shift: int = 0) -> Noted:
    made = Noted(Dataset(name))
    made.add_tensor("x", a + shift)
    made.add_meta_scalar("n", 3.5)
    made.add_meta_string("s", "text")
    return made


c = Noted(Client(None, logger_name="walk"))
a = np.array([1, 2], np.float32)
for dtype in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16):
    c.put_tensor("t", a.astype(dtype))
    back = c.get_tensor("t")
    assert back.dtype == dtype and (back == a).all(), dtype
c.put_tensor("t", a)
c.copy_tensor("t", "u")
c.rename_tensor("u", "v")
assert c.tensor_exists("v") and not c.tensor_exists("u") and c.poll_tensor("v", 10, 10)
c.delete_tensor("v")

d = dataset("d")
c.put_dataset(d.of)
got = Noted(c.get_dataset("d"))
assert (
    (got.get_tensor("x") == a).all() and got.get_meta_scalars("n")[0] == 3.5 and got.get_meta_strings("s") == ["text"]
)
assert got.get_name() == "d" and sorted(got.get_metadata_field_names()) == ["n", "s"]
assert got.get_tensor_names() == ["x"] and list(got.get_tensor_dims("x")) == [2]
assert got.get_metadata_field_type("n") and got.get_tensor_type("x")
got.set_data(got.get_data())
c.copy_dataset("d", "e")
c.rename_dataset("e", "f")
assert c.dataset_exists("f") and c.poll_dataset("f", 10, 10)
c.delete_dataset("f")
for i in range(3):
    one = dataset(f"one{i}", shift=i)
    c.put_dataset(one.of)
    c.append_to_list("list", one.of)
assert c.get_list_length("list") == 3 and c.poll_list_length("list", 3, 10, 10)
assert c.poll_list_length_gte("list", 2, 10, 10) and c.poll_list_length_lte("list", 4, 10, 10)
c.copy_list("list", "list2")
c.rename_list("list2", "list3")
assert len(c.get_datasets_from_list("list3")) == 3 and len(c.get_dataset_list_range("list", 0, 1)) == 2
c.delete_list("list3")

c.set_script("script", SCRIPT)
assert c.get_script("script").strip() == SCRIPT.strip()
with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
    file.write(SCRIPT)
    file.flush()
    c.set_script_from_file("script file", file.name)
c.set_function("function", double)
for name in ("script", "script file", "function"):
    c.run_script(name, "double", ["t"], ["out"])
    assert (c.get_tensor("out") == a * 2).all(), name
c.delete_script("script file")

model = Path(archive).read_bytes()
c.set_model("model", model, "TORCH", "CPU")
c.set_model("batched", model, "TORCH", "CPU", batch_size=4, min_batch_size=1, min_batch_timeout=5, tag="tag")
c.set_model_from_file("file", archive, "TORCH", "CPU")
for name in ("model", "batched", "file"):
    assert c.model_exists(name) and c.poll_model(name, 10, 10) and c.get_model(name) == model
    c.run_model(name, ["t", "t"], ["sum", "difference"])
    assert (c.get_tensor("sum") == a * 2).all() and not c.get_tensor("difference").any(), name
# A model sent in pieces arrives whole. Read back in pieces it does not, because the client writes each over the one before.
c.set_model_chunk_size(1000)
c.set_model("pieces", model, "TORCH", "CPU")
c.run_model("pieces", ["t", "t"], ["sum", "difference"])
c.set_model_chunk_size(511 * 1024 * 1024)
assert {info["type"] for info in c.get_ai_info([first], "model")} == {"MODEL"}
c.delete_model("file")
assert not c.model_exists("file")

assert not c.key_exists("none") and not c.poll_key("none", 1, 2)
assert c.get_db_node_info([first])
if kind == "Clustered":
    assert c.get_db_cluster_info([first])[0]["cluster_state"] == "ok"
else:
    OUT.add("get_db_cluster_info")
assert c.config_get("lua-time-limit", first) == {"lua-time-limit": "5000"}
c.config_set("lua-time-limit", "4000", first)
c.save([first])
os.environ["SSKEYIN"] = "source"
for kind_of in ("model", "list", "tensor", "dataset"):
    getattr(c, f"use_{kind_of}_ensemble_prefix")(False)
Noted(Client(None, logger_name="another")).set_data_source("source")
c.flush_db(addresses.split(","))
assert not c.tensor_exists("t")

public = {
    f"{of.__name__}.{name}"
    for of in (Client, Dataset)
    for name, value in inspect.getmembers(of, inspect.isfunction)
    if not name.startswith("_") and name not in OUT and name != "from_pybind"
}
print("left out:", sorted(public - called))
