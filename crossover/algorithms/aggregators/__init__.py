"""Averaging many clients' gradients by many functions: who adds what, the gradients that are made for it, what bits must come out."""
