"""`python -m dresfl` is the `dresfl` command."""

from dresfl.cli import main

if __name__ == "__main__":
    main()
