"Rows by themselves: where a value is at any moment, and that lists of them come back as they were."
import math

import numpy as np
import orjson, pytest, torch

from trainer_nb.core.columns import (COLUMN_TYPES, COLUMN_NAMES, RowStore, append_rows, columns_to_lists, copy_rows, kept_losses,
                                     last_row_of_step, mean_or_nan, throughput)
from trainer_nb.core.log_file import dump_line


def filled(n, loss=float, norm=lambda i: None, start=1):
    rows = RowStore()
    for i in range(start, start + n): rows.append(i, i / 10, 1e-3, 32, i * 0.02, loss(i), norm(i))
    return rows


@pytest.mark.parametrize("n", [1, 2, 200])
def test_peek_sees_a_value_wherever_it_is(n, on_device):
    rows = filled(n, lambda i: torch.tensor(float(i)), lambda i: [None, math.nan, torch.tensor(-1.0 * i)][i % 3])
    for row in {0, n // 2, n - 1}:
        seen = rows.peek("loss", row)
        assert isinstance(seen, torch.Tensor) and seen == row + 1 and rows.peek("step", row) == row + 1
        norm = rows.peek("grad_norm", row)
        assert norm is None if (row + 1) % 3 == 0 else math.isnan(norm) if (row + 1) % 3 == 1 else norm == -(row + 1)
    assert rows.whole() == 0
    rows.fetch()
    assert rows.whole() == n and [rows.peek("loss", row) for row in range(n)] == [row + 1.0 for row in range(n)]
    rows.append(n + 1, 0.1, 1e-3, 32, 1.0, torch.tensor(7.0))
    assert rows.whole() == n and rows.peek("loss", n - 1) == float(n) and isinstance(rows.peek("loss", n), torch.Tensor)


def test_rows_without_tensors_are_whole_at_once():
    rows = filled(10)
    assert rows.whole() == rows.fetched == 10 and not rows.pending and rows.peek("loss", 9) == 10.0


def test_lists_and_back():
    odd = [math.nan, math.inf, -math.inf, 0.1, None, 0.1 + 0.2, 5e-324, 2**-1030 / 3, 1.7976931348623157e308, -0.0]
    rows = filled(500, lambda i: odd[i % 10], lambda i: odd[i % 3])
    lists = columns_to_lists(copy_rows(rows, 0, 500))
    assert set(lists) == set(COLUMN_NAMES) - {"abandoned"} and all(len(o) == 500 for o in lists.values())
    back = RowStore()
    append_rows(back, orjson.loads(dump_line(lists)))
    append_rows(back, columns_to_lists(copy_rows(rows, 490, 500)), skip=10)          # known already
    assert len(back) == 500 and back.whole() == 500
    for name in COLUMN_TYPES: np.testing.assert_array_equal(back.view(name), rows.view(name))
    with pytest.raises(ValueError): append_rows(RowStore(), lists | {"loss": [1.0]})
    with pytest.raises(KeyError): append_rows(RowStore(), {"step": [1]})


def test_a_part_is_a_copy():
    rows = filled(10)
    copied = copy_rows(rows, 2, 4)
    rows.loss[2] = -1.0
    assert columns_to_lists(copied)["loss"] == [3.0, 4.0]


def test_left_behind():
    rows = filled(6)
    rows.view("abandoned")[:] = rows.view("step") > 4
    rows.append(5, 0.5, 1e-3, 32, 1.0, 50.0)
    assert rows.view("abandoned").tolist() == [0, 0, 0, 0, 1, 1, 0] and mean_or_nan(kept_losses(rows)) == (1 + 2 + 3 + 4 + 50) / 5
    assert last_row_of_step(rows, 5, 7) == 6 and last_row_of_step(rows, 5, 6) == 4 and last_row_of_step(rows, 9, 7) is None
    assert math.isnan(throughput(rows)[6]) and throughput(rows, 3, 4)[0] == pytest.approx(32 / 0.02)


def test_an_interrupt_while_growing_leaves_whole_rows(monkeypatch):
    rows = filled(256)
    def interrupted(): raise KeyboardInterrupt
    with monkeypatch.context() as m:
        m.setattr(rows, "grow", interrupted)
        with pytest.raises(KeyboardInterrupt): rows.append(257, 1.0, 1e-3, 32, 5.0, torch.tensor(1.0))
    assert len(rows) == 256 and not rows.pending
    rows.append(257, 1.0, 1e-3, 32, 5.0, 1.0)
    assert rows.view("step").tolist() == list(range(1, 258))
