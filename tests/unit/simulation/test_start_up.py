"""Start-up is a list of parts, each with a band and whether anybody measured it."""

import pytest

from crossover.simulation import start_up
from crossover.simulation.calibration import AWS
from crossover.simulation.start_up import ASSUMED, StartUpPart, draw_seconds, list_parts


def test_functions_wait_for_their_stack_alone() -> None:
    """Check that start-up has one part, the stack, if there are neither hosts, broker nor instances."""
    (stack,) = list_parts(AWS, hosts=False, broker=False, instance=False, gpu=False)
    assert (stack.what, stack.seconds, stack.source) == ("stack", AWS.stack_s, ASSUMED)
    assert (stack.least_s, stack.most_s) == (AWS.stack_s / 2, 2 * AWS.stack_s)


def test_a_broker_takes_eight_to_twelve_minutes_and_its_network_comes_first() -> None:
    """The start-up of a broker has the network before it, and takes 8 to 12 minutes."""
    parts = list_parts(AWS, hosts=True, broker=True, instance=False, gpu=False)
    assert [each.what for each in parts] == ["stack", "network", "broker", "database hosts"]
    broker = parts[2]
    assert (broker.least_s, broker.seconds, broker.most_s) == (480, 600, 720) and broker.source != ASSUMED


@pytest.mark.parametrize(("gpu", "whole_s"), [(False, 180), (True, 420)])
def test_an_instance_boots_and_installs_and_with_a_gpu_reads_its_image(gpu: bool, whole_s: float) -> None:
    """The start-up of an instance takes `whole_s` seconds, and has a part for the image only with a GPU."""
    parts = list_parts(AWS, hosts=False, broker=False, instance=True, gpu=gpu)
    assert sum(each.seconds for each in parts) == whole_s
    assert any("image" in each.what for each in parts) is gpu
    for each in parts:
        assert each.least_s < each.seconds < each.most_s
    boot = parts[1]
    assert (boot.least_s, boot.most_s) == (22, 24) and boot.source != ASSUMED


def test_the_line_names_the_band_of_the_whole_and_of_each_part() -> None:
    """The description of a start-up has the whole's band, and each part's with its source."""
    words = start_up.describe(list_parts(AWS, hosts=False, broker=False, instance=True, gpu=False)).replace("\xa0", " ")
    assert words.startswith("start-up 3 min 00 s (")
    assert "boot of the instance 23.0 s (22.0 s to 24.0 s; reported by others)" in words
    assert "stack 2 min 00 s (60.0 s to 4 min 00 s; assumed)" in words


def test_drawn_start_ups_fill_the_band_around_the_middle() -> None:
    """Drawn start-up times have the sum of the parts' middles as their median, fill the band, and are always the same; no parts give []."""
    parts = [StartUpPart("one", 10.0, 5.0, 20.0, ""), StartUpPart("two", 2.0, 1.0, 4.0, "")]
    drawn = sorted(draw_seconds(parts, 31))
    assert drawn[15] == pytest.approx(12.0), "the middle of all is the sum of the middles"
    assert 6.0 < drawn[0] < 7.0 and 23.0 < drawn[-1] < 24.0
    assert draw_seconds(parts, 31) == draw_seconds(parts, 31)
    assert draw_seconds([], 31) == []
