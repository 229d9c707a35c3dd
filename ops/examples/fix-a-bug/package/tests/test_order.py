from pricing import Line, Order, shipping_cents


def test_a_small_quantity_has_no_discount() -> None:
    assert Line("pen", 9, 100).total_cents() == 900


def test_ten_pieces_get_the_discount() -> None:
    assert Line("pen", 10, 100).total_cents() == 950


def test_an_order_is_the_sum_of_its_lines() -> None:
    assert Order((Line("pen", 1, 120), Line("pad", 20, 300))).total_cents() == 120 + 5_700


def test_shipping_is_free_from_fifty() -> None:
    assert (shipping_cents(4_999), shipping_cents(5_000)) == (490, 0)
