"""Runs cases of rdma-core's Python tests, and says of each how it ended.

usage: run.py TESTS REPORT list|run NAME...

TESTS holds the package `tests` of the suite. `list MODULE...` writes the cases of modules to REPORT, a name per line.
`run CASE...` writes two lines per case, at once: `start CASE`, and `end CASE OUTCOME REASON`. Who reads them knows
which case a crash or a hang belongs to.
"""

import importlib
import importlib.machinery
import sys
import types
import unittest

tests, report, what, *names = sys.argv[1:]
# The suite's own modules are found both as `tests.base` and as `args_parser`; its package file would import every
# module, those of vendors included.
sys.path[:0] = [tests, tests + "/tests"]
package = types.ModuleType("tests")
package.__path__ = [tests + "/tests"]
sys.modules["tests"] = package
sys.argv[1:] = []
importlib.import_module("args_parser").parser.parse_args()
lines = open(report, "a", buffering=1)


def say(*words):
    lines.write("\t".join(" ".join(str(word).split()) for word in words) + "\n")


class Result(unittest.TestResult):
    """The first thing that went wrong in a case, its subtests included, is its outcome."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = ("passed", "")
        say("start", test.id())

    def worse(self, outcome, reason):
        if self.outcome[0] != "failed":
            self.outcome = (outcome, reason)

    def broken(self, error):
        kind, value, _ = error
        self.worse("failed", f"{kind.__name__}: {value}")
        sys.stderr.write(self._exc_info_to_string(error, self.test))

    def addError(self, test, error):
        self.test = test
        self.broken(error)

    addFailure = addError

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.addError(test, error)

    def addSkip(self, test, reason):
        self.worse("skipped", reason)

    def stopTest(self, test):
        super().stopTest(test)
        say("end", test.id(), *self.outcome)


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


loader = unittest.TestLoader()
if what == "list":
    for name in names:
        for case in cases(loader.loadTestsFromModule(importlib.import_module(name))):
            say(case.id())
else:
    loader.loadTestsFromNames(names).run(Result())
