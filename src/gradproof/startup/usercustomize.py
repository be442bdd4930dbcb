"""Nothing: what a folder of PYTHONPATH calls usercustomize is not run in a worker."""
