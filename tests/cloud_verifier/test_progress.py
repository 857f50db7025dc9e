"""A load that takes minutes says what it does, and says it seldom."""

import logging

import pytest

from cloud_verifier.progress import EVERY, LoggedProgress
from lab import demo_models


def test_each_work_is_logged_as_it_begins_and_its_share_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    progress = LoggedProgress(lambda: now)
    for step in range(101):
        now = step * EVERY / 10
        progress("loading", step / 100)
    progress("checking")
    progress("checking")
    progress("loading", 0.5)
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "> loading",
        *(f"> loading: {percent} %" for percent in range(10, 101, 10)),
        "> checking",
        "> loading: 50 %",
    ]


@pytest.mark.torch
def test_the_load_of_a_target_tells_its_parts_in_order() -> None:
    from cloud_verifier.server import serving
    from tests.cloud_verifier.configured import configured

    works = list[str]()
    folder = str(demo_models.TARGET_DIR)
    config = configured("--model", folder, "--drafter", "exit:1", "--slots", "300")
    serving.load(config, lambda work, share=None: works.append(work))
    begun = [work.split()[0] for work in dict.fromkeys(works)]
    assert begun == ["importing", "loading", "checking", "loading", "allocating"]
    assert [folder in work for work in works].count(True) == 1
