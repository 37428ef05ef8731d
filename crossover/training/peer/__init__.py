"""Peers that train side by side and exchange gradients, each a program: what P2P and the GPU baseline share (peers/ holds the programs)."""
