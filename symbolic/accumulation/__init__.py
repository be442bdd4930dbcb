"""Harnesses of gradient-accumulation-kernel-v1."""
