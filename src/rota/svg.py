"""SVG documents as text, for all drawings: self-contained, without scripts, external fonts or other resources.

    document(320, 80, "The queue", [element("rect", x=10, y=40, width=300, height=30, tip="3 entries")])

Words may come from files and from other programs: they are escaped here, and characters that XML does not allow are
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

__all__ = ["INK", "document", "element", "link", "picture", "printable", "text"]

INK = "#334155"  # of lines and borders
TITLE_Y = 34
_STYLE = (  # text is transparent for the pointer, so that the tip of the shape below it is shown
    "text{font:12px system-ui,sans-serif;fill:#0f172a;pointer-events:none}.small{font-size:10px;fill:#475569}"
    f".title{{font-size:16px;font-weight:600}}.line{{fill:none;stroke:{INK};stroke-width:1.4}}"
)
# what XML does not allow, and codes that turn the direction of the text around them
_NOT_ALLOWED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff\ufffe\uffff]")


def document(width: float, height: float, title: str, parts: Iterable[str], *, margin: float = 28) -> str:
    """Return an SVG document: the parts on a white background, below the title."""
    frame = [
        _word("title", title),
        f"<style>{_STYLE}</style>",
        element("rect", width="100%", height="100%", fill="#ffffff"),
        text(margin, TITLE_Y, title, class_="title"),
    ]
    size = _attributes({"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height})
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg"{size} role="img">', *frame, *parts, "</svg>\n"])


def picture(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """Return an SVG element that is part of a page: the page's style sheet sets colours, below the class `picture`."""
    size = _attributes({"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height, "aria-label": label})
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="group"{size}>', *parts, "</svg>"])


def link(href: str, parts: Iterable[str], label: str, **attributes: str | float) -> str:
    """Return parts that lead to another page of the same site."""
    assert href.startswith("/"), href  # noqa: S101  # a name that is written by a user never decides the scheme
    return f"<a{_attributes({'href': href, 'aria-label': label, **attributes})}>{''.join(parts)}</a>"


def element(name: str, *, tip: str = "", **attributes: str | float) -> str:
    """Return an element; `stroke_width` is written as stroke-width, and `tip` is shown under the pointer."""
    inside = _word("title", tip) if tip else ""
    return f"<{name}{_attributes(attributes)}>{inside}</{name}>" if inside else f"<{name}{_attributes(attributes)}/>"


def text(x: float, y: float, words: str, **attributes: str | float) -> str:
    """Return words at a place."""
    return _word("text", words, x=x, y=y, **attributes)


def printable(words: str) -> str:
    """Return the words without control and direction codes, which old names may contain and drawings may not."""
    return _NOT_ALLOWED.sub("\ufffd", words)


def _word(name: str, words: str, **attributes: str | float) -> str:
    return f"<{name}{_attributes(attributes)}>{escape(printable(words))}</{name}>"


def _attributes(values: dict[str, str | float]) -> str:
    written = {name.rstrip("_").replace("_", "-"): value for name, value in values.items()}
    return "".join(
        f' {name}="{escape(printable(value)) if isinstance(value, str) else f"{value:g}"}"'
        for name, value in written.items()
    )
