"""The hook of mkdocs.yml: pages generated from the code, links out of `docs/`, and a check that nothing is fetched.

- `api/…` from `gainroute.__all__`, grouped by the module that defines each name: public names are listed once, there.
- `reference/cli.md` from the command line itself, `reference/settings.md` from the example settings in `deploy/`.
- `notebooks/…` from the executed notebooks in `examples/notebooks`, with their figures.
- Pages link to files outside `docs/` by relative paths, which work on GitHub; here they become links to the repository.
- The build fails if a page would load a script, a style sheet, a font or an image from another host.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://github.com/gainroute/gainroute/blob/main"

# Topic → title, what it is for, and the modules (below `gainroute.`) whose public names it describes; the first that
# matches counts, so that a name of a new module is still found by its package.
TOPICS = {
    "routers": ("Routers", "Decide what to escalate.", ["routing.router", "routing.routers", "routing.partial", "io"]),
    "inference": ("Inference", "Answer samples in two rounds.", ["routing.two_round", "estimators", "training"]),
    "artifacts": ("Saving and loading", "One file per router, without pickle.", ["routing.artifacts"]),
    "control": ("After deployment", "Keep the budget, notice drift, recalibrate.", ["control"]),
    "evaluation": ("Evaluation", "Metrics, curves and the oracle; needs labels.", ["evaluation"]),
    "extending": ("Extending", "Give your own classes a name, for settings, commands and files.", ["_util.registry"]),
    "errors": ("Errors", "All exceptions and warnings.", ["errors"]),
    "stages": ("Stages and values", "The parts that routers are made of.", ["routing", ""]),
}  # fmt: skip


def topics() -> dict[str, list[str]]:
    """Group the names of `gainroute.__all__` by topic; every name is in exactly one."""
    import gainroute

    grouped: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for name in gainroute.__all__:
        value = getattr(gainroute, name)
        if name.startswith("__"):
            continue
        home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "gainroute")
        inside = f"{home.removeprefix('gainroute').removeprefix('.')}."
        topic = next(
            t for t, (_, _, homes) in TOPICS.items() if any(h == "" or inside.startswith(f"{h}.") for h in homes)
        )
        grouped[topic].append(name)
    return grouped


def api_pages() -> dict[str, str]:
    """Write the pages of the API reference: path → Markdown."""
    import gainroute

    grouped = topics()
    index = ["# API", "", "`import gainroute as gr`. Names that are not on these pages may change without notice.", ""]
    pages = {}
    for topic, (title, about, _) in TOPICS.items():
        lines, entries = [f"# {title}", "", about, ""], []
        # `Router` first: it documents what all routers share.
        for name in sorted(grouped[topic], key=lambda n: (n != "Router", not n[0].isupper(), n.lower())):
            value = getattr(gainroute, name)
            if inspect.ismodule(value):
                public = [n for n in value.__all__ if n not in gainroute.__all__]
                entries += [(f"gr.{name}.{n}", getattr(value, n)) for n in public]
                lines += [line for n in public for line in _described(f"{value.__name__}.{n}", getattr(value, n))]
            else:
                entries.append((f"gr.{name}", value))
                lines += _described(f"gainroute.{name}", value)
        pages[f"api/{topic}.md"] = "\n".join(lines)
        index += [f"## [{title}]({topic}.md)", "", about, "", "| | |", "|---|---|"]
        index += [f"| `{shown}` | {_first_line(value)} |" for shown, value in entries]
        index.append("")
    return {"api/index.md": "\n".join(index), **pages}


def _described(path: str, value: Any) -> list[str]:
    if inspect.ismethod(value):  # bound to an object: there is no source to read the documentation from
        parameters = str(inspect.signature(value)).split(" ->")[0]
        return [f"## {path.rpartition('.')[2]}", "", f"`{path}{parameters}`", "", inspect.getdoc(value) or "", ""]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        return [f"::: {path}", ""]
    return [f"::: {path}", "    options:", "      members: false", ""]


def _first_line(value: Any) -> str:
    text = (inspect.getdoc(value) or "").split("\n\n")[0] if callable(value) else ""
    return " ".join(text.split()).replace("|", "\\|")


def cli_page() -> str:
    """Write the reference of the command line from its own definitions."""
    import typer.main

    from gainroute.cli import app

    lines = ["# Command line", "", "`gainroute COMMAND --help` shows the same in the terminal.", ""]
    root = typer.main.get_command(app)
    for name, command in sorted(_commands(root, "gainroute")):
        lines += [f"## {name}", "", inspect.cleandoc(command.help or "").replace("\b\n", ""), ""]
        arguments = [p for p in command.params if p.param_type_name == "argument" and not getattr(p, "hidden", False)]
        usage = " ".join([name, *(_usage(p) for p in arguments), "[OPTIONS]"])
        lines += ["```text", usage, "```", ""]
        rows = [_parameter(p) for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
        if rows:
            lines += ["| | | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _commands(command: Any, name: str) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [] if command.hidden else [(name, command)]
    return [found for key, sub in inner.items() for found in _commands(sub, f"{name} {key}")]


def _usage(parameter: Any) -> str:
    shown = (getattr(parameter, "metavar", None) or parameter.name).upper()
    return shown if parameter.required else f"[{shown}]"


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        shown = f"`{_usage(parameter)}`"
    else:
        shown = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    usual = (
        "required"
        if parameter.required
        else ""
        if default in (None, (), [], False) or callable(default)
        else f"`{default}`"
    )
    text = " ".join((getattr(parameter, "help", None) or "").split())
    return f"| {shown} | {text.replace('|', chr(92) + '|').replace('<', '&lt;')} | {usual} |"


def settings_page() -> str:
    """Write the reference of the settings from the example files, which hold every key."""
    lines = [
        "# Settings", "",
        "The two example files hold every setting with its default. An unknown key is an error. Any key can also come",
        "from the environment: `GAINROUTE_COORDINATOR_SERVER_PORT` is `port` in `[server]` of the coordinator, and",
        "`GAINROUTE_PARTY_LISTEN` is `listen` of a party.", "",
    ]  # fmt: skip
    for title, name in (("Coordinator", "coordinator.example.toml"), ("Party", "party.example.toml")):
        text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
        lines += [f"## {title}", "", f"`deploy/{name}`:", "", "```toml", text.rstrip(), "```", ""]
    return "\n".join(lines)


def notebook_pages() -> dict[str, str | bytes]:
    """Write a page per notebook, and its figures: path → Markdown or PNG."""
    pages: dict[str, str | bytes] = {}
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        parts: list[str] = []
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"]).replace("](../../docs/", "](../")
            parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
            for output in cell.get("outputs", []):
                if "text" in output:
                    parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
                elif "image/png" in output["data"]:
                    figure = f"{path.stem}-{len(pages)}.png"
                    pages[f"notebooks/{figure}"] = base64.b64decode(output["data"]["image/png"])
                    parts.append(f"![The figure drawn by this code]({figure})")
        source = f"This page is the notebook [{path.name}](../../examples/notebooks/{path.name}), as last executed."
        pages[f"notebooks/{path.stem}.md"] = "\n\n".join([parts[0], source, *parts[1:]]) + "\n"
    return pages


# ---- called by mkdocs -------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Name the generated API pages in the navigation."""
    pages = [{"All names": "api/index.md"}] + [{title: f"api/{topic}.md"} for topic, (title, _, _) in TOPICS.items()]
    for section in config.nav:
        for entries in section.values():
            for entry in entries if isinstance(entries, list) else []:
                if isinstance(entry, dict) and entry.get("API") == "api/":
                    entry["API"] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("gainroute")
        pages = {**api_pages(), "reference/cli.md": cli_page(), "reference/settings.md": settings_page()}
        pages |= notebook_pages()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001
    """Turn relative links that leave `docs/` into links to the repository."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def link(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / match[1]))
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {match[1]}, which does not exist")
        return f"]({REPOSITORY}/{target.relative_to(ROOT).as_posix()}{match[2] or ''})"

    return re.sub(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)", link, markdown)


LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\ssrc=["']?(?:https?:)?//[^>]*>|<link\b[^>]*>""")


def on_post_build(config: Any) -> None:
    """Fail if a page would load anything from another host."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        for tag in LOADED.findall(path.read_text(encoding="utf-8")):
            if "rel=canonical" not in tag.replace('"', "") and re.search(r"(?:https?:)?//[\w.]+", tag):
                raise PluginError(f"{path.name} loads something from another host: {tag}")
