"""``python -m mpfeed``: the command line, where its libraries are installed."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without typer and rich, say how to get them."""
    try:
        from mpfeed.cli import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"the command line needs {error.name}: pip install 'mpfeed[cli]'")
    app(prog_name="mpfeed")


if __name__ == "__main__":
    main()
