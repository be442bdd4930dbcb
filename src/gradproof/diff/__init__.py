"""What changed between two contracts or two sets of evidence, and which changes are weakenings."""
