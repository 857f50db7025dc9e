"""`python -m link`."""

from link.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
