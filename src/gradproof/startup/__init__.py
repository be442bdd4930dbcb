"""A folder that stands first on the import path of a worker, so that no other start-up file is run in it."""
