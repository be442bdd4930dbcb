"""The loop of gradient accumulation, its window protocol, its real PyTorch steps, and their bugs."""
