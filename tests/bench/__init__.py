"""`python -m tests.bench`: every tool with the same question, in one run. Nothing here is a test."""
