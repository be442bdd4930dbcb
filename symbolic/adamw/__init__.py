"""Harnesses of adamw-kernel-v1."""
