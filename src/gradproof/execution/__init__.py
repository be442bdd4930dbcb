"""Runs one check in a process of its own that can be killed, and many of them side by side."""
