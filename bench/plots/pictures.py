"""What the programs of this folder share: their arguments, and pictures without a screen."""

import argparse
import os
import sys


def parse_arguments(description):
    """Arguments of a program that draws pictures of RESULTs, next to each or in --folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", metavar="RESULT")
    parser.add_argument("--folder")
    return parser.parse_args()


def read_results(paths, read, command):
    """[(path, read(path))]. Exits if one is no result of the command."""
    results = []
    for path in paths:
        try:
            results.append((path, read(path)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{path} is no result of {command}: {error!r}")
    return results


def import_pyplot():
    """Exits if there is no matplotlib."""
    try:
        import matplotlib
        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        sys.exit("there is no matplotlib: install python3-matplotlib")
    return pyplot


def folder_of(path, options):
    return options.folder or os.path.dirname(os.path.abspath(path))


def base_of(path):
    return os.path.splitext(os.path.basename(path))[0]
