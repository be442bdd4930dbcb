"""`gradproof` and `python -m gradproof`.

`python -m` searches the current folder first, where a `click.py` or `json.py` of a user's would be taken for the real
one. So that folder is taken off before anything is imported; `from __future__` would be such an import.
"""

import os
import sys


def forget_the_current_folder() -> None:
    """Take off what `python -m` put first on the import path, unless `python -P` has kept it away."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


if __name__ == "__main__":
    forget_the_current_folder()

from gradproof.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
