from datetime import date

from depot.batches import batches
from depot.counts import by_zone
from depot.labels import label
from depot.routes import zone
from depot.shares import shares
from depot.shelves import shelf
from depot.storage import days_stored
from depot.weights import grams


def test_a_weight_is_rounded() -> None:
    assert grams(1.001) == 1_001


def test_the_last_batch_may_be_smaller() -> None:
    assert batches("abcde", 2) == ["ab", "cd", "e"]


def test_shares_add_up() -> None:
    assert shares(1_000, 3) == [334, 333, 333]


def test_a_leading_zero_belongs_to_the_zone() -> None:
    assert zone("01067") == "01"


def test_a_label_knows_nothing_of_the_one_before() -> None:
    assert label("Ada") == label("Ada") == ["Ada", "DEPOT 7"]


def test_the_day_of_arrival_is_paid_too() -> None:
    assert days_stored(date(2025, 3, 3), date(2025, 3, 3)) == 1


def test_a_limit_belongs_to_the_lighter_shelf() -> None:
    assert [shelf(grams) for grams in (500, 501, 10_000)] == ["letters", "small", "large"]


def test_the_fullest_zone_comes_first() -> None:
    assert list(by_zone(["01", "22", "22"])) == ["22", "01"]
