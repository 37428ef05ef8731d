"""What redisai-py 1.3.0 does with tensors: client and pipeline. Argument: the server's port."""

import sys

import numpy as np
import redisai

client = redisai.Client(host="127.0.0.1", port=int(sys.argv[1]))

for dtype in (np.float32, np.float64, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, bool):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    assert client.tensorset("t", array) == "OK"
    back = client.tensorget("t")
    assert back.dtype == array.dtype and np.array_equal(back, array), (dtype, back)
assert client.tensorset("words", np.array([["one", ""], ["three", "för"]])) == "OK"
assert client.tensorget("words").tolist() == [["one", ""], ["three", "för"]]
assert client.tensorget("words", as_numpy=False)["values"] == ["one", "", "three", "för"]
assert client.tensorset("v", (2, 3.5), dtype="float") == "OK"
assert client.tensorget("v", as_numpy=False) == {"dtype": "FLOAT", "shape": [2], "values": [2.0, 3.5]}
assert client.tensorget("v", meta_only=True) == {"dtype": "FLOAT", "shape": [2]}

pipeline = client.pipeline(transaction=True)
pipeline.tensorset("p", np.array([1.0]))
pipeline.tensorget("p")
assert pipeline.execute()[1].tolist() == [1.0]
