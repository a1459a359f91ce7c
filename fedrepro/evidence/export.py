"""An executed notebook as a web page that needs no network: formulas are MathML, and nothing is loaded from outside."""

from html import escape
from pathlib import Path
from typing import Literal

from latex2mathml.converter import convert

from fedrepro.errors import BadInput

TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block html_head_css -%}
<style>
body.jp-Notebook { color-scheme: light; max-width: 1100px; margin: 0 auto; padding: 16px; }
.jp-InputPrompt, .jp-OutputPrompt { display: none; }
math[display=block] { margin: .8em 0; font-size: 1.1em; }
.jp-RenderedHTMLCommon, .jp-OutputArea-output { overflow-x: auto; }
</style>
{%- endblock -%}"""


def _exporter():
    """nbconvert takes a second to import: only when a notebook has to be converted."""
    from jinja2 import pass_context
    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def block_math(self, body: str) -> str:
            return mathml(body, "block")

        def inline_math(self, body: str) -> str:
            return mathml(body, "inline")

        def latex_environment(self, name: str, body: str) -> str:
            unknown = name.rstrip("*") == "equation"  # to latex2mathml
            return mathml(body if unknown else rf"\begin{{{name}}}{body}\end{{{name}}}", "block")

    class Exporter(HTMLExporter):
        @pass_context
        def markdown2html(self, context, source):
            attachments = context.get("cell", {}).get("attachments", {})
            renderer = Renderer(escape=False, attachments=attachments, exclude_anchor_links=True)
            return MarkdownWithMath(renderer=renderer).render(source)

    exporter = Exporter()
    exporter.raw_template = TEMPLATE
    return exporter


def mathml(formula: str, display: Literal["block", "inline"]) -> str:
    """A TeX formula as MathML; unchanged if it cannot be parsed."""
    try:
        return convert(formula.replace("{aligned}", "{align*}"), display=display)
    except Exception:  # its own errors have no common base
        return f"<code>{escape(formula)}</code>"


def web_page(executed: Path) -> Path | None:
    """Convert an executed notebook to HTML beside it, unless that is up to date; None without the notebook."""
    if not executed.exists():
        return None
    page = executed.with_suffix(".html")
    if not page.exists() or page.stat().st_mtime < executed.stat().st_mtime:
        try:
            text, _ = _exporter().from_filename(str(executed))
        except (ValueError, AttributeError) as error:
            raise BadInput(f"{executed} cannot be read ({error})") from None
        page.write_text(text)
    return page
