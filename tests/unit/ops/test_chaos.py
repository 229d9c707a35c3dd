"""The chaos programs' own arithmetic: a measure that cannot fail would prove nothing."""

from celeriac.ops.chaos.many import longest_with_room


def test_a_wait_without_room_does_not_count() -> None:
    first, second = (0, 10, 5000), (0, 10, 6000)
    assert longest_with_room([first, second], 2) == 10
    assert longest_with_room([first, second, (0, 5300, 7000)], 2) == 300
    assert longest_with_room([first, second, (0, 5300, 7000)], 3) == 5300


def test_each_stretch_with_room_counts_by_itself() -> None:
    lives = [(0, 0, 100), (0, 400, 1000), (0, 1200, 2000)]
    assert longest_with_room(lives, 1) == 300
