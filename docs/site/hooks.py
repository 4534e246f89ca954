"""Completes MkDocs: README as the first page, a page of all commands, links to pages by name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from typer.cli import get_docs_for_click
from typer.main import get_command

from autotune.cli.app import app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]


def commands() -> str:
    """The reference of all commands, in Markdown."""
    command = get_command(app)
    context = click.Context(command, info_name="autotune")
    text = get_docs_for_click(obj=command, ctx=context, name="autotune", title="Commands")
    return re.sub(r"^\* `--(?:install|show)-completion`.*\n", "", text, flags=re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: Any) -> str:
    """Names of pages, `docs/NAME.md`, become links to them."""
    here = Path(page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        name = found[1]
        if files.get_file_from_path(name) is None:
            return found[0]
        return f"[{found[0]}]({os.path.relpath(name, here)})"

    return re.sub(r"(?<!\[)`docs/([\w/-]+\.md)`", link, markdown)
