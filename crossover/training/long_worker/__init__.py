"""Workers that live through many invocations: one long function that checkpoints before its deadline and is invoked again (LambdaML,
MLLess).
"""
