"""What `make test-aws` tries on a real account, step by step, and what each step showed."""
