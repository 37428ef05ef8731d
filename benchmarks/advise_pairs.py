"""Speed of `crossover advise` compared with another checkout, in pairs, and whether both give the same answers.

    git worktree add /tmp/before REVISION
    python -m benchmarks.advise_pairs --before /tmp/before [--draws 20] [--every 8] [--whole]

The questions are drawn; each searches every eighth candidate (`--whole`: the README's question alone, over all candidates). One process
answers it in the one checkout and then in the other. Two answers are the same if winner and Pareto front are, or if their figures are
within the search's slack.
"""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from benchmarks.report import Figure, write

SLACK = 0.01
ASKED: dict[str, Any] = {
    "file": "all-reduce-cifar10",
    "changes": [],
    "deadline": 7_200.0,
    "budget": 5.0,
    "on_hand": None,
}


def draw_question(number: int) -> dict[str, Any]:
    """Return the random question with that number: an example's file name, changed settings, deadline in seconds, budget in dollars and
    allowed services, by name. The same number gives the same question.
    """
    rng = random.Random(f"advice {number}")
    file = rng.choice(("all-reduce-cifar10", "spirt-cifar10", "all-reduce-s3", "spirt", "mlless-cifar10", "single"))
    changes = [
        f"training.epochs={rng.choice((1, 2, 5, 20, 60))}",
        f"training.batch_size={rng.choice((32, 64, 128, 256))}",
        f"seed={rng.randrange(1_000)}",
    ]
    if file != "single":
        changes.append(f"workers={rng.choice((2, 3, 4, 8))}")
    hand = rng.choice((None, ["lambda"], ["lambda", "ec2"], ["ec2", "gpu"], ["lambda", "gpu", "spot"]))
    return {
        "file": file,
        "changes": changes,
        "deadline": rng.choice((None, None, 900.0, 7_200.0)),
        "budget": rng.choice((None, None, 0.5, 5.0)),
        "on_hand": hand,
    }


def answer_question(asked: Mapping[str, Any], every: int) -> dict[str, Any]:
    """Answer a question with the code of the checkout in which this process runs. Return `answer` (words, seconds and dollars of the winner
    and of the Pareto front), `seconds` (processor seconds) and `simulated` (number of simulated candidates). Patches the list of candidates
    for the rest of the process, so call it once. `asked`: as `draw_question` returns it; `every`: consider only every `every`-th candidate.
    """
    from crossover.advice import advice, candidates
    from crossover.advice import question as subject
    from crossover.advice.question import ON_HAND, Constraints
    from crossover.validation import load

    config = Path("config") / f"{asked['file']}.yaml"
    question, sizes, _ = subject.build_question(load(config, asked["changes"]))
    whole = candidates.list_candidates
    candidates.list_candidates = lambda *given, **more: islice(whole(*given, **more), 0, None, every)  # type: ignore[assignment]
    hand = tuple(asked["on_hand"] or ON_HAND)
    wished = Constraints(deadline_s=asked["deadline"], budget_usd=asked["budget"], on_hand=hand)
    began_s = process_time()
    found = advice.advise(question, wished, sizes, processes=1)
    front = [(each.candidate.words, each.figures.seconds, each.figures.usd) for each in (found.winner, *found.front)]
    return {"answer": front, "seconds": process_time() - began_s, "simulated": len(found.searched.simulated)}


def answer_in_checkout(folder: Path, asked: Mapping[str, Any], every: int) -> dict[str, Any]:
    """Run `answer_question` in a new process with the code of the checkout `folder`, and return its result. If the process fails, the
    answer is the last line of its error, and `seconds` and `simulated` are 0. `asked`, `every`: as for `answer_question`.
    """
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[1]}"}
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = ['']\n" + CODE]
    given = json.dumps([asked, every])
    done = subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"answer": done.stderr.strip().splitlines()[-1:], "seconds": 0.0, "simulated": 0}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


CODE = f"""
import importlib.util, json
spec = importlib.util.spec_from_file_location("pairs", {__file__!r})
pairs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pairs)
asked, every = json.load(sys.stdin)
print(json.dumps(pairs.answer_question(asked, every)))
"""


def is_same_answer(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two answers are equal, or have equally many entries whose seconds and dollars all differ by at most the share
    SLACK.
    """
    if one == other or len(one) != len(other) or not all(isinstance(each, list) for each in (*one, *other)):
        return one == other
    figures = [pair for mine, its in zip(one, other, strict=True) for pair in zip(mine[1:], its[1:], strict=True)]
    return all(abs(a / b - 1) <= SLACK for a, b in figures)


def main(arguments: Sequence[str] | None = None) -> None:
    """Let this checkout and another one answer the same questions in turns. Write how many times faster this one is, and how many answers
    are the same.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parents[1]
    parser.add_argument("--before", type=Path, default=here, help="another checkout; else this one beside itself")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--every", type=int, default=8, help="every how manieth way to train a drawn question searches")
    parser.add_argument("--whole", action="store_true", help="the README's question, over all ways")
    parser.add_argument("--quick", action="store_true", help="one question over a few ways: to see that it runs")
    given = parser.parse_args(arguments)
    if given.quick:
        given.draws, given.every = 1, 400
    asked = (
        [(ASKED, 1)] if given.whole else [(draw_question(number), given.every) for number in range(1, given.draws + 1)]
    )
    factors, equal = list[float](), list[bool]()
    for question, every in asked:
        before, now = (answer_in_checkout(folder.resolve(), question, every) for folder in (given.before, here))
        equal.append(is_same_answer(before["answer"], now["answer"]))
        factors.append(before["seconds"] / now["seconds"] if now["seconds"] else 1.0)
        told = {"asked": question, "same": equal[-1], "factor": round(factors[-1], 2), "before": before, "now": now}
        print(json.dumps(told), flush=True)
    write(
        "advise_pairs",
        [
            Figure("quicker by, in the middle", median(factors), "x"),
            Figure("quicker by, at least", min(factors), "x"),
            Figure("answers", float(len(equal)), ""),
            Figure("of them the same", float(sum(equal)), "", f">= {len(equal)}"),
        ],
    )


if __name__ == "__main__":
    main()
