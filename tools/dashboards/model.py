"""What a dashboard is: questions, and the queries that answer them."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = 24  # of Grafana's grid


@dataclass(frozen=True, slots=True)
class Panel:
    """One question, and the lines that answer it: legend -> PromQL."""

    title: str
    unit: str  # as Grafana calls it
    lines: dict[str, str]
    about: str = ""
    width: int = 8  # of `COLUMNS`


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page: rows of panels under headings, and what its top lets choose: name -> query of its values."""

    uid: str
    title: str
    about: str
    choices: dict[str, str]
    rows: dict[str, tuple[Panel, ...]]
