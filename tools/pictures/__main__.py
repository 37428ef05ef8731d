"""`python -m tools.pictures`: write every picture of docs/architectures, and the figures of the pages beside them."""

from tools import refuse_arguments
from tools.pictures.pages import FOLDER, render_pages, render_pictures

if __name__ == "__main__":
    refuse_arguments(__doc__)
    FOLDER.mkdir(exist_ok=True)
    for name, text in {**render_pictures(), **render_pages()}.items():
        (FOLDER / name).write_text(text, "utf-8")
