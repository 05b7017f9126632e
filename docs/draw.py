"""The two drawings of the documentation, as SVG: `python -m docs.draw`.

Each carries its own background and follows light and dark as the reader's system has it, so it can be read on any page.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
STYLE = """
  svg { color-scheme: light dark; }
  .ground { fill: #ffffff; stroke: #d5dbe1; }
  .box { fill: #eef3f8; stroke: #5f7893; }
  .main { fill: #e3f1e6; stroke: #3e7d4f; }
  .log { fill: #fdf1dc; stroke: #a9741b; }
  .line { stroke: #5f7893; fill: none; stroke-width: 1.6; }
  .tip { fill: #5f7893; }
  text { font-family: system-ui, sans-serif; fill: #1d2733; font-size: 14px; }
  .name { font-weight: 600; }
  .small { font-size: 12px; fill: #4b5a68; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b21; stroke: #39434e; }
    .box { fill: #222c37; stroke: #7d96b0; }
    .main { fill: #1d3325; stroke: #6cb380; }
    .log { fill: #3a2d14; stroke: #d29d45; }
    .line { stroke: #8fa5bb; }
    .tip { fill: #8fa5bb; }
    text { fill: #e8edf2; }
    .small { fill: #b3c0cc; }
  }
"""


@dataclass(frozen=True)
class Box:
    """A named box with lines of small print."""

    x: int
    y: int
    width: int
    height: int
    name: str
    about: tuple[str, ...] = ()
    kind: str = "box"

    def svg(self) -> str:
        """Its rectangle and its words, centred."""
        middle = self.x + self.width // 2
        top = self.y + self.height // 2 - 8 * len(self.about) + 5
        words = [f'<text class="name" x="{middle}" y="{top}" text-anchor="middle">{escape(self.name)}</text>']
        words += [
            f'<text class="small" x="{middle}" y="{top + 17 * (i + 1)}" text-anchor="middle">{escape(line)}</text>'
            for i, line in enumerate(self.about)
        ]
        rect = (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="7"/>'
        )
        return "\n".join([rect, *words])


def arrow(*points: tuple[int, int]) -> str:
    """A line through these points, with a tip at the last."""
    path = " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
    return f'<path class="line" d="{path}" marker-end="url(#tip)"/>'


def note(x: int, y: int, text: str, anchor: str = "middle") -> str:
    """Small print."""
    return f'<text class="small" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def drawing(width: int, height: int, title: str, *parts: str) -> str:
    """A whole picture."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}</title>',
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="ground" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def trial_life() -> str:
    """From the file to the proof."""
    file = Box(20, 40, 120, 64, "file", ("arms, users,", "tolerance"))
    rehearse = Box(170, 40, 120, 64, "rehearse", ("on simulated", "seasons"))
    init = Box(320, 40, 120, 64, "init", ("checked as", "a whole"), "main")
    ask = Box(500, 40, 120, 64, "ask", ("arms for this", "season"), "main")
    tell = Box(680, 40, 120, 64, "tell", ("outcomes, late", "or in parts"), "main")
    look = Box(590, 150, 120, 64, "look", ("go on, or", "stop?"), "main")
    report = Box(320, 150, 120, 64, "report", ("effects and", "who gains"), "main")
    verify = Box(170, 150, 120, 64, "verify", ("every decision", "taken again"), "main")
    log = Box(170, 262, 630, 44, "the log", ("every event, chained by hashes; nothing is ever changed in it",), "log")
    boxes = (file, rehearse, init, ask, tell, look, report, verify, log)
    arrows = (
        arrow((140, 72), (168, 72)),
        arrow((290, 72), (318, 72)),
        arrow((440, 72), (498, 72)),
        arrow((620, 72), (678, 72)),
        arrow((740, 104), (740, 182), (712, 182)),
        arrow((590, 170), (560, 170), (560, 106)),
        arrow((590, 194), (442, 194)),
        arrow((320, 182), (292, 182)),
        arrow((228, 104), (228, 120), (80, 120), (80, 106)),
        arrow((530, 104), (530, 260)),
        arrow((770, 104), (770, 260)),
        arrow((380, 262), (380, 216)),
        arrow((230, 262), (230, 216)),
    )
    notes = (note(650, 28, "every season"), note(486, 186, "at the end"), note(150, 136, "until it is right"))
    title = "A trial's life: file, rehearse, init; every season ask, tell and look; then report and verify from the log"
    return drawing(820, 326, title, *arrows, *(box.svg() for box in boxes), *notes)


def architecture() -> str:
    """The packages, and which way imports point."""
    boxes = (
        Box(20, 20, 250, 56, "cli", ("the only place that prints",)),
        Box(285, 20, 250, 56, "service", ("HTTP and pages",)),
        Box(550, 20, 250, 56, "client", ("needs errors and records only",)),
        Box(20, 96, 383, 56, "rehearsal", ("a trial file, simulated by the live functions",)),
        Box(417, 96, 383, 56, "reports", ("analysis, charts and sentences",)),
        Box(
            20,
            172,
            383,
            74,
            "trial",
            ("spec, events, state, ask, tell, stopping, verify;", "SQLite, PostgreSQL"),
            "log",
        ),
        Box(417, 172, 185, 74, "simulation", ("worlds, sweeps,", "the paper, suites")),
        Box(615, 172, 185, 74, "evaluation", ("values and intervals", "from logs")),
        Box(20, 266, 500, 56, "policies", ("learner x rule x guard; registry, published, rules, guards",), "main"),
        Box(534, 266, 266, 56, "competitors", ("the literature, one file each",)),
        Box(
            20,
            342,
            780,
            56,
            "models",
            ("linear regression, learned noise, the mixed model of sites and seasons",),
            "main",
        ),
        Box(
            20,
            418,
            780,
            50,
            "numerics, streams, formatting, errors, records",
            ("arrays, kernels, random numbers, shared records",),
        ),
    )
    arrows = [arrow((410, y), (410, y + 18)) for y in (77, 153, 247, 323, 399)]
    title = "The packages of drimed in layers: imports point down"
    below = note(410, 490, "imports point down; a linter checks it")
    return drawing(820, 506, title, *arrows, *(box.svg() for box in boxes), below)


def main(folder: Path = HERE) -> None:
    """Write both into a folder."""
    (folder / "trial_life.svg").write_text(trial_life(), encoding="utf-8")
    (folder / "architecture.svg").write_text(architecture(), encoding="utf-8")


if __name__ == "__main__":
    main()
