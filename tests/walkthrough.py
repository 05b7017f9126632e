"""Pages whose commands are run: what they show is what is said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from drimed.numerics.compiled import COLD
from tests import forked

BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```", flags=re.M | re.S)


@dataclass(frozen=True)
class Step:
    """Something to run in a shell, and what the page shows for it; None: nothing is shown."""

    command: str
    shown: str | None


def blocks(text: str, language: str) -> list[str]:
    """The code of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands(block: str) -> list[Step]:
    """Each command of a console with the output that follows it."""
    found: list[Step] = []
    lines = iter(block.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            if "<<'END'" in command:
                for more in lines:
                    command += "\n" + more
                    if more == "END":
                        break
            found.append(Step(command, None))
        elif line.startswith("> ") and found[-1].shown is None:
            found[-1] = Step(found[-1].command + "\n" + line[2:], None)
        else:
            found[-1] = Step(found[-1].command, (found[-1].shown or "") + line + "\n")
    return found


def steps(page: str) -> list[Step]:
    """Everything that a page runs, in order: consoles, and Python with the text that follows it."""
    found: list[Step] = []
    for language, code in BLOCK.findall(page):
        if language == "console":
            found += commands(code)
        elif language == "python":
            found.append(Step(f"python - <<'END'\n{code}END", None))
        else:
            found[-1] = Step(found[-1].command, code)
    return found


def follow(steps: list[Step], folder: Path, settings: Mapping[str, str]) -> list[str]:
    """Run the steps in one shell, in this folder; what each of them said."""
    script = "set -euo pipefail\n" + "".join(f"echo '@@{i}'\n{step.command}\n" for i, step in enumerate(steps))
    with TemporaryDirectory() as beside, forked.commands(Path(beside)):
        path = os.pathsep.join([beside, str(Path(sys.executable).parent), os.environ["PATH"]])
        env = os.environ | {"PATH": path} | dict(settings)
        ran = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    assert ran.returncode == 0, ran.stdout[-2000:]
    said = ran.stdout.replace(f"{COLD}\n", "")  # on a machine that has never run it
    said = re.sub(r"^.*: (none yet .*|[\d,]+ of [\d,]+), after \d+ s\n", "", said, flags=re.M)  # or is busy
    return re.findall(r"^@@\d+\n(.*?)(?=^@@\d+\n|\Z)", said, flags=re.S | re.M)


def agrees(shown: str, said: str) -> bool:
    """Whether a page shows what was said: spaces do not count, and `...` stands for anything."""
    parts = (re.escape(" ".join(part.split())) for part in shown.split("..."))
    return re.fullmatch(r"\s*" + r".*".join(parts) + r"\s*", " ".join(said.split())) is not None
