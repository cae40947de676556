"""`python -m router` is the `warmroute` command."""

from router.cli.main import main

if __name__ == "__main__":
    main()
