"""The two Lambda layers, made from wheels on any host: `make layer`, or `python -m layer.build`.

PyTorch for ARM unpacked takes 558 MB; a function and its layers may take 250 MiB. Each module says what it leaves out, and why that is
safe: `pruning` drops files, `elf` drops symbol tables, `bytecode` compiles, `archive` packs, `checks` verifies the result.
"""
