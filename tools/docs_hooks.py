"""What mkdocs does beyond its own: the reference is read from the package, links into the checkout are checked.

Called by mkdocs (``hooks`` in tools/mkdocs.yml).
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))

import reference  # noqa: E402  lies beside this file, which mkdocs loads by its path

log = logging.getLogger("mkdocs.plugins")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated page, and to the navigation whatever pages other work has added to docs/."""
    files.append(File.generated(config, "reference.md", content=reference.page()))
    listed = set(re.findall(r"[\w-]+\.md", str(config["nav"])))
    more = sorted(f.src_uri for f in files.documentation_pages() if f.src_uri not in listed)
    if more:
        config["nav"].append({"More": more})
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files of the checkout become their names: the site does not hold them, but they must exist."""

    def shown(found: re.Match[str]) -> str:
        target = (Path(config["docs_dir"]) / found.group(2)).resolve()
        if not target.exists() or CHECKOUT not in target.parents:
            log.warning(
                "%s links to %s, which is not in the checkout", page.file.src_uri, found.group(2)
            )
        return f"{found.group(1)} (`{target.relative_to(CHECKOUT)}`)"

    return _OUTSIDE.sub(shown, markdown)
