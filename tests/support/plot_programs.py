"""Loads programs of bench/plots as modules."""

import importlib.util
import os
import sys

FOLDER = os.path.join(os.environ["GPU4FS_SOURCE"], "bench", "plots")


def load_plots(path):
    """The module of the program, which finds what it shares with the others of its folder."""
    # At the end, because the folder has names of the standard library.
    if FOLDER not in sys.path:
        sys.path.append(FOLDER)
    name = os.path.splitext(os.path.basename(path))[0] + "_plots"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
