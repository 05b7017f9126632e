"""Build wheel and sdist, install them with each extra into a clean environment, and use them: `make packages`.

`python tools/packages.py PYTHON` does it with another interpreter than the one that runs this.

uv installs: with pip, ten environments take longer than all tests together. Nothing is taken from the environment that
runs this. The first extra is none at all: the base must import and decide without any of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parent.parent
UV = str(Path(sys.executable).parent / "uv")
IMPORT = """
import drimed
assert drimed.__version__ == "{version}" and "site-packages" in drimed.__file__
"""
DECIDE = """
import numpy as np
from drimed import Outcome, Shape, make, make_offer
policy = make("dri_med", absolute=0.05)
state = policy.init(Shape(d=2, K=2, M=1, H=1))
offer = make_offer(maps=[[[1.0, 0.0]], [[0.0, 1.0]]], preference=[1.0], covariance=[[[1.0]]] * 2, control=[1.0, 0.0])
decision = policy.decide(state, offer, draws=np.array([[0.4]]))
policy.update(state, offer, decision, Outcome(vector=np.array([[0.7]])))
assert decision.reason
"""
WITHOUT = """
for name, use in {"trial": lambda: drimed.open_store("t.db"), "client": lambda: drimed.Client}.items():
    try:
        use()
    except drimed.MissingExtraError as error:
        assert f"drimed[{name}]" in str(error)
    else:
        raise SystemExit(f"what needs the extra {name} works without it")
"""
TRIAL = """
from pathlib import Path
from drimed import Trial, TrialSpec, open_store, verify
from drimed.trial import template
Path("t.toml").write_text(template())
store = open_store("t.db")
trial = Trial.create(TrialSpec.load("t.toml"), store)
trial.tell(trial.ask("north", context={"rain": 400}, episode=1).id, {"yield": 8.7, "leaching": 31.0})
assert verify(store, trial.name).ok
"""
# What is done with each extra. Deciding compiles the kernels anew in each environment: that is done with two.
USE = {
    "": DECIDE + WITHOUT,
    "sim": "from drimed.reports import results_page; from drimed.simulation import sweep; import jinja2, joblib",
    "cluster": "import dask, distributed",
    "trial": TRIAL,
    "postgres": "import psycopg; from drimed import open_store; psycopg.pq.version(); open_store('t.db').close()",
    "evaluation": """
from drimed import EvaluationPlan, TargetPolicy, evaluate, make_log, read_log, write_log
write_log(make_log(arms=["a", "b"], action=[0, 1], reward=[1.0, 2.0], probabilities=[[0.5, 0.5]] * 2), "log.parquet")
evaluate(read_log("log.parquet"), EvaluationPlan(targets=[TargetPolicy.uniform()], estimators=["ips"]))
""",
    "service": """
from drimed.service import demo
from drimed.service.app import create_app
from drimed.service.settings import Settings
assert create_app(Settings(store="t.db")).routes
""",
    "client": "from drimed import Client; Client('http://127.0.0.1:1', token='t').close()",
    "excel": "import openpyxl",
    "docs": "import furo, myst_parser, sphinx",
}
LONGEST = ("trial", "")  # these begin, and the others are tried beside them
INSIDE = (
    "py.typed",
    "__init__.pyi",
    "policies/registry.toml",
    "trial/templates/field.toml",
    "service/pages/templates/base.html",
)


def main() -> None:
    """Everything, with the time that each part took."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"", *project["optional-dependencies"]} - {"dev"}
    if extras != set(USE):
        sys.exit(f"tools/packages.py does not say how to use {sorted(extras ^ set(USE))}")
    interpreter = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run([UV, "build", "--quiet", "--out-dir", str(folder / "dist"), str(ROOT)])
        (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        check_contents(wheel, sdist)
        said(start, f"built {wheel.name} and {sdist.name}")

        def tried(package: Path, extra: str) -> None:
            begin = time.perf_counter()
            try_out(interpreter, package, extra, IMPORT.replace("{version}", project["version"]) + USE[extra], folder)
            said(begin, f"{package.name}{f'[{extra}]' if extra else ''} works in a clean environment")

        todo = [(wheel, extra) for extra in sorted(USE, key=lambda extra: extra not in LONGEST)]
        with ThreadPoolExecutor(os.cpu_count()) as side_by_side:
            for done in as_completed([side_by_side.submit(tried, *each) for each in [*todo, (sdist, "client")]]):
                if done.exception() is not None:
                    side_by_side.shutdown(cancel_futures=True)
                done.result()
    said(start, "all of it")


def check_contents(wheel: Path, sdist: Path) -> None:
    """What is no Python must come along, and what is not ours to ship must not."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        source = {member.split("/", 1)[-1] for member in archive.getnames()}
    for file in INSIDE:
        if f"drimed/{file}" not in inside or f"src/drimed/{file}" not in source:
            sys.exit(f"{file} is missing from the wheel or the sdist")
    if strange := {name.split("/")[0] for name in inside if not name.startswith("drimed")}:
        sys.exit(f"the wheel installs more than drimed: {sorted(strange)}")


def try_out(interpreter: str, package: Path, extra: str, code: str, folder: Path) -> None:
    """Install a package with an extra into an environment of its own, and run this code there, in an empty folder."""
    home = folder / f"{extra or 'base'}-{package.suffix[1:]}"
    python = str(home / "venv" / "bin" / "python")
    run([UV, "venv", "--quiet", "--no-project", "--python", interpreter, str(home / "venv")])
    wanted = f"drimed[{extra}] @ {package.as_uri()}" if extra else f"drimed @ {package.as_uri()}"
    run([UV, "pip", "install", "--quiet", "--python", python, wanted])
    run([python, "-I", "-W", "error::DeprecationWarning:drimed", "-c", code], cwd=home)
    run([str(home / "venv" / "bin" / "drimed"), "--version"], cwd=home)


def run(command: list[str], cwd: Path | None = None) -> None:
    """A command that must work; what it says is shown only where it does not."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def said(start: float, what: str) -> None:
    """A line with its time."""
    print(f"{time.perf_counter() - start:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    main()
