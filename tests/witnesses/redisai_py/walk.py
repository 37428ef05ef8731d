"""Every method of redisai-py 1.3.0: client, pipeline, DAG. Arguments: the server's port, a TorchScript archive of (a + b, a - b)."""

import inspect
import sys
import warnings
from pathlib import Path

import numpy as np
import redisai
from redisai.dag import Dag
from redisai.pipeline import Pipeline

warnings.simplefilter("ignore")  # its own: some methods are deprecated
client = redisai.Client(host="127.0.0.1", port=int(sys.argv[1]))
archive = Path(sys.argv[2]).read_bytes()
called: set[str] = set()


class Noted:
    """Hands every method on and notes its name."""

    def __init__(self, of: object, kind: str) -> None:
        self.of, self.kind = of, kind

    def __getattr__(self, name: str) -> object:
        called.add(f"{self.kind}.{name}")
        return getattr(self.of, name)


c = Noted(client, "Client")
SOURCE = """
def add(tensors: List[Tensor], keys: List[str], args: List[str]):
    return tensors[0] + tensors[1] * float(args[0])
def touch(tensors: List[Tensor], keys: List[str], args: List[str]):
    redis.execute("SET", keys[0], args[0])
    return tensors[0]
"""

for dtype in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, bool):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    assert c.tensorset("t", array) == "OK"
    back = c.tensorget("t")
    assert back.dtype == array.dtype and np.array_equal(back, array), (dtype, back)
assert c.tensorset("words", np.array([["one", ""], ["three", "för"]])) == "OK"
assert c.tensorget("words").tolist() == [["one", ""], ["three", "för"]]
assert c.tensorget("words", as_numpy=False)["values"] == ["one", "", "three", "för"]
assert c.tensorset("v", (2, 3.5), dtype="float") == "OK"
assert c.tensorget("v", as_numpy=False) == {"dtype": "FLOAT", "shape": [2], "values": [2.0, 3.5]}
assert c.tensorget("v", meta_only=True) == {"dtype": "FLOAT", "shape": [2]}

assert c.scriptstore("s", "CPU", SOURCE, ["add", "touch"], tag="v1") == "OK"
got = c.scriptget("s")
assert got["source"] == SOURCE and got["device"] == "CPU" and got["tag"] == "v1", got
assert c.scriptexecute("s", "add", inputs=["v", "v"], args=["2"], outputs=["out"]) == "OK"
assert c.tensorget("out").tolist() == [6.0, 10.5]
assert c.scriptexecute("s", "touch", keys=["k"], inputs=["v"], args=["x"], outputs=["out"], timeout=60000) == "OK"
assert c.get("k") == b"x"
assert c.infoget("s")["calls"] == 2 and c.inforeset("s") == "OK"
assert c.scriptset("old", "cpu", "def double(x):\n    return x * 2\n") == "OK"
assert c.scriptscan() == [["old", ""], ["s", "v1"]]
assert c.scriptrun("old", "double", inputs=["v"], outputs=["out"]) == "OK"
assert c.tensorget("out").tolist() == [4.0, 7.0]

assert c.config("MODEL_CHUNK_SIZE") == 511 * 1024 * 1024 and c.config("MODEL_CHUNK_SIZE", 1000) == "OK"
assert c.modelstore("m", "torch", "cpu", archive, batch=4, minbatch=2, minbatchtimeout=5, tag="v1") == "OK"
assert b"".join(c.modelget("m")["blob"]) == archive
assert c.config("MODEL_CHUNK_SIZE", 511 * 1024 * 1024) == "OK"
meta = c.modelget("m", meta_only=True)
assert (meta["device"], meta["batchsize"], meta["minbatchsize"], meta["minbatchtimeout"]) == ("cpu", 4, 2, 5), meta
assert c.modelset("n", "TORCH", "CPU", archive) == "OK" and c.modelget("n")["blob"] == archive
for run in (c.modelexecute, c.modelrun):
    assert run("n", ["v", "v"], ["sum", "difference"]) == "OK"
    assert c.tensorget("sum").tolist() == [4.0, 7.0]
assert c.modelscan() == [["m", "v1"], ["n", ""]] and c.infoget("n")["samples"] == 4
assert (
    c.loadbackend("TORCH", "/x") == "OK" and c.config("BACKENDSPATH", "/x") == "OK" and c.config("BACKENDSPATH") == "/x"
)

dag = Noted(c.dag(load=["v"], persist=["sum"], routing="v", timeout=60_000), "Dag")
dag.tensorset("w", np.array([1, 1], np.float32))
dag.modelexecute("n", ["v", "w"], ["sum", "difference"])
dag.scriptexecute("s", "add", inputs=["sum", "w"], args=["2"], outputs=["last"])
dag.tensorget("last")
assert dag.execute()[3].tolist() == [5.0, 6.5] and c.tensorget("sum").tolist() == [3.0, 4.5] and not c.exists("last")
older = Noted(c.dag(), "Dag")
older.tensorset("w", np.array([1, 1], np.float32))
older.modelrun("n", ["w", "w"], ["sum", "difference"])
older.tensorget("sum")
assert older.run()[2].tolist() == [2.0, 2.0]
reading = c.dag(load=["v"], readonly=True)
reading.modelexecute("n", ["v", "v"], ["sum", "difference"])
assert reading.execute() == ["OK"]
pipeline = Noted(c.pipeline(transaction=True), "Pipeline")
pipeline.tensorset("p", np.array([1.0]))
pipeline.tensorget("p")
assert pipeline.of.execute()[1].tolist() == [1.0]
assert c.scriptdel("s") == "OK" and c.modeldel("m") == "OK" and not c.exists("s", "m")

methods = {
    f"{kind.__name__}.{name}"
    for kind in (redisai.Client, Dag, Pipeline)
    for name, value in vars(kind).items()
    if inspect.isfunction(value) and not name.startswith("_")
}
print("left out:", sorted(methods - called))
