"""`python -m bench.reproduce` is the command `reproduce`."""

from bench.search_path import leave_current_folder

if __name__ == "__main__":
    leave_current_folder()
    from bench.reproduce.cli import main  # the packages that it imports are this project's now

    main()
