"""How run.py interprets the output of xfstests and the list of expected results. The suite itself is not needed."""

import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run  # noqa: E402

PRINTED = """\
FSTYP         -- fuse
generic/001         3s
generic/002         2s
generic/003        - output mismatch (see results/generic/003.out.bad)
    --- tests/generic/003.out
    +generic/004 is not a line of its own
generic/005        [failed, exit status 1]- output mismatch (see results/generic/005.out.bad)
generic/006        [not run] xfs_io fiemap  failed (old kernel/wrong fs?)
generic/007       _check_dmesg: something found in dmesg (see results/generic/007.dmesg)
generic/008        [expunged]
Ran: generic/001 generic/002
Failures: generic/003 generic/005
"""


class Results(unittest.TestCase):
    def test_outcomes_are_told_apart(self):
        outcomes = {test: outcome for test, (outcome, _) in run.parse_results(PRINTED).items()}
        self.assertEqual(outcomes, {"generic/001": "passes", "generic/002": "passes", "generic/003": "fails",
                                    "generic/005": "fails", "generic/006": "not-run", "generic/007": "fails"})
        self.assertEqual(run.parse_results(PRINTED)["generic/006"][1], "xfs_io fiemap  failed (old kernel/wrong fs?)")
        self.assertEqual(run.summary(run.parse_results(PRINTED)),
                         "5 tests were run: 2 passed, 3 failed; 1 were not run")

    def test_what_is_not_expected_is_said(self):
        results = run.parse_results(PRINTED)
        as_it_is = {test: (outcome, "why") for test, (outcome, _) in results.items() if outcome != "passes"}
        self.assertEqual(run.surprises(as_it_is, results), [])
        for test in results:
            other = dict(as_it_is)
            if test in other:
                del other[test]
            else:
                other[test] = ("fails", "why")
            lines = run.surprises(other, results)
            self.assertEqual(len(lines), 1)
            self.assertIn(test, lines[0])

    def test_the_list_is_sound_and_has_reasons(self):
        with open(os.path.join(HERE, "expected.txt"), encoding="utf-8") as file:
            expected = run.parse_expected(file.read())
        self.assertTrue(expected)
        for kind, reason in expected.values():
            self.assertGreater(len(reason), 5, kind)
        for wrong in ("generic/001 fails", "generic/001 breaks by it", "generic/001 fails x\ngeneric/001 fails y"):
            with self.assertRaises(run.Problem):
                run.parse_expected(wrong)

    def test_without_the_suite_it_says_how_to_get_it(self):
        environment = {name: value for name, value in os.environ.items() if name != "XFSTESTS_DIR"}
        for folder in (None, HERE):
            if folder is not None:
                environment["XFSTESTS_DIR"] = folder
            done = subprocess.run([sys.executable, os.path.join(HERE, "run.py")], env=environment, capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn("git clone", done.stderr)


if __name__ == "__main__":
    unittest.main()
