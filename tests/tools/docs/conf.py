"""Sphinx' configuration. The sources are the tree that `stage.py` writes."""

from __future__ import annotations

project = "Bootbridge"
root_doc = "docs/index"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "Bootbridge"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Pictures inside <picture> elements, at the paths that they have in the repository; a first page at the top.
html_extra_path = ["_extra"]
# Flags keep their two hyphens.
smartquotes = False
# Text that is not valid shell is shown without colours.
suppress_warnings = ["misc.highlighting_failure"]
pygments_style = "friendly"
pygments_dark_style = "monokai"
myst_heading_anchors = 6
nitpicky = True
