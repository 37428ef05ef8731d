"""What a command asks for several times is computed once, within its block alone."""

from crossover.learning.kept import compute_once, keep_results


def test_results_are_kept_within_a_block_alone() -> None:
    """`compute_once` computes a key once within a `keep_results` block, and anew at each call outside."""
    made = list[int]()

    def make() -> int:
        """Return the number of calls before this one."""
        made.append(len(made))
        return made[-1]

    assert [compute_once("a", make), compute_once("a", make)] == [0, 1]
    with keep_results():
        assert [compute_once("a", make), compute_once("a", make), compute_once("b", make)] == [2, 2, 3]
    with keep_results():
        assert compute_once("a", make) == 4
    assert compute_once("a", make) == 5
