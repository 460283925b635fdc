"""Self-contained HTML: one file, nothing from elsewhere, light or dark as the reader's screen is.

Small functions that return pieces of HTML; `page` puts them together. Everything that is not a piece is escaped.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from gainroute.experiments.pages.text import Table
from gainroute.routing.types import FloatArray

__all__ = ["card", "cards", "figure", "note", "page", "paragraph", "pixels", "posterior_bars", "section", "table"]

_STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--faint:#646b75;--line:#dfe3e8;--tint:#f4f6f8;--accent:#0a5fa8;--good:#00805d;
--bad:#c8500a}
@media(prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e8ebef;--faint:#9aa3ae;--line:#2d343c;--tint:#1c2228;
--accent:#5aaef5;--good:#3fd0a4;--bad:#ff9152}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main{max-width:60rem;margin:0 auto;padding:2.2rem 1.2rem 4rem}
h1{font-size:clamp(1.7rem,5vw,2.5rem);line-height:1.15;margin:.1em 0 .4em;letter-spacing:-.02em;text-wrap:balance}
h2{font-size:1.3rem;line-height:1.3;margin:2.6em 0 .5em;letter-spacing:-.01em}
p{max-width:44rem;margin:.6em 0}
.over{color:var(--accent);font-weight:600;font-size:.9rem;letter-spacing:.02em;margin:0}
.lead{font-size:1.12rem}
.small,figcaption,footer{color:var(--faint);font-size:.875rem;line-height:1.5}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:.8rem;margin:1.6rem 0}
.card{border:1px solid var(--line);border-radius:12px;padding:1rem 1.1rem;background:var(--tint)}
.card.main{border-color:var(--accent);box-shadow:inset 0 0 0 1px var(--accent)}
.card b{display:block;font-size:2rem;line-height:1.2;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.card.main b{color:var(--accent)}
.card span{display:block;color:var(--faint);font-size:.875rem;line-height:1.45}
.card span.name{color:var(--ink);font-weight:600}
figure{margin:1.2rem 0}
figure img{display:block;width:100%;height:auto;border-radius:8px}
figure.narrow img{max-width:36rem}
figcaption{margin-top:.5rem;max-width:44rem}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(19rem,1fr));gap:1rem 1.4rem;align-items:start}
.pair figure{margin:.4rem 0}
.scroll{overflow-x:auto;margin:1rem 0;scrollbar-width:thin;scrollbar-color:var(--faint) var(--tint);
background:linear-gradient(to left,var(--paper) 40%,transparent) right/3rem 100% no-repeat local,
linear-gradient(to left,color-mix(in srgb,var(--ink) 30%,transparent),transparent) right/1.1rem 100% no-repeat scroll}
figure .scroll{margin:0}
table{border-collapse:collapse;width:100%;font-size:.925rem;font-variant-numeric:tabular-nums}
th,td{padding:.42rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
thead th{color:var(--faint);font-weight:600;border-bottom:2px solid var(--line)}
tr.main td{font-weight:650}
tr.main td:first-child{color:var(--accent)}
tr.faint td{color:var(--faint)}
td.best{background:color-mix(in srgb,var(--accent) 13%,transparent);border-radius:4px}
.note{border-left:3px solid var(--accent);padding:.1rem 0 .1rem 1rem;margin:1.2rem 0}
.stories{display:grid;grid-template-columns:repeat(auto-fit,minmax(16.5rem,1fr));gap:1rem}
.story{border:1px solid var(--line);border-radius:12px;padding:1rem}
.story h3{font-size:1rem;margin:0 0 .7rem}
.story .row{display:flex;gap:1rem;align-items:center}
.story svg.digit{width:6.2rem;flex:none;border-radius:6px}
.story svg.bars{width:100%;height:auto;max-height:7rem}
.story p{font-size:.93rem;margin:.7rem 0 0}
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
footer{margin-top:3.5rem;padding-top:1rem;border-top:1px solid var(--line)}
code{font:.9em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--tint);padding:.1em .35em;
border-radius:4px}
@media(max-width:34rem){.cards{grid-template-columns:1fr}.card b{font-size:1.7rem}figure img{min-width:30rem}
.pair figure img{min-width:0}}
@media print{.card,.story{break-inside:avoid}h2{break-after:avoid}}
"""


def page(title: str, over: str, lead: str, body: Sequence[str], foot: str) -> str:
    """Put a whole page together: a small line above the heading, a sentence below, pieces of HTML, text at the end."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>"
        f'<p class="over">{escape(over)}</p><h1>{escape(title)}</h1><p class="lead">{_text(lead)}</p>\n'
        + "\n".join(body)
        + f"\n<footer>{_text(foot)}</footer></main></body></html>\n"
    )


def section(title: str, *pieces: str) -> str:
    """Put pieces below a heading."""
    return f"<section><h2>{escape(title)}</h2>{''.join(pieces)}</section>"


def paragraph(text: str, *, small: bool = False) -> str:
    """Write a paragraph; words between backticks are set as code."""
    parts = _text(text).split("`")
    body = "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    return f"<p{' class=small' if small else ''}>{body}</p>"


def note(text: str) -> str:
    """Write a sentence that must not be missed."""
    return f'<div class="note">{paragraph(text)}</div>'


def card(name: str, value: str, *about: str, main: bool = False) -> str:
    """A number to see first: what it is, the number, and lines about it."""
    lines = "".join(f"<span>{escape(line)}</span>" for line in about)
    kind = "card main" if main else "card"
    return f'<div class="{kind}"><span class="name">{escape(name)}</span><b>{escape(value)}</b>{lines}</div>'


def cards(*shown: str) -> str:
    """Set cards side by side."""
    return f'<div class="cards">{"".join(shown)}</div>'


def figure(light: bytes, dark: bytes, alt: str, caption: str, *, narrow: bool = False) -> str:
    """Embed a picture (SVG) in both themes; the screen picks one."""
    return (
        f"<figure{' class=narrow' if narrow else ''}><div class=scroll tabindex=0><picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{_uri(dark)}">'
        f'<img src="{_uri(light)}" alt="{escape(alt)}"></picture></div>'
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )


def _text(text: str) -> str:
    """Escape running text; a number stays on one line with its sign."""
    return escape(text).replace(" %", "\u00a0%")


def _uri(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def table(shown: Table) -> str:
    """Write a table; main rows are emphasised, faint ones greyed, and the best cells marked."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in shown.header)
    body = []
    for i, row in enumerate(shown.rows):
        kind = "main" if row[0] in shown.main else "faint" if row[0] in shown.faint else ""
        cells = "".join(
            f"<td{' class=best' if shown.best is not None and shown.best[i][j] else ''}>{escape(cell)}</td>"
            for j, cell in enumerate(row)
        )
        body.append(f"<tr{f' class={kind}' if kind else ''}>{cells}</tr>")
    # Outside the scrolling part: on a phone, a caption as wide as its table would be cut off.
    below = paragraph(shown.caption, small=True) if shown.caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
        f"</div>{below}"
    )


def pixels(image: FloatArray, alt: str) -> str:
    """Draw a grey image (H, W), values in [0, 1], cut into quadrants by a gap."""
    height, width = image.shape
    gap = 0.6
    squares = []
    for y in range(height):
        for x in range(width):
            left, top = x + gap * (x >= width / 2), y + gap * (y >= height / 2)
            squares.append(
                f'<rect x="{left:g}" y="{top:g}" width="1.02" height="1.02" fill="var(--ink)" '
                f'fill-opacity="{0.04 + 0.96 * float(image[y, x]):.2f}"/>'
            )
    return (
        f'<svg class="digit" viewBox="0 0 {width + gap:g} {height + gap:g}" role="img" aria-label="{escape(alt)}">'
        f"{''.join(squares)}</svg>"
    )


def posterior_bars(posterior: FloatArray, names: Sequence[str], truth: int, answer: int) -> str:
    """Draw a posterior (K,) as bars, the largest in full height; the true class green, a wrong answer orange."""
    step, tall = 10, 46
    largest = float(posterior.max())
    bars = []
    for k, (p, name) in enumerate(zip(posterior, names, strict=True)):
        colour = "--good" if k == truth else "--bad" if k == answer else "--faint"
        high = max(0.8, tall * float(p) / largest)
        bars.append(
            f'<rect x="{k * step + 1.5:g}" y="{tall - high + 4:.1f}" width="7" height="{high:.1f}" rx="1" '
            f'fill="var({colour})"/><text x="{k * step + 5:g}" y="{tall + 11:g}" font-size="6.5" text-anchor="middle" '
            f'fill="var(--faint)">{escape(name)}</text>'
        )
    label = ", ".join(f"{name} {float(p):.0%}" for p, name in zip(posterior, names, strict=True))
    return (
        f'<svg class="bars" viewBox="0 0 {step * len(names)} {tall + 13}" role="img" aria-label="{escape(label)}">'
        f"{''.join(bars)}</svg>"
    )
