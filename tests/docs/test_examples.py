"""The examples of the documentation run as they stand there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["own_model_and_data.md"])
def test_the_code_of_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    exec(compile("\n".join(blocks), page, "exec"), {})
    assert 0.8 < float(capsys.readouterr().out.split()[-1]) <= 1.0
