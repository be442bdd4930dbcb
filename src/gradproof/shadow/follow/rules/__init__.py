"""Rules: operators whose values are worked out and not named."""
