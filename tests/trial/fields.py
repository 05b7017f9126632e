"""Trials with all that a place or a person can have: plots in blocks, attributes, categories, cohorts."""

from __future__ import annotations

from typing import Any

# Two sites, one of them with plots; a number and a category of each site, and of each season.
FIELD: dict[str, Any] = {
    "name": "field",
    "seed": 7,
    "metrics": {"yield": {"unit": "t/ha", "range": [0.0, 12.0]}},
    "arms": {"old": {}, "new": {}},
    "control": "old",
    "preference": {"yield": 1.0},
    "tolerance": {"absolute": 0.5},
    "context": {"rain": {"unit": "mm", "typical": 500.0, "spread": 100.0}, "slope": {"levels": ["flat", "steep"]}},
    "users": {
        "north": {
            "group": "coast",
            "attributes": {"ph": 6.1, "soil": "sand"},
            "blocks": {"A": ["A1", "A2"], "B": ["B1"]},
        },
        "south": {"group": "hills", "attributes": {"ph": 7.0, "soil": "loam"}},
    },
}
SEASON = "user,plot,rain,slope\nnorth,A1,450,flat\nnorth,A2,450,flat\nnorth,B1,450,flat\nsouth,,600,steep\n"

# Nobody yet: whoever is asked for joins.
PATIENTS: dict[str, Any] = {
    "name": "patients",
    "seed": 7,
    "decisions": "any number",
    "metrics": {"score": {"range": [0.0, 100.0]}},
    "arms": {"usual": {}, "app": {}},
    "control": "usual",
    "preference": {"score": 1.0},
    "tolerance": {"absolute": 5.0},
    "model": {"kind": "people"},
    "attributes": {"age": {"unit": "years", "typical": 50.0, "spread": 15.0}, "sex": {"levels": ["f", "m"]}},
    "cohorts": {"ward": {"arms": ["usual"]}},
}
WAITING = "user,age,sex,cohort,group\np1,61,f,,clinic 1\np2,,m,ward,clinic 2\n"
