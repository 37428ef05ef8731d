"""All tables and figures of the papers, by name."""

from collections.abc import Mapping, Sequence

from crossover.errors import ConfigError
from crossover.study.papers import (
    aggregation_2026,
    communication_2025,
    convergence_2025,
    epochs_2025,
    gradients_2023,
    runs_2023,
    runs_2025,
    stages_2023,
)
from crossover.study.papers.measurement import Measurement, Scale
from crossover.study.papers.part import Part
from crossover.validation.documents import did_you_mean

_2025 = (
    Part("2025-figure-1", "2025, figure 1: the training flow that all share"),
    Part(
        "2025-table-1",
        "2025, Table 1: the architectures, stage by stage",
        lambda scale: [runs_2025.mobilenet_epoch(row.figures["architecture"]) for row in runs_2025.rows("Table 1")],
        epochs_2025.table_1,
    ),
    Part(
        "2025-table-2",
        "2025, Table 2: time, memory and cost of an epoch",
        lambda scale: [runs_2025.epoch(row) for row in runs_2025.rows("Table 2")],
        epochs_2025.table_2,
    ),
    Part(
        "2025-section-4.2",
        "2025, section 4.2: what less communication is worth",
        runs_2025.of_section_4_2,
        communication_2025.section_4_2,
    ),
    Part(
        "2025-figure-2",
        "2025, figure 2: communication against workers",
        runs_2025.exchanges,
        communication_2025.figure_2,
    ),
    Part("2025-figure-3", "2025, figure 3: MLLess's filter", runs_2025.of_the_filter, communication_2025.figure_3),
    Part("2025-figure-4", "2025, figure 4: accuracy against time", runs_2025.of_table_3, convergence_2025.figure_4),
    Part("2025-table-3", "2025, Table 3: time to converge, accuracy", runs_2025.of_table_3, convergence_2025.table_3),
)
_2023 = (
    Part("2023-figure-1", "2023, figure 1: peers and services"),
    Part("2023-figure-2", "2023, figure 2: synchronous and asynchronous exchange"),
    Part(
        "2023-table-I",
        "2023, Table I: what the stages of a peer need",
        lambda scale: [runs_2023.stages(row, scale) for row in runs_2023.rows("Table I")],
        stages_2023.table_1,
    ),
    Part(
        "2023-figure-3",
        "2023, figure 3: computing gradients with and without functions",
        runs_2023.of_gradients,
        gradients_2023.figure_3,
    ),
    Part("2023-table-II", "2023, Table II: gradients in functions", runs_2023.of_gradients, gradients_2023.table_2),
    Part(
        "2023-table-III", "2023, Table III: gradients on the instance", runs_2023.of_gradients, gradients_2023.table_3
    ),
    Part("2023-text", "2023: what the text states", runs_2023.of_text, gradients_2023.text),
    Part("2023-figure-4", "2023, figure 4: more peers", runs_2023.of_figure_4, stages_2023.figure_4),
    Part("2023-figure-5", "2023, figure 5: compression", runs_2023.of_figure_5, stages_2023.figure_5),
    Part(
        "2023-figure-6",
        "2023, figure 6: with a barrier and without",
        lambda scale: [runs_2023.barrier(mode) for mode in runs_2023.MODES],
        stages_2023.figure_6,
    ),
)
_2026 = (
    Part(
        "ic2e-2026-designs",
        "2026, ResNet-18: gradients of 20 clients by shards, a tree, three levels",
        aggregation_2026.wanted("resnet18"),
        aggregation_2026.designs,
    ),
    Part(
        "ic2e-2026-shards",
        "2026, VGG-16: one to sixteen shards, 3,008 MB",
        aggregation_2026.wanted("vgg16"),
        aggregation_2026.shards,
    ),
)
PARTS: Mapping[str, Part] = {part.name: part for part in (*_2025, *_2023, *_2026)}


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts of these names, in the papers' order; `all`, a year or `ic2e-2026` stands for all of its parts.

    Raises ConfigError naming what there is.
    """
    wanted: set[str] = set()
    for name in names:
        found = {each for each in PARTS if name in ("all", each) or each.startswith(f"{name}-")}
        if not found:
            raise ConfigError(
                f"{name}: is no table or figure of the papers{did_you_mean(name, list(PARTS))}; one of all, 2025, 2023, ic2e-2026, "
                + ", ".join(PARTS)
            )
        wanted |= found
    return [part for name, part in PARTS.items() if name in wanted]


def measurements(parts: Sequence[Part], scale: Scale) -> list[Measurement]:
    """What these parts want, each once: parts share runs."""
    by_key = {each.key: each for part in parts for each in part.measurements(scale)}
    return list(by_key.values())
