"""Small tables in HTML for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A caption above a table. Without a header the first cell of a row is its name."""
    head = f"<thead><tr>{''.join(_cell(name, 'th') for name in header)}</tr></thead>" if header else ""
    lines = ("".join(_cell(cell, "td" if header or k else "th") for k, cell in enumerate(row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<div><p><b>{escape(caption)}</b></p><table>{head}<tbody>{body}</tbody></table></div>"


def html_notes(notes: Iterable[str]) -> str:
    """A paragraph for each note."""
    return "".join(f"<p>{escape(note)}</p>" for note in notes)


def _cell(value: object, tag: str) -> str:
    text = "–" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)
    return f'<{tag} style="text-align:left">{escape(text)}</{tag}>'
