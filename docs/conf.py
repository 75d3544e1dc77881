"""The documentation as a site: ``make docs``."""

project = "perphd"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["man", "examples"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "perphd"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_extra_path = ["openapi.json"]
nitpicky = True
