"""`python -m gainroute` is the command `gainroute`."""

from gainroute.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
