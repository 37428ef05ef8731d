"""Architectures made of programs on EC2, one per worker: `p2p/` is what both peer-to-peer ones are, `gpu/` the GPU baseline."""
