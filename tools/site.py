"""Build a site from the Markdown pages: `make docs`, or `python -m tools.site ZENSICAL` with the path of that program.

Pages keep their paths, so that a link leads to the same page on the site and in a checkout. What a page links to outside of the pages
(code, YAML, pictures) is copied beside them.
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs" / "pages"
WORKER = "iframe-worker.js"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)")


def list_pages() -> list[str]:
    """Return the paths of all Markdown files that git knows, relative to the checkout, sorted."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=True, text=True)
    return sorted(name for name in listed.stdout.split("\0") if name)


def copy_page(name: str, out: Path) -> None:
    """Copy the Markdown page `name` into the folder `out`, and also each file of the project that it links to, except other pages. A link
    to a folder is changed to that folder's README.md.
    """
    page = ROOT / name

    def copy_target(link: re.Match[str]) -> str:
        """Return the new target of a link, and copy the file that it leads to if that is no Markdown page. Links to other sites, to files
        outside the project or to none stay as they are.
        """
        aimed = (page.parent / link[1]).resolve()
        if not aimed.exists() or not aimed.is_relative_to(ROOT):  # an address, or example text in a block of code
            return link[1]
        if aimed.is_dir():
            return f"{link[1].rstrip('/')}/README.md"
        if aimed.suffix != ".md":
            copied = out / aimed.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(aimed, copied)
        return link[1]

    made = out / name
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_text(LINK.sub(copy_target, page.read_text("utf-8")), "utf-8")


def main() -> None:
    """Delete the site's earlier pages, copy all pages, and build the site. Exits with zensical's status, which is not 0 if a link or anchor
    is broken.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zensical", help="path of the program that builds the site")
    zensical = parser.parse_args().zensical
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in list_pages():
        copy_page(name, PAGES)
    shutil.copyfile(ROOT / "tools" / WORKER, PAGES / WORKER)
    sys.exit(subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
