"""The corpus: whole modules on one side or the other, third-party code on neither."""

from pathlib import Path

from demo_models.corpus import HELD_OUT, Module, Split, load_split


def write_tree(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_held_out_modules_are_not_in_the_training_half() -> None:
    split = load_split()
    train = {module.name for module in split.train}
    assert train.isdisjoint(HELD_OUT)
    assert {module.name for module in split.held_out} <= set(HELD_OUT)


def test_the_text_of_a_held_out_module_is_in_no_training_module() -> None:
    split = load_split()
    texts = {module.text for module in split.train}
    assert texts.isdisjoint(module.text for module in split.held_out)


def test_this_interpreter_has_most_of_the_held_out_modules() -> None:
    assert len(load_split().held_out) >= len(HELD_OUT) - 3


def test_the_split_is_the_same_every_time() -> None:
    assert load_split() == load_split()


def test_third_party_code_tests_and_tables_are_left_out(tmp_path: Path) -> None:
    write_tree(
        tmp_path,
        {
            "site-packages/other/a.py": b"a = 1\n",
            "unittest/test/b.py": b"b = 1\n",
            "encodings/c.py": b"c = 1\n",
            "_sysconfigdata__linux.py": b"d = 1\n",
            "empty.py": b"\n",
            "latin.py": b"# \xe9\n",
            "kept.py": b"e = 1\r\n",
            "csv.py": b"f = 1\n",
        },
    )
    expected = Split(train=(Module("kept.py", "e = 1\n"),), held_out=(Module("csv.py", "f = 1\n"),))
    assert load_split(tmp_path) == expected
