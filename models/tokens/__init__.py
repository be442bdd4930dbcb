"""Windows of token counts, cross-entropy, and what a missing factor does to the rate."""
