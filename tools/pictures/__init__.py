"""Pictures of the architectures in docs/architectures: `python -m tools.pictures` draws them, and the figures of the pages beside them.

`layouts.py` holds what is laid out by hand, `figures.py` takes bytes, seconds and dollars from the product's own code, `drawing.py` makes
SVG. Tests compare the layouts with the trees, the templates and a simulated round.
"""
