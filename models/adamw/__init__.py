"""One step of AdamW, in plain Python and on PyTorch, and its bugs."""
