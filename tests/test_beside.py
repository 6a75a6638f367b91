"""Tests of beside.py: `python3 -m unittest discover -s tests`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BESIDE = [sys.executable, "-B", str(Path(__file__).with_name("beside.py"))]
PATIENCE = 60.0


class Beside(unittest.TestCase):
    """In a folder of their own, commands tell each other that they are there by files."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def ran(self, *arguments: str) -> tuple[int, list[str]]:
        """How it ended, and the lines that were said."""
        done = subprocess.run([*BESIDE, *arguments], stdout=subprocess.PIPE, cwd=self.folder, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout.splitlines()

    def test_all_run_at_once_and_each_is_heard_as_a_whole(self) -> None:
        meet = "echo {0} begins; touch {0}; until [ -e {1} ]; do sleep 0.01; done; echo {0} ends"
        code, said = self.ran(meet.format("first", "second"), "sh -c '" + meet.format("second", "first") + "'")
        self.assertEqual((code, sorted(said)), (0, ["first begins", "first ends", "second begins", "second ends"]))
        first = said.index("first begins")
        self.assertEqual(said[first + 1], "first ends")

    def test_it_fails_if_any_does_which_is_heard_last(self) -> None:
        good = "until [ -e last ]; do sleep 0.01; done; echo good"
        self.assertEqual(self.ran("echo bad; exit 3", good, "sh -c 'echo last; touch last'"), (3, ["last", "good", "bad"]))
        self.assertEqual(self.ran("echo first", "false"), (1, ["first"]))

    def test_the_first_one_stands_back_if_it_is_to(self) -> None:
        own = str(os.nice(0))
        self.assertEqual(self.ran("nice", "true"), (0, [own]))
        self.assertEqual(self.ran("--behind", "nice", "true"), (0, ["19"]))
        self.assertEqual(self.ran("--behind", "true", "nice"), (0, [own]))

    def test_whoever_ends_it_ends_all(self) -> None:
        ends = "trap 'touch {0}-ended; exit 1' TERM; touch {0}; while :; do sleep 0.01; done"
        commands = [ends.format("first"), 'sh -c "' + ends.format("last") + '"']
        process = subprocess.Popen([*BESIDE, *commands], cwd=self.folder)
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)
        self.appear("first", "last")
        process.terminate()
        self.assertEqual(process.wait(timeout=PATIENCE), 130)
        self.appear("first-ended", "last-ended")

    def appear(self, *names: str) -> None:
        until = time.monotonic() + PATIENCE
        while not all((self.folder / name).exists() for name in names):
            self.assertLess(time.monotonic(), until, f"{names} of {os.listdir(self.folder)}")
            time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
