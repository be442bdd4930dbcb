"""Nothing: what a folder of PYTHONPATH calls sitecustomize is not run in a worker."""
