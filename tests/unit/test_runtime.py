"""What code asks of the process that it runs in."""

import threading

from crossover import runtime
from crossover.runtime import ThisProcess


class Elsewhere(ThisProcess):
    """A runtime whose time is always 12 seconds."""

    def time(self) -> float:
        """Return 12."""
        return 12.0


def test_another_runtime_is_asked_within_the_block_alone_and_keeps_a_state_of_its_own() -> None:
    """Check that another runtime's clock and kept values are used only within the block of `use`."""
    made = runtime.get_or_make("test", list[int])
    made.append(1)
    with runtime.use(Elsewhere()):
        assert runtime.time() == 12.0
        assert runtime.get_or_make("test", list[int]) == []
    assert runtime.time() > 12.0
    assert runtime.get_or_make("test", list[int]) is made
    del runtime.state()["test"]


def test_what_is_kept_is_made_once() -> None:
    """Check that get_or_make keeps a value of None."""
    with runtime.use(ThisProcess()):
        runtime.get_or_make("nothing", lambda: None)
        assert runtime.get_or_make("nothing", lambda: 1) is None


def test_only_the_main_thread_speaks_for_the_process() -> None:
    """Check that process_s is None in another thread than the main one."""
    found = [0.0]
    worker = threading.Thread(target=lambda: found.append(runtime.process_s()))  # type: ignore[arg-type]
    worker.start()
    worker.join()
    assert found == [0.0, None] and runtime.process_s() is not None
