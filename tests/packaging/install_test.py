#!/usr/bin/env python3
"""The files of `make install`: they are complete, the links lead to the program, and the completions offer everything
in the help texts."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["GPU4FS_BUILD"])
SOURCE = pathlib.Path(os.environ["GPU4FS_SOURCE"])
PREFIX = "opt/gpu4fs"
PROGRAM_NAMES = ("mkfs.gpu4fs", "fsck.gpu4fs", "mount.gpu4fs", "umount.gpu4fs", "mount.fuse.gpu4fs",
                 "umount.fuse.gpu4fs")


def run(*words: str, **options) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, **options).stdout


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        run("cmake", "--install", str(BUILD), "--prefix", "/" + PREFIX,
            env={**os.environ, "DESTDIR": cls.folder.name})
        cls.root = pathlib.Path(cls.folder.name) / PREFIX

    def test_programs_and_their_other_names(self) -> None:
        for name in ("gpu4fs", "gpu4fs-bench"):
            self.assertTrue(os.access(self.root / "bin" / name, os.X_OK), name)
        for name in PROGRAM_NAMES:
            link = self.root / "sbin" / name
            self.assertFalse(os.path.isabs(os.readlink(link)), name)
            self.assertEqual(link.resolve(), (self.root / "bin/gpu4fs").resolve())
            self.assertIn(name.replace(".fuse", ""), run(str(link), "--help"))

    def test_every_man_page_and_manual_is_there(self) -> None:
        for source, target in (("packaging/man", "share/man/man8"), ("docs/manual", "share/doc/gpu4fs")):
            wanted = {path.name for path in (SOURCE / source).iterdir()}
            self.assertTrue(wanted)
            self.assertLessEqual(wanted, {path.name for path in (self.root / target).iterdir()})
        self.assertTrue((self.root / "share/doc/gpu4fs/copyright").exists())

    def test_unit_template_starts_what_is_installed(self) -> None:
        unit = (self.root / "lib/systemd/system/gpu4fs@.service").read_text()
        started = re.findall(r"^Exec\w+=(\S+) (\S+)", unit, re.MULTILINE)
        self.assertEqual({program for program, _ in started}, {"gpu4fs"})
        for _, verb in started:
            self.assertIn(f"\n  {verb} ", run(str(self.root / "bin/gpu4fs"), "--help"))

    def complete(self, *words: str) -> list[str]:
        """The completions of bash for the last of `words`, with the script that it would load for the first."""
        script = self.root / "share/bash-completion/completions" / words[0]
        code = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gpu4fs; '
                'printf "%s\\n" "${COMPREPLY[@]}"')
        return run("bash", "-c", code, "bash", str(script), *words).split()

    def verbs(self) -> list[str]:
        return re.findall(r"^  (\S+) ", run(str(self.root / "bin/gpu4fs"), "--help"), re.MULTILINE)

    def test_bash_offers_verbs_subcommands_values_and_files(self) -> None:
        self.assertEqual(self.complete("gpu4fs", ""), self.verbs())
        self.assertEqual(self.complete("gpu4fs", "sc"), ["scrub"])
        self.assertEqual(self.complete("gpu4fs", "device", "sp"), ["spare"])
        self.assertEqual(self.complete("gpu4fs", "fsck", "--engine", "cu"), ["cuda"])
        self.assertEqual(self.complete("fsck.gpu4fs", "--engine", "n"), ["none"])
        self.assertEqual(self.complete("gpu4fs", "fsck", str(self.root / "bin/gpu4fs-")),
                         [str(self.root / "bin/gpu4fs-bench")])

    def test_both_shells_offer_every_option_of_the_help_texts(self) -> None:
        zsh = (self.root / "share/zsh/vendor-completions/_gpu4fs").read_text()
        options_seen = 0
        for verb in self.verbs():
            if verb == "bench":  # a program of its own
                continue
            text = run(str(self.root / "bin/gpu4fs"), verb, "--help")
            wanted = set(re.findall(r"(?<=[\s,])--?[A-Za-z][\w-]*", text.split("\nOptions:")[1].split("\nSub")[0]
                                    if "\nOptions:" in text else ""))
            wanted = {option for option in wanted if re.search(rf"^  (-\w,)?{option}\b|^  {option},", text, re.M)}
            self.assertIn("--help", wanted)
            self.assertLessEqual(wanted, set(self.complete("gpu4fs", verb, "-")), verb)
            function = zsh.split(f"_gpu4fs_{verb.replace('-', '_')}() {{")[1].split("\n}\n")[0]
            for option in wanted:
                self.assertIn(f"{option}[", function)
            options_seen += len(wanted)
        self.assertGreater(options_seen, 100)


if __name__ == "__main__":
    unittest.main()
