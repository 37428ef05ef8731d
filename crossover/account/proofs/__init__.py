"""What `crossover verify-aws` tries on a real account, step by step, and what each step showed."""
