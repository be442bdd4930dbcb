"""Report formats: one module a format, all of them fed by `views` and guarded by `consistency`."""
