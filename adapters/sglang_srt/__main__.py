"""``python -m specplug.adapters.sglang_srt``: would ``--speculative-algorithm specplug.*`` work here?

Exit code 0 if it would, 1 if not. Run it where the server would run, with the same environment variables.
"""

from __future__ import annotations

import sys

from specplug.adapters.sglang_srt.check import check


def main() -> int:
    """Print the findings, one a line; the exit code."""
    problems, lines = check()
    sys.stdout.write("\n".join([*lines, *(f"PROBLEM: {p}" for p in problems)]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
