"""Which samples a training gets: seeded data, validation, logs, and the variance of what is drawn."""
