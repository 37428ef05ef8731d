"""Architectures made of programs on EC2, one per worker. `p2p/`: code of both peer-to-peer architectures; `gpu/`: the GPU baseline."""
