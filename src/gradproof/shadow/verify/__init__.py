"""From recordings to results: every obligation of a step, decided."""
