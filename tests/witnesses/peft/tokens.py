"""How many of the texts of a file (JSON: text, tokens) tokenizers, which comes with peft, has other tokens for: file tokenizer.json."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

told, own, most = Path(sys.argv[1]), Tokenizer.from_file(sys.argv[2]), int(sys.argv[3])
own.enable_truncation(most)
own.no_padding()
print(sum(own.encode(text).ids != tokens for text, tokens in json.loads(told.read_text("utf-8"))))
