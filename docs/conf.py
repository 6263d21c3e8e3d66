"""Settings of the documentation: ``sphinx-build -W -b html docs docs/_build/html``.

Pages with code cells are executed in a folder of their own, in 32 bits as users are.
"""

import inspect
import os
import re
from pathlib import Path

import dpjax
from dpjax.algorithm import Sampler

project = "dpjax"
author = "The dpjax developers"
copyright = author
version = release = dpjax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
os.environ.pop("JAX_ENABLE_X64", None)
# Progress bars are text here, and commands run in a process that uses JAX no further.
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found,ignore:os.fork"
# JAX 0.9 logs errors, which are none, for programs that it reads from a folder.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_render_markdown_format = "gfm"

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "imported-members": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

html_theme = "furo"
html_title = "dpjax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False

# A kernel is a named tuple of BlackJAX's layers. Its page shows the call.
KERNELS = {
    f"dpjax.{name}": inspect.unwrap(value.as_top_level_api)
    for name, value in inspect.getmembers(dpjax)
    if isinstance(value, Sampler)
}
for name, function in KERNELS.items():
    setattr(dpjax, name.removeprefix("dpjax."), function)


def plain_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: formulas on lines of their own stay as they are."""
    if name in KERNELS:
        lines[:] = inspect.getdoc(obj).splitlines()
    found, is_formula, before = [], False, None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and before is not None:
            is_after_blank = not found[-1].strip()
            if is_formula:
                is_formula = indent > before
            elif is_after_blank and indent > before:
                is_formula = True
                if not found[-2].endswith("::"):
                    found += [" " * before + "::", ""]
        if not is_formula:
            line = re.sub(r"(`+[^`]*`+)|\|", lambda at: at[1] or "\\|", line)
            before = indent if line.strip() else before
        found.append(line)
    lines[:] = found


def setup(app):
    # Before napoleon, whose priority is 500.
    app.connect("autodoc-process-docstring", plain_text, priority=400)
