"""What a model card says about the data, the batch and the settings."""
from types import SimpleNamespace

import pytest

from trainer_nb import TrainingArguments
from trainer_nb.live.model_card import dataset_name, draft_model_card, hyperparameters
from toys import hard_learner


def table(text, heading):
    "Return the rows of a table in a card, as lists of cells; a bar that is escaped ends no cell."
    lines = text.split(f"## {heading}\n\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip().replace("\0", "|") for cell in line.replace("\\|", "\0").strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_hyperparameters():
    "The batch of all processes; a setting with a bar is one cell."
    assert hyperparameters(TrainingArguments(per_device_train_batch_size=8, gradient_accumulation_steps=2), 4)["total_train_batch_size"] == 64
    learn = hard_learner(run_name="a|b\nc")
    text = draft_model_card(learn.args, learn.state, learn.model, "name")
    assert ["run_name", r"`'a|b\nc'`"] in table(text, "Hyperparameters")


def test_an_evaluation_set_may_be_called_training():
    learn = hard_learner()
    size = len(learn.train_dataset)
    learn.eval_dataset = {"training": learn.train_dataset, "other": [learn.train_dataset[0]] * 3}
    text = learn.draft_model_card()
    assert table(text, "Data") == [["training", f"{size} samples"], ["evaluation: training", f"{size} samples"], ["evaluation: other", "3 samples"]]


def test_builders_of_files_are_no_data_sets_of_the_hub():
    packaged = pytest.importorskip("datasets.packaged_modules")
    assert [name for name in packaged._PACKAGED_DATASETS_MODULES if dataset_name(SimpleNamespace(builder_name=name))] == []
    assert dataset_name(SimpleNamespace(builder_name="glue")) == "glue" and dataset_name([]) is None
