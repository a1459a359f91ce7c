"""make docs: the API reference in docs/api/, from the docstrings and types of every module; no network is needed."""

import pkgutil
import sys
from pathlib import Path

import pdoc

import fedrepro

TARGET = Path(__file__).parent / "api"


def modules() -> list[str]:
    """The package, and the modules that pdoc does not find by itself: those that their package's __all__ leaves out."""
    left = []
    for module in pkgutil.walk_packages(fedrepro.__path__, "fedrepro."):
        parent, _, name = module.name.rpartition(".")
        known = getattr(sys.modules[parent], "__all__", None)
        if known is not None and name not in known and name != "__main__":
            left.append(module.name)
    return ["fedrepro", *sorted(left)]


def build(target: Path) -> Path:
    for name in fedrepro.__all__:  # they are imported when first used; pdoc looks at what is there
        setattr(fedrepro, name, getattr(fedrepro, name))
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text=f"fedrepro {fedrepro.__version__}")
    pdoc.pdoc(*modules(), output_directory=target)
    return target / "index.html"


if __name__ == "__main__":
    print(f"wrote {build(Path(sys.argv[1]) if sys.argv[1:] else TARGET)}")
