"""Programs for developers alone: they make tables and pictures of the documentation, and the files that a new PyTorch layer needs."""
