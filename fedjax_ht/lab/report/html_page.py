"""The HTML of a page that stands by itself: its sections, warnings and figures, in the style of
page.css."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_ht.lab.report.document import Bullets

WIDE = 540  # points

STYLE = Path(__file__).with_name("page.css")


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
    head += f"<title>{html.escape(title)}</title><style>\n{STYLE.read_text()}</style>"
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
