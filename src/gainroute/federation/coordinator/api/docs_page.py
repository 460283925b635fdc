"""``/docs``: the API as one page of plain HTML, made from the OpenAPI schema. No scripts, no external files."""

from __future__ import annotations

import json
from html import escape
from typing import Any

__all__ = ["docs_page"]

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 0 auto; padding: 1rem; }
article { border-top: 1px solid #8886; padding: 0.5rem 0; }
h3 { margin: 0.5rem 0; font-size: 1rem; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { background: #8882; padding: 0.6rem; overflow-x: auto; }
.method { display: inline-block; min-width: 4.5em; font-weight: 700; }
dt { font-weight: 600; } dd { margin: 0 0 0.3rem 1.5rem; }
"""


def docs_page(schema: dict[str, Any]) -> str:
    """Render an OpenAPI schema, as from ``/openapi.json``."""
    groups: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            errors |= {code: found["description"] for code, found in operation.get("responses", {}).items()}
            tag = operation.get("tags", ["other"])[0]
            groups.setdefault(tag, []).append(_operation(method.upper(), path, operation))
    parts = "".join(f"<h2>{escape(tag)}</h2>{''.join(found)}" for tag, found in groups.items())
    codes = "".join(
        f"<dt>{code}</dt><dd>{_marked(text)}</dd>" for code, text in sorted(errors.items()) if not code.startswith("2")
    )
    info = schema["info"]
    title = escape(f"{info['title']} {info['version']}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>{title}</h1>'
        f'<p>{escape(info.get("description", ""))} Machine-readable: <a href="/openapi.json">/openapi.json</a>.</p>'
        f"{parts}<h2>Errors</h2><dl>{codes}</dl></body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f'<h3><span class="method">{method}</span> <code>{escape(path)}</code></h3>']
    lines += [f"<p>{escape(operation.get('summary', ''))}</p>"]
    text = operation.get("description", "")
    lines += [f"<p>{_marked(paragraph)}</p>" for paragraph in text.split("\n\n") if paragraph]
    named = [f"<code>{escape(p['name'])}</code> ({escape(p['in'])})" for p in operation.get("parameters", [])]
    lines += [f"<p>Parameters: {', '.join(named)}</p>"] if named else []
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        if "example" in content:
            shown = escape(json.dumps(content["example"], indent=1, ensure_ascii=False))
            lines.append(f"<p>Example body ({escape(kind)}):</p><pre>{shown}</pre>")
    return f"<article>{''.join(lines)}</article>"


def _marked(text: str) -> str:
    """Mark text between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
