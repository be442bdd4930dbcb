"""Report formats, those of CI services in one module, all of them fed by `views` and guarded by `consistency`."""
