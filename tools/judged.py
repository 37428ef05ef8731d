"""Tables of projections beside measurements: `python -m tools.judged` prints those of docs/calibration.md."""

from crossover.simulation import papers
from lab import cells
from tools import refuse_arguments


def format_rows() -> str:
    """Return the Markdown table of all printed figures of the papers beside their projections, with errors: first the held-out rows, then
    those used in fits.
    """
    lines = [
        "| row | figure | published | projected | error | error of the row |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for held in (True, False):
        errors = papers.row_errors(held_out_rows=held)
        title = "held out" if held else "calibration (fitted to)"
        lines.append(f"| **{title}** | | | | | |")
        before = ""
        for each in papers.compare_figures():
            if each.held_out != held:
                continue
            source = each.row.source
            of_row = f"{errors[source]:.1%}" if source != before else ""
            name = source if source != before else ""
            lines.append(
                f"| {name} | {each.figure} | {each.printed:g} | {each.projected:.3g} | {each.error:.1%} | {of_row} |"
            )
            before = source
    lines += ["", papers.describe_errors()]
    return "\n".join(lines)


def format_cells() -> str:
    """Return the Markdown tables of measured experiments beside their projections: those held out from the fits, then those kept aside for
    other judges.
    """
    lines = []
    for head, listed in ((cells.HEAD, cells.tabulate_held_out()), (cells.ASIDE_HEAD, cells.tabulate_aside())):
        lines += ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
        lines += ["| " + " | ".join(row) + " |" for row in listed]
        lines += ["", cells.write_headline(), ""] if head is cells.HEAD else []
    return "\n".join(lines)


if __name__ == "__main__":
    refuse_arguments(__doc__)
    print(format_rows(), format_cells(), sep="\n\n")
