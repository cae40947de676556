"""Run the `warmroute` command with `python -m router`."""

from router.cli.main import main

if __name__ == "__main__":
    main()
