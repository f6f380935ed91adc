"""The HTML of a page that stands by itself: its style, sections, warnings and figures."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_ht.report.document import Bullets

WIDE = 540  # points

STYLE = """
:root {
  color-scheme: light dark; --page: #ffffff; --text: #1c2024; --soft: #5b6570; --line: #d9dee3;
  --band: #f4f6f8; --best: #e5f1fa; --mark: #0072b2; --warn: #8a4b00; --warn-band: #fff4e3;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --text: #e4e8ec; --soft: #9aa5b0; --line: #343c44; --band: #1c2228;
    --best: #16324a; --mark: #62b5ea; --warn: #ffc069; --warn-band: #33270f;
  }
  /* Figures are drawn on white: their lightness is turned over, their hues stay. */
  img.drawing { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen }
}
* { box-sizing: border-box }
body {
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--text);
  background: var(--page); max-width: 69rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
}
header { border-bottom: 3px solid var(--mark); padding-bottom: 0.8rem }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0; max-width: 52rem }
header p { color: var(--soft); margin: 0.4rem 0 0; max-width: none }
header p + p { font-size: 0.875rem }
h2 { font-size: 1.2rem; margin: 2.6rem 0 0.8rem }
p, li { max-width: 46rem; overflow-wrap: anywhere }
.caption, figcaption { font-size: 0.875rem; color: var(--soft); max-width: 46rem; margin: 0.5rem 0 }
.scroll { overflow-x: auto }
/* Content that is wider than the screen ends there below an arrow, which sticks to the edge. Its
   own place is behind the content, where a cover hides it: at the end of the scroll, and where all
   fits. */
.scroll { display: flex; align-items: flex-start }
.scroll::before, .scroll::after { content: ""; flex: none; width: 1.3rem; align-self: stretch }
.scroll::before {
  content: "\\203a"; order: 1; position: sticky; right: 0; z-index: 1; pointer-events: none;
  display: grid; place-items: center; font-size: 1.3rem; width: 1em; color: var(--mark);
  background: linear-gradient(to right, transparent, var(--page) 40%);
}
/* at a table's head: the middle of a long one may be below the screen */
.scroll:has(> table)::before { place-items: start center }
.scroll::after { order: 2; margin-left: -1.3rem; z-index: 2; background: var(--page) }
table { border-collapse: collapse; font-size: 0.95rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.4rem 0.9rem; text-align: right; white-space: nowrap }
th { color: var(--soft); font-weight: 600; font-size: 0.85rem; vertical-align: bottom }
th { white-space: normal }
tr:first-child th { border-bottom: 2px solid var(--line) }
td { border-bottom: 1px solid var(--line) }
th:first-child, td:first-child {
  text-align: left; padding-left: 0.5rem; position: sticky; left: 0; background: var(--page);
}
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 16ch }
td.best { background: var(--best); font-weight: 650 }
details { margin: 0.7rem 0 } details table, details p { font-size: 0.875rem }
summary { cursor: pointer; color: var(--mark); font-weight: 600; font-size: 0.9rem }
figure { margin: 0.8rem 0 1.6rem }
img { display: block; max-width: 100%; height: auto }
.scroll img { max-width: calc(100% - 1.3rem) }
pre, .warning { border-radius: 6px; padding: 0.8rem 1rem; overflow-x: auto }
pre { background: var(--band) }
pre { font-size: 0.85rem; white-space: pre-wrap; overflow-wrap: anywhere }
.warning { background: var(--warn-band); border-left: 4px solid var(--warn); margin: 1.2rem 0 }
.warning h3 { color: var(--warn); font-size: 0.95rem; margin: 0 } .warning ul { margin: 0.3rem 0 }
.warning ul { padding-left: 1.2rem; font-size: 0.9rem }
.samples { display: grid; gap: 0.8rem; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)) }
.samples figure { margin: 0 } .samples figcaption { margin: 0.2rem 0 0 }
.samples img { width: 100%; image-rendering: pixelated }
.samples.windows img { image-rendering: auto } .samples.windows { grid-template-columns:
repeat(auto-fill, minmax(11rem, 1fr)) } .samples.texts { grid-template-columns: repeat(auto-fill,
minmax(18rem, 1fr)) } .samples blockquote { margin: 0; border-left: 3px solid var(--line);
padding-left: 0.6rem } .samples blockquote { overflow-wrap: anywhere; font-size: 0.9rem }
@media (max-width: 700px) {
  h1 { font-size: 1.35rem } h2 { margin-top: 2rem }
  table { font-size: 0.85rem } th, td { padding: 0.35rem 0.5rem }
  .wide img { max-width: none; width: 46rem }
}
"""


def page(title: str, headline: str, lead: Sequence[str], sections: Mapping[str, str]) -> str:
    """Returns the page; sections without content are left out.

    Args:
      title: the title of the browser's tab.
      headline: the result in a sentence.
      lead: lines below it: the setting of the run, and its data.
      sections: heading -> content, in HTML.
    """
    shown = []
    for heading, content in sections.items():
        if content:
            shown.append(f"<section><h2>{html.escape(heading)}</h2>{content}</section>")
    head = '<meta charset="utf-8">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    below = "".join(f"<p>{html.escape(line)}</p>" for line in lead)
    top = f"<header><h1>{html.escape(headline)}</h1>{below}</header>"
    body = f"{top}<main>{''.join(shown)}</main>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def caption(text: str) -> str:
    """Returns a line of small print."""
    return f'<p class="caption">{html.escape(text)}</p>'


def warning_box(lines: Sequence[str]) -> str:
    """Returns a box of warnings; "" without any."""
    if not lines:
        return ""
    return f'<aside class="warning"><h3>To watch</h3>{Bullets(lines).html()}</aside>'


def figure(path: Path, text: str) -> str:
    """Returns a figure of an SVG file with its caption.

    Args:
      path: path of the file, which becomes part of the page as an image of its own, so that the
        names within two of them do not meet.
      text: the caption.
    """
    return drawing(path.read_bytes(), path.stem, text)


def drawing(svg: bytes, name: str, text: str) -> str:
    """Returns a figure of the content of an SVG file; `name` is for readers who cannot see it."""
    shown = image(svg, "svg+xml", name, "drawing")
    width = re.search(rb'<svg [^>]*?width="([\d.]+)pt"', svg)
    # on a small screen it scrolls instead of shrinking its words
    is_wide = width is not None and float(width[1]) > WIDE
    size = ' class="wide"' if is_wide else ""
    below = f"<figcaption>{html.escape(text)}</figcaption>"
    return f'<figure{size}><div class="scroll">{shown}</div>{below}</figure>'


def image(data: bytes, kind: str, description: str, style: str = "") -> str:
    """Returns an image whose data are part of the page.

    Args:
      data: the image file.
      kind: the MIME subtype, such as "png".
      description: the text for readers who cannot see it.
      style: the CSS class; "" for none.
    """
    encoded = base64.b64encode(data).decode()
    attributes = f'alt="{html.escape(description)}"'
    if style:
        attributes += f' class="{style}"'
    return f'<img {attributes} src="data:image/{kind};base64,{encoded}">'
