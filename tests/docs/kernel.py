"""A Jupyter kernel at work for tests: `python -m tests.docs.kernel` runs a cell for each line of stdin.

A line is JSON: the source of the cell, and after how many seconds it is interrupted (0: never). A line of stdout
answers: what the cell showed as HTML, as text, and the error that ended it.
"""

from __future__ import annotations

import json
import sys
from threading import Timer
from typing import Any

from jupyter_client.manager import KernelManager


def ran(client: Any, source: str) -> tuple[str, str, str]:
    """Run a cell: its HTML, its text, and the error that ended it."""
    page, text, error = list[str](), list[str](), list[str]()

    def output(message: Any) -> None:
        kind, said = message["msg_type"], message["content"]
        if kind == "error":
            error.append(f"{said['ename']}: {said['evalue']}")
        text.extend([said["text"]] if kind == "stream" else [])
        text.extend([said["data"]["text/plain"]] if "data" in said else [])
        page.extend([said["data"]["text/html"]] if "text/html" in said.get("data", {}) else [])

    client.execute_interactive(source, timeout=300, output_hook=output)
    return "".join(page), "".join(text), "".join(error)


def main() -> None:
    """Run what is asked until stdin ends."""
    manager = KernelManager()
    manager.start_kernel()
    try:
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=120)
        for line in sys.stdin:
            source, seconds = json.loads(line)
            if seconds:
                Timer(seconds, manager.interrupt_kernel).start()
            print(json.dumps(ran(client, source)), flush=True)
    finally:
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
