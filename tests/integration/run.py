#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the integration tests on real processes.

usage: run.py [--build DIR] [PATTERN]     PATTERN: part of "module.test"
"""
import argparse
import glob
import importlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import lib  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--build", default=lib.BUILD)
parser.add_argument("pattern", nargs="?", default="")
args = parser.parse_args()
lib.BUILD = os.path.abspath(args.build)

here = os.path.dirname(os.path.abspath(__file__))
modules = [importlib.import_module(os.path.basename(f)[:-3])
           for f in sorted(glob.glob(os.path.join(here, "test_*.py")))]
p, f, s = lib.run_tests(modules, args.pattern, True)
print(f"integration: {p} passed, {f} failed, {s} skipped")
sys.exit(f != 0)
