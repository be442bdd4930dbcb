"""Conformance of PyTorch's real kernels with the rounding model, and what they do at the edges.

`python -m gradproof.extras.conformance` runs the rows on the device of this machine. It loads neither a solver nor,
until one of its modules that runs kernels is imported, torch.
"""
